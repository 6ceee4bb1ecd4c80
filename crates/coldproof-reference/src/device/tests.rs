//! Tests of the device: capture, replay, death.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use coldproof_contract::evidence::ArgAccess;

use super::*;
use crate::arena::Placement;
use crate::kernels::Add;

fn device() -> Device {
    let config = ArenaConfig { base: 1 << 40, seed: 5, placement: Placement::Forward };
    Device::new(config, Groups::single(), Arc::new(AtomicBool::new(false))).unwrap()
}

fn put(device: &mut Device, value: f32) -> Allocation {
    let block = device.alloc(Region::Weights, 4, "value").unwrap();
    device.write(block.address, bytemuck::bytes_of(&value)).unwrap();
    block
}

fn get(device: &Device, address: Address) -> f32 {
    device.view(address, 1).unwrap()[0]
}

/// A graph that adds two blocks into an activation of its own.
fn captured(device: &mut Device, a: Address, b: Address) -> (Graph, Address) {
    device.begin_capture("decode-1").unwrap();
    let y = device.alloc_activation(4, "sum").unwrap();
    device.launch(Add { a, b, y: y.address, m: 1, width: 1 }.into()).unwrap();
    device.free_activation(y).unwrap();
    (device.end_capture().unwrap(), y.address)
}

#[test]
fn a_capture_records_and_does_not_run() {
    let mut device = device();
    let (a, b) = (put(&mut device, 1.0), put(&mut device, 2.0));
    let (graph, y) = captured(&mut device, a.address, b.address);
    assert_ne!(get(&device, y), 3.0);
    assert!(device.drain_launches().is_empty());
    device.set_request("r");
    device.replay(&graph).unwrap();
    assert_eq!(get(&device, y), 3.0);
    let launches = device.drain_launches();
    assert_eq!(launches.len(), 1);
    assert_eq!(launches[0].graph.as_deref(), Some("decode-1"));
    assert_eq!((launches[0].request.as_str(), launches[0].kernel.as_str()), ("r", "add"));
}

#[test]
fn a_replay_sees_changes_in_place_and_no_rebind() {
    let mut device = device();
    let (a, b) = (put(&mut device, 1.0), put(&mut device, 2.0));
    let (graph, y) = captured(&mut device, a.address, b.address);
    device.write(a.address, bytemuck::bytes_of(&10.0f32)).unwrap();
    device.replay(&graph).unwrap();
    assert_eq!(get(&device, y), 12.0);
    // The new storage is right and nobody reads it; the old one still is what the replay reads.
    let rebound = put(&mut device, 100.0);
    device.free(a.storage).unwrap();
    device.replay(&graph).unwrap();
    assert_eq!(get(&device, y), 12.0);
    let other = put(&mut device, 50.0);
    assert_eq!(other.address, a.address);
    device.replay(&graph).unwrap();
    assert_eq!(get(&device, y), 52.0);
    assert_eq!(get(&device, rebound.address), 100.0);
}

#[test]
fn the_census_has_every_pointer_with_its_extent() {
    let mut device = device();
    let (a, b) = (put(&mut device, 1.0), put(&mut device, 2.0));
    let (graph, y) = captured(&mut device, a.address, b.address);
    let census = graph.census();
    assert_eq!(census.len(), 1);
    assert_eq!((census[0].graph.as_str(), census[0].kernel.as_str()), ("decode-1", "add"));
    let found: Vec<_> =
        census[0].args.iter().map(|a| (a.index, a.address, a.bytes, a.access)).collect();
    let expected = [
        (0, a.address, 4, ArgAccess::Read),
        (1, b.address, 4, ArgAccess::Read),
        (2, y, 4, ArgAccess::Write),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_graph_keeps_its_activations_until_it_is_released() {
    let mut device = device();
    let (a, b) = (put(&mut device, 1.0), put(&mut device, 2.0));
    let (graph, y) = captured(&mut device, a.address, b.address);
    let kept = graph.pool[0];
    assert_eq!((kept.address, kept.region), (y, Region::GraphPool));
    device.pressure().unwrap();
    assert_eq!(device.arena().allocation(kept.storage), Some(kept));
    device.release_graph(graph).unwrap();
    assert_eq!(device.arena().allocation(kept.storage), None);
}

#[test]
fn eager_activations_are_given_back() {
    let mut device = device();
    let first = device.alloc_activation(64, "x").unwrap();
    assert_eq!(first.region, Region::Runtime);
    device.free_activation(first).unwrap();
    assert_eq!(device.alloc_activation(64, "x").unwrap().address, first.address);
}

#[test]
fn a_replay_over_unmapped_memory_kills_the_device() {
    let mut device = device();
    let (a, b) = (put(&mut device, 1.0), put(&mut device, 2.0));
    let (graph, y) = captured(&mut device, a.address, b.address);
    device.unmap(Region::Weights).unwrap();
    // The host may not read it either, and lives on.
    assert!(matches!(device.read(a.address, 4), Err(DeviceError::Arena(_))));
    assert_eq!(device.dead(), None);
    let illegal = DeviceError::IllegalAccess { kernel: "add", address: a.address };
    assert_eq!(device.replay(&graph), Err(illegal.clone()));
    assert_eq!(device.map(Region::Weights), Err(illegal.clone()));
    assert_eq!(device.read(y, 4), Err(illegal.clone()));
    assert_eq!(device.alloc(Region::Runtime, 4, "x"), Err(illegal.clone()));
    assert_eq!(device.dead(), Some(&illegal));
    assert!(!device.drain_log().is_empty());
}

#[test]
fn a_replay_after_sleep_and_wake_reads_the_same_addresses() {
    let mut device = device();
    let (a, b) = (put(&mut device, 1.0), put(&mut device, 2.0));
    let (graph, y) = captured(&mut device, a.address, b.address);
    device.unmap(Region::Weights).unwrap();
    device.map(Region::Weights).unwrap();
    device.replay(&graph).unwrap();
    assert_ne!(get(&device, y), 3.0);
    for (block, value) in [(a, 4.0f32), (b, 5.0)] {
        device.write(block.address, bytemuck::bytes_of(&value)).unwrap();
    }
    device.replay(&graph).unwrap();
    assert_eq!(get(&device, y), 9.0);
}

#[test]
fn captures_do_not_nest_and_replays_do_not_run_within_one() {
    let mut device = device();
    assert!(matches!(device.end_capture(), Err(DeviceError::Stream { .. })));
    let (a, b) = (put(&mut device, 1.0), put(&mut device, 2.0));
    let (graph, _) = captured(&mut device, a.address, b.address);
    device.begin_capture("decode-2").unwrap();
    assert!(matches!(device.begin_capture("decode-4"), Err(DeviceError::Stream { .. })));
    assert!(matches!(device.replay(&graph), Err(DeviceError::Stream { .. })));
    assert_eq!(device.end_capture().unwrap().name, "decode-2");
}

#[test]
fn a_passed_deadline_or_a_cancel_ends_a_device_that_still_launches() {
    for cancelled in [false, true] {
        let config = ArenaConfig { base: 1 << 40, seed: 5, placement: Placement::Forward };
        let cancel = Arc::new(AtomicBool::new(false));
        let mut device = Device::new(config, Groups::single(), Arc::clone(&cancel)).unwrap();
        let at = put(&mut device, 1.0).address;
        let kernel = || Kernel::from(Add { a: at, b: at, y: at, m: 1, width: 1 });
        device.set_deadline(Some(Instant::now() + std::time::Duration::from_secs(3600)));
        device.launch(kernel()).unwrap();
        if cancelled {
            cancel.store(true, Ordering::Relaxed);
        } else {
            device.set_deadline(Some(Instant::now()));
        }
        assert_eq!(device.launch(kernel()), Err(DeviceError::Late { kernel: "add" }));
        assert!(device.dead().is_some_and(DeviceError::is_fatal));
    }
}
