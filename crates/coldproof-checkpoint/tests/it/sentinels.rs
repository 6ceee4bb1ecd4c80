//! Sentinels: the digits of every element lead back to it, and nothing else leads anywhere.

use coldproof_checkpoint::{Checkpoint, Origin, SentinelPlan, digit_of};
use coldproof_contract::words::Dtype;

use crate::support::{Scratch, fixtures, spec};

#[test]
fn every_element_of_a_fixture_decodes_to_itself() {
    let from = Checkpoint::open(&fixtures().join("qwen3_moe/A")).unwrap();
    let plan = SentinelPlan::of(&from).unwrap();
    // 600,288 elements: three digits of base 256, and the check.
    assert_eq!((plan.base(), plan.digits()), (256, 4));
    let scratch = Scratch::new();
    plan.write(&from, &[], scratch.path()).unwrap();
    let loads: Vec<Checkpoint> = (0..plan.digits())
        .map(|digit| Checkpoint::open(&scratch.path().join(digit.to_string())).unwrap())
        .collect();
    for (source, spec) in plan.sources().iter().enumerate() {
        let bytes: Vec<Vec<u8>> =
            loads.iter().map(|load| load.get(&spec.name).unwrap().read().unwrap()).collect();
        for (element, origin) in (0..).zip(plan.decode_slot(spec.dtype, &bytes)) {
            assert_eq!(origin, Some(Origin { source, element }));
        }
        assert_eq!(plan.index_of(&spec.name), Some(source));
        assert_eq!(plan.tensor(source, 1).unwrap(), bytes[1]);
    }
    assert!(scratch.path().join("3/config.json").is_file());
    assert!(!scratch.path().join("4").exists());
    assert_eq!(plan.write(&from, &[], scratch.path()).unwrap_err().code(), "output-not-empty");
}

#[test]
fn narrow_dtypes_take_a_smaller_base_and_more_checkpoints() {
    for (dtype, base, digits) in [
        (Dtype::Bf16, 256, 3),
        (Dtype::F16, 256, 3),
        (Dtype::F32, 256, 3),
        (Dtype::U8, 256, 3),
        (Dtype::I8, 128, 3),
        (Dtype::F8E8M0, 255, 3),
        (Dtype::F8E4M3, 16, 4),
        (Dtype::F8E5M2, 8, 5),
        (Dtype::Bool, 2, 11),
    ] {
        let plan = SentinelPlan::new(vec![
            spec("a", dtype, &[40, 20]),
            spec("b", Dtype::F32, &[]),
            spec("c", Dtype::F32, &[0]),
            spec("d", Dtype::F32, &[3]),
        ])
        .unwrap();
        assert_eq!((plan.base(), plan.digits()), (base, digits), "{dtype}");
        for (source, spec) in plan.sources().iter().enumerate() {
            let loads: Vec<Vec<u8>> =
                (0..digits).map(|digit| plan.tensor(source, digit).unwrap()).collect();
            for (element, origin) in (0..).zip(plan.decode_slot(spec.dtype, &loads)) {
                assert_eq!(origin, Some(Origin { source, element }), "{dtype}");
            }
        }
    }
}

#[test]
fn memory_that_was_never_written_decodes_to_nothing() {
    let plan = SentinelPlan::new(vec![spec("a", Dtype::Bf16, &[60_000])]).unwrap();
    let loads = |bits: [u16; 3]| bits.map(|bits| bits.to_le_bytes());
    let decode = |bits| plan.decode_slot(Dtype::Bf16, &loads(bits))[0];
    // Zeros, negative zero, poison, a value that is no integer, an integer too large.
    for bits in [0, 0x8000, 0xdead, 0xffff, 0x7fc0, 0x3fc0, 0x4380] {
        assert_eq!(decode([bits; 3]), None, "{bits:x}");
    }
    // Of all digits, about one in 256 checks; a whole slot of constants never looks alive.
    let alive = (0..=255).filter(|&digit| plan.decode(&[digit; 3]).is_some()).count();
    assert!(alive <= 4, "{alive}");
    let any = (0..=u16::MAX).filter(|&low| {
        let [a, b] = low.to_le_bytes();
        plan.decode(&[a, b, 7]).is_some()
    });
    let any = any.count();
    assert!((100..600).contains(&any), "{any}");
    assert_eq!(plan.decode(&[1, 0]), None);
    assert_eq!(plan.decode(&[]), None);
}

#[test]
fn a_torn_slot_rarely_decodes() {
    // The digits of two neighbours, mixed: the check digit of one does not fit the other.
    let plan = SentinelPlan::new(vec![spec("a", Dtype::Bf16, &[60_000])]).unwrap();
    let loads: Vec<Vec<u8>> = (0..3).map(|digit| plan.tensor(0, digit).unwrap()).collect();
    let at = |load: usize, element: usize| {
        digit_of(Dtype::Bf16, &loads[load][2 * element..2 * element + 2]).unwrap()
    };
    let wrong =
        (0..59_000).filter(|&i| plan.decode(&[at(0, i + 1), at(1, i + 1), at(2, i)]).is_some());
    let wrong = wrong.count();
    assert!(wrong < 600, "{wrong}");
}

#[test]
fn a_plan_without_elements_or_with_too_many_is_refused() {
    assert_eq!(SentinelPlan::new(vec![]).unwrap_err().code(), "nothing-to-change");
    let huge = vec![spec("a", Dtype::U8, &[u64::MAX]), spec("b", Dtype::U8, &[9])];
    assert_eq!(SentinelPlan::new(huge).unwrap_err().code(), "too-many-elements");
}
