//! The paged cache and attention over it.

use super::*;
use crate::kernels::{KvWrite, PagedAttention, Pages, Paging, Tables};

const BLOCK: usize = 4;
const HEAD: usize = 8;

/// One sequence of fused rows.
struct Sequence {
    qkv: Vec<f32>,
    q_heads: usize,
    kv_heads: usize,
}

impl Sequence {
    fn new(rows: usize, q_heads: usize, kv_heads: usize) -> Self {
        let width = (q_heads + 2 * kv_heads) * HEAD;
        Self { qkv: values(21, rows * width), q_heads, kv_heads }
    }

    fn width(&self) -> usize {
        (self.q_heads + 2 * self.kv_heads) * HEAD
    }

    fn rows(&self) -> usize {
        self.qkv.len() / self.width()
    }

    fn head(&self, row: usize, head: usize) -> Vec<f64> {
        let first = row * self.width() + head * HEAD;
        self.qkv[first..first + HEAD].iter().map(|value| f64::from(*value)).collect()
    }

    fn exact(&self, row: usize, window: Option<usize>) -> Vec<f64> {
        let group = self.q_heads / self.kv_heads;
        (0..self.q_heads)
            .flat_map(|head| self.exact_head(row, head, head / group, window))
            .collect()
    }

    /// The sum of the exponentials of a head's scores.
    fn total(&self, row: usize, head: usize) -> f64 {
        let kv_head = head / (self.q_heads / self.kv_heads);
        let q = self.head(row, head);
        let score = |position: usize| {
            let key = self.head(position, self.q_heads + kv_head);
            q.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>() / (HEAD as f64).sqrt()
        };
        (0..=row).map(|position| score(position).exp()).sum()
    }

    fn exact_head(
        &self,
        row: usize,
        head: usize,
        kv_head: usize,
        window: Option<usize>,
    ) -> Vec<f64> {
        let q = self.head(row, head);
        let score = |position: usize| {
            let key = self.head(position, self.q_heads + kv_head);
            q.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>() / (HEAD as f64).sqrt()
        };
        let shares: Vec<f64> = (0..=row)
            .map(|position| {
                let hidden = window.is_some_and(|window| row - position >= window);
                if hidden { 0.0 } else { score(position).exp() }
            })
            .collect();
        let total: f64 = shares.iter().sum();
        let mut y = vec![0.0; HEAD];
        for (position, share) in shares.iter().enumerate() {
            let value = self.head(position, self.q_heads + self.kv_heads + kv_head);
            y.iter_mut().zip(value).for_each(|(y, value)| *y += share / total * value);
        }
        y
    }
}

struct Setup {
    rig: Rig,
    write: KvWrite,
    attend: PagedAttention,
}

/// Both kernels over `rows` of a sequence, at `positions`, with these block tables.
fn setup(sequence: &Sequence, positions: &[i32], tables: &[i32], layout: Tables) -> Setup {
    let mut rig = Rig::single();
    let m = positions.len();
    let (q_heads, kv_heads) = (sequence.q_heads, sequence.kv_heads);
    let blocks = 8;
    let max_blocks = match layout {
        Tables::Shared => tables.len(),
        Tables::PerRow => tables.len() / m,
    };
    let paging = Paging {
        cache: rig.room(blocks * 2 * BLOCK * kv_heads * HEAD * 4),
        pages: Pages {
            tables: rig.put(tables),
            positions: rig.put(positions),
            layout,
            blocks,
            block_size: BLOCK,
            max_blocks,
        },
        kv_heads,
        head_dim: HEAD,
    };
    let qkv = rig.put(&sequence.qkv[..m * sequence.width()]);
    let y = rig.room(m * q_heads * HEAD * 4);
    let scale = 1.0 / (HEAD as f32).sqrt();
    let write = KvWrite { qkv, paging, m, q_heads };
    let attend = PagedAttention { qkv, paging, y, m, q_heads, scale, window: None, sinks: None };
    Setup { rig, write, attend }
}

#[test]
fn attention_over_scattered_blocks_agrees_with_f64() {
    for (q_heads, kv_heads) in [(4, 2), (3, 3), (4, 1)] {
        let sequence = Sequence::new(11, q_heads, kv_heads);
        let positions: Vec<i32> = (0..11).collect();
        let mut setup = setup(&sequence, &positions, &[6, 1, 4], Tables::Shared);
        setup.rig.launch(setup.write);
        for window in [None, Some(1), Some(5), Some(11), Some(99)] {
            setup.attend.window = window;
            setup.rig.launch(setup.attend.clone());
            let rows = 0..sequence.rows();
            let expected: Vec<f64> = rows.flat_map(|row| sequence.exact(row, window)).collect();
            assert_near(&setup.rig.get(setup.attend.y, expected.len()), &expected, 1e-5);
        }
    }
}

#[test]
fn a_sink_takes_its_share_and_gives_no_value() {
    let sequence = Sequence::new(6, 4, 2);
    let positions: Vec<i32> = (0..6).collect();
    let mut setup = setup(&sequence, &positions, &[2, 0], Tables::Shared);
    setup.rig.launch(setup.write);
    let sinks = [0.5f32, -30.0, 30.0, -1.0];
    setup.attend.sinks = Some(setup.rig.put(&sinks));
    setup.rig.launch(setup.attend.clone());
    let mut expected = Vec::new();
    for row in 0..6 {
        for (head, y) in sequence.exact(row, None).chunks(HEAD).enumerate() {
            let total = sequence.total(row, head);
            let kept = total / (total + f64::from(sinks[head]).exp());
            expected.extend(y.iter().map(|y| y * kept));
        }
    }
    assert_near(&setup.rig.get(setup.attend.y, expected.len()), &expected, 1e-5);
}

#[test]
fn a_decoded_row_has_the_bits_of_the_same_row_in_a_prefill() {
    let sequence = Sequence::new(10, 4, 2);
    let positions: Vec<i32> = (0..10).collect();
    let mut prefill = setup(&sequence, &positions, &[0, 1, 2], Tables::Shared);
    prefill.rig.launch(prefill.write);
    prefill.rig.launch(prefill.attend.clone());
    let width = 4 * HEAD;
    let expected = prefill.rig.get(prefill.attend.y, 10 * width);
    // Two sequences of a batch: the same tokens in other blocks, and a row of padding between.
    let mut decode = setup(&sequence, &[0, -1, 0], &[7, 3, 5, 0, 0, 0, 2, 6, 4], Tables::PerRow);
    for step in 0..10 {
        let row = &sequence.qkv[step * sequence.width()..(step + 1) * sequence.width()];
        let batch = [row, row, row].concat();
        decode.rig.device.write(decode.attend.qkv, bytemuck::cast_slice(&batch)).unwrap();
        let positions = [step as i32, -1, step as i32];
        let at = decode.attend.paging.pages.positions;
        decode.rig.device.write(at, bytemuck::cast_slice(&positions)).unwrap();
        decode.rig.launch(decode.write.clone());
        decode.rig.launch(decode.attend.clone());
        let found = decode.rig.get(decode.attend.y, 3 * width);
        let expected = bits(&expected[step * width..(step + 1) * width]);
        assert_eq!(bits(&found[..width]), expected);
        assert_eq!(found[width..2 * width], vec![0.0; width]);
        assert_eq!(bits(&found[2 * width..]), expected);
    }
}

#[test]
fn a_position_beyond_the_table_is_an_assertion() {
    let sequence = Sequence::new(1, 1, 1);
    for position in [8, -2, i32::MAX] {
        let mut setup = setup(&sequence, &[position], &[0, 1], Tables::Shared);
        let error = setup.rig.try_launch(setup.write).unwrap_err();
        assert!(matches!(error, DeviceError::Assert { kernel: "kv_write", .. }), "{error}");
    }
}

#[test]
fn a_block_table_of_garbage_is_an_illegal_access() {
    let sequence = Sequence::new(1, 1, 1);
    for block in [i32::MAX, i32::MIN] {
        let mut setup = setup(&sequence, &[0], &[block], Tables::Shared);
        let error = setup.rig.try_launch(setup.attend).unwrap_err();
        assert!(matches!(error, DeviceError::IllegalAccess { kernel: "paged_attention", .. }));
    }
}
