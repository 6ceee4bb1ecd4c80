//! Laws of the digest: any exact cover folds to the whole, anything else is named.

use proptest::prelude::*;

use super::*;
use crate::words::{Dtype, Fragment, Hex128, Span};

/// Reads a box out of a row-major tensor, element by element.
fn read_box(shape: &[u64], element: u64, bytes: &[u8], fragment: &Fragment) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at: Vec<u64> = fragment.0.iter().map(|span| span.start).collect();
    for _ in 0..fragment.volume() {
        let index = at.iter().zip(shape).fold(0, |index, (i, extent)| index * extent + i);
        let start = (index * element) as usize;
        out.extend_from_slice(&bytes[start..start + element as usize]);
        for axis in (0..at.len()).rev() {
            at[axis] += 1;
            if at[axis] < fragment.0[axis].end {
                break;
            }
            at[axis] = fragment.0[axis].start;
        }
    }
    out
}

/// Cuts the whole by halving: each cut picks a part, an axis and a place.
fn partition(shape: &[u64], cuts: &[(u64, u64, u64)]) -> Vec<Fragment> {
    let mut parts = vec![Fragment::whole(shape)];
    for &(which, axis, place) in cuts {
        if shape.is_empty() {
            break;
        }
        let part = parts.swap_remove((which % parts.len() as u64) as usize);
        let axis = (axis % shape.len() as u64) as usize;
        let span = part.0[axis];
        let middle = span.start + place % (span.len() + 1);
        parts.push(part.clone().with(axis, Span::new(span.start, middle)));
        parts.push(part.with(axis, Span::new(middle, span.end)));
    }
    parts
}

#[derive(Clone, Debug)]
struct Case {
    key: SourceKey,
    bytes: Vec<u8>,
    parts: Vec<Fragment>,
}

impl Case {
    fn pieces(&self) -> Vec<Piece> {
        let piece = |part: &Fragment| {
            let (shape, element) = (&self.key.shape, self.key.dtype.bytes());
            digest_piece(&self.key, part, &read_box(shape, element, &self.bytes, part)).unwrap()
        };
        self.parts.iter().map(piece).collect()
    }
}

fn case() -> impl Strategy<Value = Case> {
    let dtype = prop::sample::select(vec![Dtype::U8, Dtype::Bf16, Dtype::F32, Dtype::F64]);
    let shape = prop_oneof![
        prop::collection::vec(0_u64..7, 0..4),
        (1_u64..5, 1_u64..90).prop_map(|(rows, columns)| vec![rows, columns]),
        (0_u64..200).prop_map(|length| vec![length]),
    ];
    let cuts = prop::collection::vec(any::<(u64, u64, u64)>(), 0..6);
    (dtype, shape, cuts, any::<u64>()).prop_map(|(dtype, shape, cuts, seed)| {
        let key = SourceKey::new("layer.weight", dtype, &shape).unwrap();
        let mut state = seed;
        let bytes = (0..key.bytes())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let parts = partition(&shape, &cuts);
        Case { key, bytes, parts }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_partition_folds_to_the_whole(case in case()) {
        let whole = digest_whole(&case.key, &case.bytes).unwrap();
        let mut pieces = case.pieces();
        prop_assert_eq!(fold(&case.key, &pieces), Ok(whole));
        // Replicas and another order change nothing.
        pieces.extend(case.pieces());
        pieces.reverse();
        prop_assert_eq!(fold(&case.key, &pieces), Ok(whole));
    }

    #[test]
    fn a_dropped_piece_is_a_gap_of_its_elements(case in case(), which in any::<usize>()) {
        let mut pieces = case.pieces();
        let dropped = pieces.swap_remove(which % pieces.len());
        let found = fold(&case.key, &pieces);
        if dropped.fragment.volume() == 0 {
            prop_assert!(found.is_ok());
        } else {
            let Err(FoldError::Gap { missing, elements }) = found else {
                return Err(TestCaseError::fail(format!("{found:?}")));
            };
            prop_assert_eq!(elements, dropped.fragment.volume());
            // A box as long as its neighbours may be found in parts.
            prop_assert_eq!(missing.intersect(&dropped.fragment), Some(missing));
        }
    }

    #[test]
    fn a_changed_byte_changes_the_digest_and_splits_replicas(
        case in case(), at in any::<usize>(), flip in 1_u8..,
    ) {
        prop_assume!(!case.bytes.is_empty());
        let mut other = case.clone();
        let at = at % case.bytes.len();
        other.bytes[at] ^= flip;
        prop_assert_ne!(
            digest_whole(&case.key, &case.bytes).unwrap(),
            digest_whole(&case.key, &other.bytes).unwrap()
        );
        let mut pieces = case.pieces();
        pieces.extend(other.pieces());
        let found = fold(&case.key, &pieces);
        prop_assert!(matches!(found, Err(FoldError::ReplicaDiffers { .. })), "{:?}", found);
    }

    #[test]
    fn ranges_of_whole_blocks_add_up(case in case(), cut in any::<u64>()) {
        let middle = case.key.block_start(cut % (case.key.bytes() + 1));
        let (front, back) = case.bytes.split_at(middle as usize);
        let sum = digest_range(&case.key, 0, front).unwrap().0
            .wrapping_add(digest_range(&case.key, middle, back).unwrap().0);
        prop_assert_eq!(Hex128(sum), digest_whole(&case.key, &case.bytes).unwrap());
    }
}

fn piece(key: &SourceKey, spans: &[(u64, u64)], fill: u8) -> Piece {
    let fragment = Fragment(spans.iter().map(|&(a, b)| Span::new(a, b)).collect());
    let bytes = vec![fill; (fragment.volume() * key.dtype.bytes()) as usize];
    digest_piece(key, &fragment, &bytes).unwrap()
}

#[test]
fn boxes_that_overlap_without_being_replicas_are_named() {
    let key = SourceKey::new("a", Dtype::Bf16, &[4, 20]).unwrap();
    let pieces = [piece(&key, &[(0, 3), (0, 20)], 1), piece(&key, &[(2, 4), (0, 20)], 1)];
    let found = fold(&key, &pieces).unwrap_err();
    assert_eq!(
        found.to_string(),
        "the pieces [0..3, 0..20] and [2..4, 0..20] overlap in [2..3, 0..20]; \
         send disjoint boxes or equal ones"
    );
    let apart = [piece(&key, &[(0, 2), (0, 20)], 1), piece(&key, &[(2, 4), (0, 20)], 1)];
    assert!(fold(&key, &apart).is_ok());
}

#[test]
fn a_gap_is_named_by_its_first_box() {
    let key = SourceKey::new("a", Dtype::Bf16, &[4, 20]).unwrap();
    let found = fold(&key, &[piece(&key, &[(0, 4), (0, 10)], 1)]).unwrap_err();
    assert_eq!(
        found.to_string(),
        "no piece holds [0..4, 10..20] (40 elements missing in all); \
         send the pieces of every rank"
    );
}

#[test]
fn a_piece_of_another_geometry_is_refused() {
    let key = SourceKey::new("a", Dtype::Bf16, &[4, 20]).unwrap();
    let mut pieces = vec![piece(&key, &[(0, 4), (0, 10)], 1), piece(&key, &[(0, 4), (10, 20)], 1)];
    assert!(fold(&key, &pieces).is_ok());
    pieces[0].remnants[1].start = 1;
    assert!(matches!(fold(&key, &pieces), Err(FoldError::Remnants { .. })));
    pieces[0] = piece(&key, &[(0, 4), (0, 10)], 1);
    pieces[0].remnants.pop();
    assert!(matches!(fold(&key, &pieces), Err(FoldError::Remnants { .. })));
    let outside = Piece {
        fragment: Fragment(vec![Span::new(0, u64::MAX), Span::new(0, 20)]),
        sum: Hex128(0),
        remnants: vec![],
    };
    assert!(matches!(fold(&key, &[outside]), Err(FoldError::Fragment(_))));
}

#[test]
fn equal_rows_in_another_order_have_another_digest() {
    let key = SourceKey::new("a", Dtype::U8, &[2, 32]).unwrap();
    let (a, b) = ([1_u8; 32], [2_u8; 32]);
    let digest = |rows: [[u8; 32]; 2]| digest_whole(&key, rows.as_flattened()).unwrap();
    assert_ne!(digest([a, b]), digest([b, a]));
}

#[test]
fn zeros_at_the_end_of_a_row_count() {
    // The padding of a short block is zero too; the shape tells them apart.
    let short = SourceKey::new("a", Dtype::U8, &[3]).unwrap();
    let long = SourceKey::new("a", Dtype::U8, &[4]).unwrap();
    assert_ne!(
        digest_whole(&short, &[1, 2, 3]).unwrap(),
        digest_whole(&long, &[1, 2, 3, 0]).unwrap()
    );
}

#[test]
fn wrong_lengths_and_unaligned_ranges_are_refused() {
    let key = SourceKey::new("a", Dtype::U8, &[2, 40]).unwrap();
    assert!(matches!(digest_whole(&key, &[0; 79]), Err(PieceError::Length { .. })));
    assert!(matches!(digest_range(&key, 0, &[0; 33]), Err(PieceError::Unaligned { .. })));
    assert!(matches!(digest_range(&key, 72, &[0; 9]), Err(PieceError::Unaligned { .. })));
    assert!(digest_range(&key, 32, &[0; 8]).is_ok());
    let row = Fragment(vec![Span::new(0, 1), Span::new(0, 40)]);
    assert!(matches!(digest_piece(&key, &row, &[0; 39]), Err(PieceError::Length { .. })));
}

#[test]
fn a_piece_survives_json() {
    let key = SourceKey::new("a", Dtype::Bf16, &[2, 20]).unwrap();
    let piece = piece(&key, &[(0, 2), (3, 20)], 0xa7);
    let text = serde_json::to_string(&piece).unwrap();
    assert_eq!(serde_json::from_str::<Piece>(&text).unwrap(), piece);
    let odd = text.replacen("\"bits\":\"a7", "\"bits\":\"a", 1);
    assert!(serde_json::from_str::<Piece>(&odd).is_err());
}

/// The tables of `docs/digest.md`. Bytes of a vector: byte `i` is `(7 i + 3) mod 256`.
#[test]
fn the_written_vectors_are_met() {
    let text = include_str!("../../../../docs/digest.md");
    let rows = |heading: &str| -> Vec<Vec<String>> {
        let (_, after) = text.split_once(heading).unwrap();
        let lines = after.lines().skip_while(|line| !line.starts_with('|'));
        let table = lines.take_while(|line| line.starts_with('|')).skip(2);
        let cells = |line: &str| {
            line.trim_matches('|')
                .split('|')
                .map(|c| c.trim().trim_matches('`').to_owned())
                .collect()
        };
        table.map(cells).collect()
    };
    let pattern = |length: u64| (0..length).map(|i| (i * 7 + 3) as u8).collect::<Vec<u8>>();
    let mut all = std::collections::BTreeMap::new();
    for row in rows("### Sources") {
        let dtype: Dtype = serde_json::from_str(&format!("\"{}\"", row[1])).unwrap();
        let shape: Vec<u64> = serde_json::from_str(&row[2]).unwrap();
        let key = SourceKey::new(&row[0], dtype, &shape).unwrap();
        assert_eq!(format!("{:016x}", key.words()[0]), row[3], "first key word of {row:?}");
        let digest = digest_whole(&key, &pattern(key.bytes())).unwrap();
        assert_eq!(digest.to_string(), row[4], "{row:?}");
        all.insert(row[0].clone(), SourceDigest { dtype, shape, digest });
    }
    assert_eq!(all.len(), 7);
    let contents = rows("### Contents");
    assert_eq!(contents.len(), 4);
    for row in contents {
        assert_eq!(content(&pattern(row[0].parse().unwrap())).to_string(), row[1], "{row:?}");
    }
    assert_eq!(checkpoint_digest(&all), rows("### Checkpoint")[0][0]);
}
