//! Positive control: change one live slot in place, replay, and see whether the replay shows it
//! (R68). A replay that shows nothing proves nothing about that slot.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::digest;
use coldproof_contract::evidence::{ControlFact, Fact, SlotFact, UncontrolledFact};
use coldproof_contract::words::{ByteRange, Dtype, Hex128, Rank, SlotKind, SlotName, StepName};

use crate::driver::{ArmResult, Driver};
use crate::engine::{EngineError, EngineUnderTest, GenerateRequest, Output, Reply};
use crate::session::Slots;

/// Up to this many slots of a rank, each is controlled; beyond, one of each kind of layer.
const EACH_MAX: usize = 96;

/// One thing to change.
struct Target<'s> {
    rank: Rank,
    slot: &'s SlotFact,
    part: String,
    range: ByteRange,
    dtype: Dtype,
}

/// Runs the control on every slot of every rank that a forward should read.
///
/// # Errors
/// As [`Driver::step`].
pub(crate) fn run(
    driver: &mut Driver<'_, '_>,
    slots: &Slots,
    request: &GenerateRequest,
) -> ArmResult<()> {
    let (targets, left) = targets(slots);
    let facts = driver.step(StepName::Control, |engine| {
        // A replay shows the slots of the replica that serves it, and of no other.
        let mut of: BTreeMap<u32, (GenerateRequest, Hex128)> = BTreeMap::new();
        for replica in targets.iter().map(|target| target.rank.dp).collect::<BTreeSet<_>>() {
            let request = request.on(replica);
            let before = replay(engine, &request)?;
            of.insert(replica, (request, before));
        }
        let one = |target: &Target<'_>| {
            let (request, before) = of.get(&target.rank.dp)?;
            let control = control(engine, target, request, *before);
            Some(control.map(|fact| (target.rank, fact)))
        };
        targets.iter().filter_map(one).collect::<Reply<Vec<_>>>()
    })?;
    let left = left.into_iter().map(|(rank, slot)| {
        let reason = format!(
            "of more than {EACH_MAX} slots of a rank, one of each kind of layer was changed"
        );
        (rank, Fact::Uncontrolled(UncontrolledFact { slot, reason }))
    });
    for (rank, fact) in facts.into_iter().chain(left) {
        driver.record(rank, fact);
    }
    Ok(())
}

/// One target's control, or why it had none.
fn control(
    engine: &mut dyn EngineUnderTest,
    target: &Target<'_>,
    request: &GenerateRequest,
    before: Hex128,
) -> Reply<Fact> {
    let slot = target.slot.slot.clone();
    match with_change(engine, target, request) {
        Ok(after) => {
            let part = target.part.clone();
            Ok(Fact::Control(ControlFact { slot, part, before, after }))
        }
        Err(EngineError::Unsupported { what: reason }) => {
            Ok(Fact::Uncontrolled(UncontrolledFact { slot, reason }))
        }
        Err(error) => Err(error),
    }
}

fn replay(engine: &mut dyn EngineUnderTest, request: &GenerateRequest) -> Reply<Hex128> {
    // The first row is the eager prefill's; only the rest was replayed.
    let Output { rows, draft_rows, .. } = engine.generate(request)?;
    let replayed = rows.iter().skip(1).chain(draft_rows.iter().skip(1));
    let bytes: Vec<u8> =
        replayed.flat_map(|(_, row)| row).flat_map(|value| value.to_bits().to_le_bytes()).collect();
    Ok(digest::content(&bytes))
}

/// Changes the target, replays, and puts the old bytes back whatever the replay did.
fn with_change(
    engine: &mut dyn EngineUnderTest,
    target: &Target<'_>,
    request: &GenerateRequest,
) -> Reply<Hex128> {
    let old = engine.read(target.rank, target.range)?;
    let mut new = old.clone();
    change(&mut new, target.dtype);
    engine.write(target.rank, target.range.address, &new)?;
    let after = replay(engine, request);
    if after.is_ok() {
        engine.write(target.rank, target.range.address, &old)?;
    }
    after
}

/// Doubles floats (a change of sign would cancel out in rotary tables), reverses indices.
fn change(bytes: &mut [u8], dtype: Dtype) {
    let size = dtype.bytes() as usize;
    match dtype {
        Dtype::Bf16 => bytes.chunks_exact_mut(2).for_each(|b| {
            let bits = u16::from_le_bytes([b[0], b[1]]);
            b.copy_from_slice(&double(u32::from(bits) << 16).to_le_bytes()[2..]);
        }),
        Dtype::F32 => bytes.chunks_exact_mut(4).for_each(|b| {
            let bits = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            b.copy_from_slice(&double(bits).to_le_bytes());
        }),
        _ => {
            let old = bytes.to_vec();
            for (new, old) in bytes.chunks_exact_mut(size).zip(old.chunks_exact(size).rev()) {
                new.copy_from_slice(old);
            }
        }
    }
}

/// Twice the value; zero becomes one, what cannot be doubled is halved.
fn double(bits: u32) -> u32 {
    const EXPONENT: u32 = 0x7f80_0000;
    const STEP: u32 = 0x0080_0000;
    match bits & EXPONENT {
        0 => 0x3f80_0000,
        exponent if exponent >= EXPONENT - STEP => bits - STEP,
        _ => bits + STEP,
    }
}

/// What is changed, and the slots that are left out.
fn targets(slots: &Slots) -> (Vec<Target<'_>>, Vec<(Rank, SlotName)>) {
    let read = |kind| matches!(kind, SlotKind::Parameter | SlotKind::Buffer | SlotKind::Derived);
    let mut by_rank: BTreeMap<Rank, Vec<&SlotFact>> = BTreeMap::new();
    for ((rank, _), slot) in slots.iter().filter(|(_, slot)| read(slot.slot_kind)) {
        by_rank.entry(*rank).or_default().push(slot);
    }
    let (mut targets, mut left) = (Vec::new(), Vec::new());
    for (rank, slots) in by_rank {
        let each = slots.len() <= EACH_MAX;
        let mut kinds = BTreeSet::new();
        for slot in slots {
            if each || kinds.insert(without_numbers(&slot.slot.0)) {
                targets.extend(parts(rank, slot));
            } else {
                left.push((rank, slot.slot.clone()));
            }
        }
    }
    (targets, left)
}

/// `model.layers.17.mlp` and `model.layers.3.mlp` are one kind.
fn without_numbers(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// A stack of experts is controlled expert by expert: a prompt need not reach each. A stack of
/// single rows is a convolution's.
fn parts(rank: Rank, slot: &SlotFact) -> Vec<Target<'_>> {
    let Some(print) = slot.fingerprint.as_ref().filter(|print| print.bytes() > 0) else {
        return Vec::new();
    };
    let whole = ByteRange { address: print.address, bytes: print.bytes() };
    let target = |part: String, range| Target { rank, slot, part, range, dtype: print.dtype };
    match slot.logical_shape.as_slice() {
        [experts, rows, _] if *experts > 0 && *rows > 1 => {
            let bytes = whole.bytes / experts;
            let expert = |index: u64| {
                let range = ByteRange { address: whole.address.plus(index * bytes), bytes };
                target(format!("expert {index}"), range)
            };
            (0..*experts).map(expert).collect()
        }
        _ => vec![target(String::new(), whole)],
    }
}

#[cfg(test)]
mod tests {
    use coldproof_contract::words::{Address, Fingerprint, Generation, Packing, Policy, StorageId};

    use super::*;

    #[test]
    fn doubling_changes_every_float() {
        for value in [0.0_f32, 1.0, -3.5, 1e-40, f32::MAX, f32::INFINITY] {
            assert_ne!(double(value.to_bits()), value.to_bits(), "{value}");
        }
        assert_eq!(f32::from_bits(double((-3.5_f32).to_bits())), -7.0);
    }

    /// A rank with this many norms and one embedding.
    fn registered(norms: usize) -> Slots {
        let names = (0..norms).map(|layer| format!("layers.{layer}.norm"));
        let slot = |name: String| {
            let fingerprint = Fingerprint {
                storage: StorageId(1),
                address: Address(0x1000),
                storage_bytes: 8,
                shape: vec![4],
                stride: vec![1],
                offset: 0,
                dtype: Dtype::Bf16,
                device: "arena:0".to_owned(),
            };
            let fact = SlotFact {
                slot: name.as_str().into(),
                slot_kind: SlotKind::Parameter,
                fingerprint: Some(fingerprint),
                packing: Packing::Plain,
                logical_shape: vec![4],
                aliases: vec![],
                policy: Policy::Refresh,
                inputs: vec![],
                epoch: Generation(1),
                replaceable: false,
            };
            ((Rank::default(), fact.slot.clone()), fact)
        };
        names.chain(["embed".to_owned()]).map(slot).collect()
    }

    #[test]
    fn beyond_the_limit_each_slot_is_changed_or_named() {
        let slots = registered(EACH_MAX - 1);
        let (all, left) = targets(&slots);
        assert_eq!((all.len(), left.len()), (EACH_MAX, 0));
        let slots = registered(EACH_MAX);
        let (some, left) = targets(&slots);
        assert_eq!((some.len(), left.len()), (2, EACH_MAX - 1));
        let changed = some.iter().map(|target| target.slot.slot.clone());
        let named: BTreeSet<SlotName> = changed.chain(left.into_iter().map(|(_, s)| s)).collect();
        assert_eq!(named.len(), slots.len());
    }

    #[test]
    fn indices_stay_a_permutation() {
        let mut bytes: Vec<u8> = [2_i32, 0, 1].iter().flat_map(|i| i.to_le_bytes()).collect();
        change(&mut bytes, Dtype::I32);
        let read: Vec<u32> = crate::read_back::indices(&bytes);
        assert_eq!(read, [1, 0, 2]);
    }
}
