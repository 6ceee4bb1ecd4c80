//! Linear, with plain and with permuted columns.

use super::*;
use crate::kernels::{Linear, LinearPermuted, WORKSPACE_LOCKS};

fn linear(x: &[f32], w: &[bf16], k: usize, blocks: usize) -> Vec<f32> {
    let mut rig = Rig::single();
    let (m, n) = (x.len() / k, w.len() / k);
    let (x, w, y) = (rig.put(x), rig.put(w), rig.room(m * n * 4));
    rig.launch(Linear { x, w, y, m, k, n, blocks });
    rig.get(y, m * n)
}

#[test]
fn linear_agrees_with_f64() {
    for (m, k, n) in [(1, 160, 37), (5, 576, 100), (3, 8, 1), (2, 20, 65)] {
        let (x, w) = (values(1, m * k), weights(2, n * k));
        assert_near(&linear(&x, &w, k, 8), &exact(&x, &w, k), 2e-7 * k as f64);
    }
}

#[test]
fn a_k_that_blocks_do_not_divide_loses_no_column() {
    for (k, blocks) in [(13, 8), (3, 8), (17, 5)] {
        let (x, w) = (values(1, 2 * k), weights(2, 3 * k));
        assert_near(&linear(&x, &w, k, blocks), &exact(&x, &w, k), 1e-5);
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch() {
    let (k, n) = (160, 300);
    let (x, w) = (values(3, 33 * k), weights(4, n * k));
    let batch = linear(&x, &w, k, 8);
    for row in [0, 7, 32] {
        let alone = linear(&x[row * k..(row + 1) * k], &w, k, 8);
        assert_eq!(bits(&alone), bits(&batch[row * n..(row + 1) * n]));
    }
}

#[test]
fn outputs_have_the_same_bits_on_any_number_of_threads() {
    let (k, n) = (512, 1024);
    let (x, w) = (values(5, 3 * k), weights(6, n * k));
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        bits(&pool.install(|| linear(&x, &w, k, 8)))
    };
    let one = on(1);
    assert_eq!(one, on(2));
    assert_eq!(one, on(7));
}

#[test]
fn a_column_shard_has_the_bits_of_the_whole() {
    let (k, n) = (160, 96);
    let (x, w) = (values(7, 2 * k), weights(8, n * k));
    let whole = linear(&x, &w, k, 8);
    for (start, end) in [(0, 48), (48, 96), (10, 11)] {
        let shard = linear(&x, &w[start * k..end * k], k, 8);
        assert_eq!(bits(&shard), bits(&columns(&whole, n, start, end)));
    }
}

struct Permuted {
    rig: Rig,
    kernel: LinearPermuted,
}

/// Columns in reverse within each of 8 blocks, so that the blocks hold the same columns.
fn permuted(x: &[f32], w: &[bf16], k: usize) -> Permuted {
    let mut rig = Rig::single();
    let (m, n, block) = (x.len() / k, w.len() / k, k / 8);
    let order: Vec<usize> = (0..k).map(|j| j / block * block + (block - 1 - j % block)).collect();
    let stored: Vec<bf16> =
        w.chunks_exact(k).flat_map(|row| order.iter().map(|&j| row[j])).collect();
    let indices: Vec<i32> = order.iter().map(|&j| j as i32).collect();
    let kernel = LinearPermuted {
        x: rig.put(x),
        w: rig.put(&stored),
        permutation: rig.put(&indices),
        workspace: rig.put(&[0i32; WORKSPACE_LOCKS]),
        y: rig.room(m * n * 4),
        m,
        k,
        n,
        blocks: 8,
    };
    Permuted { rig, kernel }
}

#[test]
fn permuted_columns_give_the_product_and_leave_the_locks_free() {
    let (k, n) = (128, 40);
    let (x, w) = (values(9, 3 * k), weights(10, n * k));
    let Permuted { mut rig, kernel } = permuted(&x, &w, k);
    for _ in 0..2 {
        rig.launch(kernel.clone());
        assert_near(&rig.get(kernel.y, 3 * n), &exact(&x, &w, k), 1e-4);
        let locks: &[i32] = rig.device.view(kernel.workspace, WORKSPACE_LOCKS).unwrap();
        assert_eq!(locks, [0; WORKSPACE_LOCKS]);
    }
}

#[test]
fn garbage_in_any_lock_waits_until_the_deadline_and_names_kernel_and_word() {
    let k = 128;
    let (x, w) = (values(9, k), weights(10, k));
    for lock in [0, WORKSPACE_LOCKS - 1] {
        let Permuted { mut rig, kernel } = permuted(&x, &w, k);
        let address = kernel.workspace.plus(lock as u64 * 4);
        rig.device.write(address, bytemuck::bytes_of(&0x4343_4343i32)).unwrap();
        rig.device.set_deadline(Some(Instant::now() + Duration::from_millis(20)));
        let timeout = DeviceError::Timeout { kernel: "linear_permuted", address };
        assert_eq!(rig.try_launch(kernel), Err(timeout.clone()));
        assert_eq!(rig.device.read(address, 4), Err(timeout));
    }
}

#[test]
fn a_permutation_of_garbage_reads_what_lies_there() {
    let (k, n) = (128, 4);
    let (x, w) = (values(9, k), weights(10, n * k));
    let Permuted { mut rig, mut kernel } = permuted(&x, &w, k);
    // One entry, that of column 15, points right behind the row, at somebody else's 1000.
    let stray = 1000.0f32;
    kernel.x = rig.put(&[x.as_slice(), &[stray]].concat());
    rig.device.write(kernel.permutation, bytemuck::bytes_of(&(k as i32))).unwrap();
    rig.launch(kernel.clone());
    let strayed = [&x[..15], &[stray], &x[16..]].concat();
    assert_near(&rig.get(kernel.y, n), &exact(&strayed, &w, k), 1e-2);
    // One points beyond all memory.
    rig.device.write(kernel.permutation, bytemuck::bytes_of(&i32::MAX)).unwrap();
    let address = kernel.x.plus(4 * i32::MAX as u64);
    let illegal = DeviceError::IllegalAccess { kernel: "linear_permuted", address };
    assert_eq!(rig.try_launch(kernel), Err(illegal));
}
