//! Kernels of a vision tower.

use super::*;
use crate::kernels::{Activate, EncoderAttention, LayerNorm, Patches, TowerRows};
use coldproof_checkpoint::arch::EncoderActivation;

#[test]
fn a_patch_has_its_rows_channel_by_channel() {
    let (channels, size, patch) = (2, 6, 3);
    let pixels: Vec<f32> = (0..72u16).map(f32::from).collect();
    let mut rig = Rig::single();
    let (source, y) = (rig.put(&pixels), rig.room(72 * 4));
    rig.launch(Patches { pixels: source, y, channels, size, patch });
    let found = rig.get(y, 72);
    let at = |channel: usize, row: usize, column: usize| pixels[channel * 36 + row * 6 + column];
    for (index, found) in found.iter().enumerate() {
        let (patch, within) = (index / 18, index % 18);
        let (top, left) = (patch / 2 * 3, patch % 2 * 3);
        let (channel, row, column) = (within / 9, within % 9 / 3, within % 3);
        assert_eq!(*found, at(channel, top + row, left + column), "{index}");
    }
    let error = rig.try_launch(Patches { pixels: source, y, channels, size, patch: 4 });
    assert!(matches!(error, Err(DeviceError::Assert { kernel: "patches", .. })));
}

#[test]
fn the_class_token_is_the_first_row_and_every_row_has_its_position() {
    let (m, width) = (3, 4);
    let (patches, class, positions) = (values(1, 8), weights(2, 4), weights(3, 12));
    let mut rig = Rig::single();
    let y = rig.room(m * width * 4);
    let (p, c, at) = (rig.put(&patches), rig.put(&class), rig.put(&positions));
    rig.launch(TowerRows { patches: p, class: c, positions: at, y, m, width });
    let rows =
        class.iter().map(|value| value.to_f64()).chain(patches.iter().map(|v| f64::from(*v)));
    let expected: Vec<f64> = rows.zip(&positions).map(|(row, at)| row + at.to_f64()).collect();
    assert_near(&rig.get(y, m * width), &expected, 1e-6);
}

#[test]
fn a_layer_norm_agrees_with_f64() {
    let (m, width) = (3, 96);
    let x: Vec<f32> = values(1, m * width).iter().map(|value| value + 3.0).collect();
    let (weight, bias) = (weights(2, width), weights(3, width));
    let expected: Vec<f64> = x
        .chunks_exact(width)
        .flat_map(|row| {
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
            let scale = (variance / width as f64 + 1e-5).sqrt().recip();
            let normed = row.iter().map(move |x| (f64::from(*x) - mean) * scale);
            let each = normed.zip(&weight).zip(&bias);
            each.map(|((x, w), b)| x * w.to_f64() + b.to_f64()).collect::<Vec<_>>()
        })
        .collect();
    let mut rig = Rig::single();
    let (x, weight, bias) = (rig.put(&x), rig.put(&weight), rig.put(&bias));
    rig.launch(LayerNorm { x, weight, bias, y: x, m, width, eps: 1e-5 });
    assert_near(&rig.get(x, m * width), &expected, 1e-4);
}

#[test]
fn every_row_attends_to_every_row_head_by_head() {
    let (m, heads, head_dim, scale) = (5, 2, 8, 0.35);
    let width = heads * head_dim;
    let qkv = values(4, m * 3 * width);
    let at = |row: usize, part: usize, head: usize| {
        let first = row * 3 * width + part * width + head * head_dim;
        qkv[first..first + head_dim].iter().map(|value| f64::from(*value)).collect::<Vec<f64>>()
    };
    let mut expected = Vec::new();
    for (row, head) in (0..m).flat_map(|row| (0..heads).map(move |head| (row, head))) {
        let score = |other: usize| -> f64 {
            let products = at(row, 0, head).into_iter().zip(at(other, 1, head));
            (products.map(|(q, k)| q * k).sum::<f64>() * f64::from(scale)).exp()
        };
        let sum: f64 = (0..m).map(score).sum();
        for element in 0..head_dim {
            let values = (0..m).map(|other| score(other) / sum * at(other, 2, head)[element]);
            expected.push(values.sum());
        }
    }
    let mut rig = Rig::single();
    let (qkv, y) = (rig.put(&qkv), rig.room(m * width * 4));
    rig.launch(EncoderAttention { qkv, y, m, heads, head_dim, scale });
    assert_near(&rig.get(y, m * width), &expected, 1e-5);
}

#[test]
fn activations_agree_with_f64() {
    // From `math.exp` and `math.erf` in f64.
    let x: [f32; 5] = [-3.0, -0.5, 0.0, 1.0, 2.5];
    for (activation, expected) in [
        (
            EncoderActivation::QuickGelu,
            [-0.018_071_31, -0.149_611_56, 0.0, 0.845_795_77, 2.465_013_83],
        ),
        (EncoderActivation::Gelu, [-0.004_049_69, -0.154_268_77, 0.0, 0.841_344_75, 2.484_475_84]),
    ] {
        let mut rig = Rig::single();
        let y = rig.put(&x);
        rig.launch(Activate { activation, y, m: 1, width: 5 });
        assert_near(&rig.get(y, 5), &expected, 1e-5);
    }
}
