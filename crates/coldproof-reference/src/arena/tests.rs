//! Tests of the arena.

use super::*;

fn arena() -> Arena {
    Arena::new(ArenaConfig { base: 0x7f00_0000_0000, seed: 3, placement: Placement::Forward })
        .unwrap()
}

#[test]
fn a_stale_address_reads_what_its_new_owner_wrote() {
    let mut arena = arena();
    let old = arena.alloc(Region::Weights, 4096, "old").unwrap();
    arena.write(old.address, &[1; 4096]).unwrap();
    arena.free(old.storage).unwrap();
    assert_eq!(arena.read(old.address, 4096).unwrap(), [1; 4096]);
    let new = arena.alloc(Region::Weights, 4096, "new").unwrap();
    assert_eq!(new.address, old.address);
    assert_ne!(new.storage, old.storage);
    arena.write(new.address, &[2; 4096]).unwrap();
    assert_eq!(arena.read(old.address, 4096).unwrap(), [2; 4096]);
}

#[test]
fn new_memory_holds_no_zero_and_two_seeds_differ() {
    let mut words = Vec::new();
    for seed in [1, 2] {
        let config = ArenaConfig { base: 512, seed, placement: Placement::Forward };
        let mut arena = Arena::new(config).unwrap();
        let block = arena.alloc(Region::Runtime, 1024, "x").unwrap();
        let bytes = arena.view::<u32>(block.address, 256).unwrap().to_vec();
        assert!(bytes.iter().all(|&word| word != 0));
        words.push(bytes);
    }
    assert_ne!(words[0], words[1]);
}

#[test]
fn unmapped_memory_is_unreadable_and_comes_back_as_garbage_at_the_same_address() {
    let mut arena = arena();
    let block = arena.alloc(Region::Weights, 512, "w").unwrap();
    arena.write(block.address, &[0; 512]).unwrap();
    arena.unmap(Region::Weights).unwrap();
    let hole = Err(ArenaError::Unbacked { address: block.address });
    assert_eq!(arena.read(block.address, 1), hole);
    let region = Region::Weights;
    assert_eq!(arena.alloc(region, 1, "w"), Err(ArenaError::NotMapped { region }));
    arena.map(Region::Weights).unwrap();
    assert_eq!(arena.map(Region::Weights), Err(ArenaError::AlreadyMapped { region }));
    assert!(arena.read(block.address, 512).unwrap().iter().any(|&byte| byte != 0));
    assert_eq!(arena.allocation(block.storage), Some(block));
}

#[test]
fn addresses_outside_every_segment_name_the_first_missing_byte() {
    let mut arena = arena();
    let block = arena.alloc(Region::Runtime, 512, "x").unwrap();
    for address in [0, 511, u64::MAX, block.address.0 + (1 << 35)] {
        let address = Address(address);
        assert_eq!(arena.read(address, 4), Err(ArenaError::Unbacked { address }));
        assert_eq!(arena.write(address, &[1]), Err(ArenaError::Unbacked { address }));
    }
    let end = block.address.plus(256 << 10);
    let beyond = arena.read(block.address, u64::MAX);
    assert_eq!(beyond, Err(ArenaError::Unbacked { address: end }));
    let odd = arena.view::<f32>(block.address.plus(2), 1);
    assert!(matches!(odd, Err(ArenaError::Misaligned { .. })));
}

#[test]
fn freeing_twice_is_refused() {
    let mut arena = arena();
    let storage = arena.alloc(Region::Runtime, 8, "x").unwrap().storage;
    arena.free(storage).unwrap();
    assert_eq!(arena.free(storage), Err(ArenaError::NotLive { storage }));
}

#[test]
fn poison_reaches_free_blocks_and_no_live_one() {
    let mut arena = arena();
    let kept = arena.alloc(Region::Weights, 512, "kept").unwrap();
    let gone = arena.alloc(Region::Weights, 512, "gone").unwrap();
    arena.write(kept.address, &[5; 512]).unwrap();
    arena.free(gone.storage).unwrap();
    arena.poison_free(Pattern::Word(0x0707_0707_0707_0707));
    assert_eq!(arena.read(gone.address, 512).unwrap(), [7; 512]);
    assert_eq!(arena.read(kept.address, 512).unwrap(), [5; 512]);
}

#[test]
fn pressure_takes_every_free_block_until_released() {
    let mut arena = arena();
    let gone = arena.alloc(Region::Weights, 512, "gone").unwrap();
    arena.write(gone.address, &[0; 512]).unwrap();
    arena.free(gone.storage).unwrap();
    assert_eq!(arena.pressure(), 256 << 10);
    assert!(arena.view::<u32>(gone.address, 128).unwrap().iter().all(|&word| word != 0));
    let other = arena.alloc(Region::Weights, 512, "other").unwrap();
    assert_eq!(other.address, gone.address.plus(256 << 10));
    arena.release_pressure().unwrap();
    let again = arena.alloc(Region::Weights, 512, "again").unwrap();
    assert_eq!(again.address.0, other.address.0 + 512);
}

#[test]
fn the_log_has_every_event_once_in_order() {
    let mut arena = arena();
    assert_eq!(arena.drain_log().len(), Region::ALL.len());
    let block = arena.alloc(Region::KvCache, 100, "kv").unwrap();
    arena.free(block.storage).unwrap();
    arena.unmap(Region::KvCache).unwrap();
    let facts = arena.drain_log();
    assert!(matches!(&facts[0], Fact::Alloc(a) if a.bytes == 100 && a.region == "kv_cache"));
    assert!(matches!(&facts[1], Fact::Free(f) if f.storage == block.storage));
    assert!(matches!(&facts[2], Fact::Region(r) if !r.mapped && r.region == "kv_cache"));
    assert_eq!(facts.len(), 3);
    assert!(arena.drain_log().is_empty());
}

#[test]
fn a_base_without_room_is_refused() {
    for base in [0, 100, u64::MAX - 511] {
        let config = ArenaConfig { base, seed: 0, placement: Placement::Forward };
        assert!(Arena::new(config).is_err());
    }
}

#[test]
fn one_seed_gives_one_history_and_reversed_placement_another_layout() {
    let history = |placement: Placement| {
        let mut arena = Arena::new(ArenaConfig { base: 512, seed: 9, placement }).unwrap();
        let blocks: Vec<_> = [600, 200_000, 4096, 3_000_000, 50]
            .map(|bytes| arena.alloc(Region::Weights, bytes, "w").unwrap())
            .into();
        arena.free(blocks[2].storage).unwrap();
        arena.pressure();
        let bytes = arena.read(blocks[1].address, 200_000).unwrap().to_vec();

        (arena.drain_log(), bytes, blocks[0].address < blocks[2].address)
    };
    assert_eq!(history(Placement::Forward), history(Placement::Forward));
    let (forward, reversed) = (history(Placement::Forward), history(Placement::Reversed));
    assert_ne!(forward.0, reversed.0);
    assert!(forward.2 && !reversed.2);
}
