//! Every kernel against a straightforward reference; extents; bit equality across batches, threads
//! and ranks.

mod attention;
mod elementwise;
mod encoder;
mod experts;
mod extents;
mod grouped;
mod latent;
mod lora;
mod matmul;
mod ranks;
mod state_space;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::NoUninit;
use coldproof_contract::words::Address;
use half::bf16;

use super::Kernel;
use crate::arena::{ArenaConfig, Placement, Region};
use crate::collective::Collective;
use crate::device::{Device, DeviceError};
use crate::groups::Groups;

/// A device with helpers to put values in and take them out.
pub(super) struct Rig {
    pub(super) device: Device,
}

impl Rig {
    pub(super) fn single() -> Self {
        Self::new(Groups::single())
    }

    fn new(groups: Groups) -> Self {
        let config = ArenaConfig { base: 1 << 40, seed: 11, placement: Placement::Forward };
        let cancel = Arc::new(AtomicBool::new(false));
        let mut device = Device::new(config, groups, cancel).unwrap();
        // A kernel that waits for ever fails its test.
        device.set_deadline(Some(Instant::now() + Duration::from_secs(60)));
        Self { device }
    }

    /// A block of that many bytes.
    pub(super) fn room(&mut self, bytes: usize) -> Address {
        self.device.alloc(Region::Runtime, bytes as u64, "test").unwrap().address
    }

    /// A block with these values.
    pub(super) fn put<T: NoUninit>(&mut self, values: &[T]) -> Address {
        let address = self.room(size_of_val(values));
        self.device.write(address, bytemuck::cast_slice(values)).unwrap();
        address
    }

    pub(super) fn get(&self, address: Address, count: usize) -> Vec<f32> {
        self.device.view(address, count).unwrap().to_vec()
    }

    pub(super) fn launch(&mut self, kernel: impl Into<Kernel>) {
        self.device.launch(kernel.into()).unwrap();
    }

    pub(super) fn try_launch(&mut self, kernel: impl Into<Kernel>) -> Result<(), DeviceError> {
        self.device.launch(kernel.into())
    }
}

/// Runs `body` on `count` ranks at once and returns their results in rank order.
pub(super) fn on_ranks<R: Send>(count: usize, body: impl Fn(&mut Rig) -> R + Sync) -> Vec<R> {
    let ends = Collective::group(count).into_iter().map(Groups::tensor).collect();
    with_groups(ends, body)
}

/// The same with other groups.
pub(super) fn with_groups<R: Send>(
    groups: Vec<Groups>,
    body: impl Fn(&mut Rig) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let start = |groups| scope.spawn(move || body(&mut Rig::new(groups)));
        let threads: Vec<_> = groups.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Values in -1..1, the same for the same seed.
pub(super) fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// [`values`] rounded to bf16.
pub(super) fn weights(seed: u64, count: usize) -> Vec<bf16> {
    values(seed, count).into_iter().map(bf16::from_f32).collect()
}

/// `x[m, k] · wᵀ` in f64.
pub(super) fn exact(x: &[f32], w: &[bf16], k: usize) -> Vec<f64> {
    let row = |x: &[f32], w: &[bf16]| -> f64 {
        x.iter().zip(w).map(|(x, w)| f64::from(*x) * w.to_f64()).sum()
    };
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| row(x, w))).collect()
}

pub(super) fn assert_near(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(*found) - expected).abs();
        assert!(difference <= tolerance, "element {index}: {found} against {expected}");
    }
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Columns `start..end` of each row of `[rows, columns]`.
pub(super) fn columns<T: Copy>(all: &[T], width: usize, start: usize, end: usize) -> Vec<T> {
    all.chunks_exact(width).flat_map(|row| row[start..end].iter().copied()).collect()
}

/// `[rows, columns]` in panels of 16 columns.
pub(super) fn packed(matrix: &[bf16], width: usize) -> Vec<bf16> {
    let panels = (0..width).step_by(16);
    panels.flat_map(|start| columns(matrix, width, start, (start + 16).min(width))).collect()
}
