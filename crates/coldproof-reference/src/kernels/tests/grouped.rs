//! The choice of experts by groups.

use super::*;
use crate::kernels::GroupedTopK;

/// Ids and weights of one row.
fn choose(
    logits: &[f32],
    correction: &[f32],
    (groups, chosen): (usize, usize),
    top_k: usize,
    renormalise: bool,
) -> Result<(Vec<i32>, Vec<f32>), DeviceError> {
    let mut rig = Rig::single();
    let correction: Vec<bf16> = correction.iter().copied().map(bf16::from_f32).collect();
    let (at, correction) = (rig.put(logits), rig.put(&correction));
    let (ids, weights, experts) = (rig.room(top_k * 4), rig.room(top_k * 4), logits.len());
    rig.try_launch(GroupedTopK {
        logits: at,
        correction,
        ids,
        weights,
        m: 1,
        experts,
        top_k,
        groups,
        chosen,
        renormalise,
        scale: 2.0,
    })?;
    Ok((rig.device.view(ids, top_k).unwrap().to_vec(), rig.get(weights, top_k)))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn a_group_counts_by_its_two_largest_and_others_are_closed() {
    // The second group has the largest score, the first the largest two.
    let logits = [1.0, 1.0, -9.0, 2.0, -9.0, -9.0];
    let (ids, weights) = choose(&logits, &[0.0; 6], (2, 1), 2, false).unwrap();
    assert_eq!(ids, [0, 1], "of equals the lower id comes first");
    assert_near(&weights, &[2.0 * sigmoid(1.0); 2], 1e-6);
    let (ids, _) = choose(&logits, &[0.0; 6], (2, 2), 3, false).unwrap();
    assert_eq!(ids, [3, 0, 1]);
}

#[test]
fn a_correction_chooses_and_does_not_weigh() {
    let logits = [1.0, 0.0, 3.0, 2.0];
    let corrections = [0.0, 1.0, -1.0, 0.0];
    let (ids, weights) = choose(&logits, &corrections, (1, 1), 2, true).unwrap();
    assert_eq!(ids, [1, 3]);
    let (one, three) = (sigmoid(0.0), sigmoid(2.0));
    let total = one + three;
    assert_near(&weights, &[2.0 * one / total, 2.0 * three / total], 1e-6);
    let (ids, _) = choose(&logits, &[0.0; 4], (1, 1), 2, true).unwrap();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn equal_groups_are_taken_from_the_first() {
    let (ids, _) = choose(&[0.5; 6], &[0.0; 6], (3, 2), 4, true).unwrap();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn a_choice_that_the_groups_do_not_hold_is_an_assertion() {
    for (groups, chosen, top_k) in [(4, 1, 1), (2, 3, 1), (2, 1, 4), (0, 0, 0)] {
        let result = choose(&[0.0; 6], &[0.0; 6], (groups, chosen), top_k, true);
        assert!(matches!(result, Err(DeviceError::Assert { .. })), "{groups} {chosen} {top_k}");
    }
}
