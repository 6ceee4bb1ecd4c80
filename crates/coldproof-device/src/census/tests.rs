//! The census over a device made up of bytes.

use coldproof_contract::words::{Address, ByteRange};

use super::*;
use crate::digest::Table;
use crate::{PreparedDigests, StreamHandle};

/// Memory by address, and one graph.
#[derive(Debug)]
struct Recorded {
    memory: Vec<(u64, Vec<u8>)>,
    /// Bytes behind each that are reserved and backed by nothing.
    reserved: u64,
    /// Addresses from which nothing can be copied.
    unreadable: Vec<u64>,
    nodes: Vec<Node>,
}

impl Device for Recorded {
    fn describe(&self) -> String {
        "a recording".to_owned()
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocation(&self, address: Address) -> Option<ByteRange> {
        let range = |start, bytes| ByteRange { address: Address(start), bytes };
        let found = self
            .memory
            .iter()
            .find(|(start, bytes)| range(*start, bytes.len() as u64).contains(address));
        found.map(|(start, bytes)| range(*start, bytes.len() as u64 + self.reserved))
    }

    fn read(&self, address: Address, into: &mut [u8]) -> Result<(), DeviceError> {
        if self.unreadable.contains(&address.0) {
            return Err(DeviceError::NoDriver { why: "memory of another's".to_owned() });
        }
        let range = self.allocation(address).expect("asked for what is there");
        let (_, bytes) = self.memory.iter().find(|(start, _)| *start == range.address.0).unwrap();
        let start = (address.0 - range.address.0) as usize;
        into.copy_from_slice(&bytes[start..start + into.len()]);
        Ok(())
    }

    fn nodes(&self, _graph: GraphHandle) -> Result<Vec<Node>, DeviceError> {
        Ok(self.nodes.clone())
    }

    fn capture_under_way(&self, stream: StreamHandle) -> Result<GraphHandle, DeviceError> {
        Err(DeviceError::NoCapture { stream: stream.0 })
    }

    fn prepare(&self, _table: &Table) -> Result<Box<dyn PreparedDigests>, DeviceError> {
        Err(DeviceError::NoDriver { why: "a recording digests nothing".to_owned() })
    }
}

const TABLE: u64 = 0x7f00_0000_0000;
const EXPERT: u64 = 0x7f00_1000_0000;
const GONE: u64 = 0x7f00_2000_0000;

/// A grouped matrix product: its weights stand in a table, and its scratch went back to the driver.
fn grouped() -> Recorded {
    let mut table = vec![0_u8; 64];
    for expert in 0..4_u64 {
        let at = 8 * expert as usize;
        table[at..at + 8].copy_from_slice(&(EXPERT + expert * 16).to_le_bytes());
    }
    let mut bytes = 12_u32.to_le_bytes().to_vec();
    bytes.extend(TABLE.to_le_bytes());
    let arguments =
        vec![Argument::opaque(0, bytes), Argument::opaque(1, GONE.to_le_bytes().to_vec())];
    let kernel = Node {
        path: vec![0],
        kind: NodeKind::Kernel,
        kernel: "grouped".to_owned(),
        arguments,
        unread: None,
    };
    let copy = Node {
        path: vec![1],
        kind: NodeKind::Memcpy,
        kernel: "memcpy".to_owned(),
        arguments: vec![Argument::pointer(0, EXPERT)],
        unread: None,
    };
    let memory = vec![(TABLE, table), (EXPERT, vec![0; 64])];
    Recorded { memory, reserved: 0, unreadable: Vec::new(), nodes: vec![kernel, copy] }
}

fn found(known: &[ByteRange], table_bytes: u64) -> Census {
    census(&grouped(), GraphHandle(1), known, table_bytes).unwrap()
}

#[test]
fn a_table_is_followed_one_level() {
    let census = found(&[], DEFAULT_TABLE_BYTES);
    let experts: Vec<u64> = census
        .addresses
        .iter()
        .filter(|found| found.through.is_some())
        .map(|found| found.address.0)
        .collect();
    assert_eq!(experts, [0, 1, 2, 3].map(|expert| EXPERT + 16 * expert));
    assert_eq!(census.others.len(), 2);
    assert_eq!(found(&[], 0).addresses.len(), 2);
}

#[test]
fn memory_that_went_back_is_found_by_the_log_alone() {
    let at = |census: &Census| census.addresses.iter().any(|found| found.address.0 == GONE);
    assert!(!at(&found(&[], DEFAULT_TABLE_BYTES)));
    let log = [ByteRange { address: Address(GONE - 64), bytes: 128 }];
    let census = found(&log, DEFAULT_TABLE_BYTES);
    assert!(at(&census));
    assert_eq!(census.unfollowed, [Address(GONE)]);
}

#[test]
fn a_table_is_read_as_far_as_memory_lies_under_a_reservation() {
    let page = 2 << 20;
    let (start, at) = (TABLE, TABLE + page - 16);
    let mut memory = vec![0; page as usize];
    memory[page as usize - 8..].copy_from_slice(&start.to_le_bytes());
    let pointer = Node {
        path: vec![0],
        kind: NodeKind::Kernel,
        kernel: "k".to_owned(),
        arguments: vec![Argument::opaque(0, at.to_le_bytes().to_vec())],
        unread: None,
    };
    let memory = vec![(start, memory)];
    let device = Recorded { memory, reserved: page, unreadable: Vec::new(), nodes: vec![pointer] };
    let found = census(&device, GraphHandle(1), &[], DEFAULT_TABLE_BYTES).unwrap();
    let places: Vec<_> = found.addresses.iter().map(|a| (a.address.0, a.through)).collect();
    assert_eq!(places, [(at, None), (start, Some(Address(at + 8)))]);
    assert_eq!(found.unfollowed, []);
}

#[test]
fn memory_that_cannot_be_read_is_listed() {
    let device = Recorded { unreadable: vec![TABLE], ..grouped() };
    let sealed = census(&device, GraphHandle(1), &[], DEFAULT_TABLE_BYTES).unwrap();
    assert_eq!(sealed.unfollowed, [Address(TABLE)]);
    assert!(sealed.addresses.iter().all(|found| found.through.is_none()));
    assert_eq!(found(&[], DEFAULT_TABLE_BYTES).unfollowed, []);
}
