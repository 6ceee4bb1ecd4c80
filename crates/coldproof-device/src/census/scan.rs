//! Addresses among bytes: pure, so that recorded nodes can be read again anywhere.

use coldproof_contract::words::{Address, ByteRange};

use super::Node;

/// The step at which an argument's bytes are scanned: fields of a packed struct lie on it.
const STEP: usize = 4;
/// The step at which memory is scanned for a table of pointers.
const ENTRY: usize = 8;
/// No memory lies below.
const LOWEST: u64 = 1 << 16;
/// Nor above: 57 bits are what a device's tables translate.
const HIGHEST: u64 = 1 << 57;

/// Ranges of memory that is or was there, for one question: does an address lie in any?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<ByteRange>);

impl Ranges {
    /// Arranges ranges, which may overlap.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = ByteRange>) -> Self {
        let mut sorted: Vec<ByteRange> =
            ranges.into_iter().filter(|range| range.bytes > 0).collect();
        sorted.sort_unstable();
        let mut merged: Vec<ByteRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.address.0 <= last.address.0.saturating_add(last.bytes) => {
                    let end = range.address.0.saturating_add(range.bytes);
                    last.bytes = last.bytes.max(end - last.address.0);
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    /// The merged range that holds an address.
    #[must_use]
    pub fn of(&self, address: Address) -> Option<ByteRange> {
        let after = self.0.partition_point(|range| range.address <= address);
        let range = *self.0.get(after.checked_sub(1)?)?;
        range.contains(address).then_some(range)
    }

    /// All of them, by address.
    #[must_use]
    pub fn all(&self) -> &[ByteRange] {
        &self.0
    }
}

/// An address that a node retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAddress {
    /// Index of the node among those of the census.
    pub node: u32,
    /// Position of the argument.
    pub argument: u32,
    /// Byte of the argument at which it begins.
    pub offset: u32,
    /// The address.
    pub address: Address,
    /// Where it stands in device memory, for one that was found in a table to which the argument
    /// points.
    pub through: Option<Address>,
}

/// Every value of 8 bytes that could be an address, with its place.
fn values(bytes: &[u8], step: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
    let starts = (0..).step_by(step).take_while(|start| start + 8 <= bytes.len());
    starts.filter_map(|start| {
        let value = bytes[start..start + 8].iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
        (LOWEST..HIGHEST).contains(&value).then_some((start, value))
    })
}

/// Values of all arguments that could be addresses: each once, in order.
#[must_use]
pub(super) fn candidates(nodes: &[Node]) -> Vec<Address> {
    let arguments = nodes.iter().flat_map(|node| &node.arguments);
    let mut found: Vec<Address> = arguments
        .flat_map(|argument| values(&argument.bytes, STEP).map(|(_, value)| Address(value)))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The addresses that a node's arguments hold, among those of known memory. `index` is its position
/// in the census.
#[must_use]
pub fn scan(node: &Node, index: u32, ranges: &Ranges) -> Vec<NodeAddress> {
    let mut found = Vec::new();
    for argument in &node.arguments {
        for (offset, value) in values(&argument.bytes, STEP) {
            let address = Address(value);
            if ranges.of(address).is_some() {
                found.push(NodeAddress {
                    node: index,
                    argument: argument.index,
                    offset: offset as u32,
                    address,
                    through: None,
                });
            }
        }
    }
    found
}

/// The addresses that memory at `at` holds as a table does, on 8 bytes: (place, address).
#[must_use]
pub fn table_entries(at: Address, bytes: &[u8], ranges: &Ranges) -> Vec<(Address, Address)> {
    let skip = (at.0.next_multiple_of(ENTRY as u64) - at.0) as usize;
    let rest = bytes.get(skip..).unwrap_or_default();
    values(rest, ENTRY)
        .map(|(place, value)| (at.plus((skip + place) as u64), Address(value)))
        .filter(|(_, address)| ranges.of(*address).is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Argument, NodeKind};
    use super::*;

    const WEIGHT: u64 = 0x7f12_3400_0000;

    fn ranges() -> Ranges {
        let range = |address, bytes| ByteRange { address: Address(address), bytes };
        Ranges::new([range(WEIGHT, 0x1000), range(0x7f12_5000_0000, 0x20), range(WEIGHT, 0x2000)])
    }

    fn node(bytes: Vec<u8>) -> Node {
        Node {
            path: vec![0],
            kind: NodeKind::Kernel,
            kernel: "k".to_owned(),
            arguments: vec![Argument::opaque(3, bytes)],
            unread: None,
        }
    }

    fn packed(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn pointers_are_found_at_any_field_of_a_packed_struct() {
        let pointer = (WEIGHT + 0x1ff8).to_le_bytes();
        let bytes = packed(&[&7_u32.to_le_bytes(), &pointer, &1.5_f32.to_le_bytes(), &pointer]);
        let found = scan(&node(bytes), 9, &ranges());
        let places: Vec<(u32, u32, u32)> =
            found.iter().map(|a| (a.node, a.argument, a.offset)).collect();
        assert_eq!(places, [(9, 3, 4), (9, 3, 16)]);
        assert!(found.iter().all(|a| a.address.0 == WEIGHT + 0x1ff8 && a.through.is_none()));
    }

    #[test]
    fn the_end_of_a_range_and_numbers_are_no_addresses() {
        let bytes = packed(&[&(WEIGHT + 0x2000).to_le_bytes(), &4096_u64.to_le_bytes()]);
        assert_eq!(scan(&node(bytes), 0, &ranges()), []);
        assert_eq!(scan(&node(WEIGHT.to_le_bytes()[..7].to_vec()), 0, &ranges()), []);
        assert_eq!(scan(&node(Vec::new()), 0, &ranges()), []);
    }

    #[test]
    fn an_address_between_two_arguments_is_none() {
        let (low, high) = (WEIGHT as u32, (WEIGHT >> 32) as u32);
        let mut split = node(low.to_le_bytes().to_vec());
        split.arguments.push(Argument::opaque(4, high.to_le_bytes().to_vec()));
        assert_eq!(scan(&split, 0, &ranges()), []);
    }

    #[test]
    fn a_table_is_read_on_eight_bytes() {
        let pointer = (WEIGHT + 8).to_le_bytes();
        let bytes = packed(&[&[0; 4], &[1; 8], &pointer, &pointer[..4]]);
        let found = table_entries(Address(0x1004), &bytes, &ranges());
        assert_eq!(found, [(Address(0x1010), Address(WEIGHT + 8))]);
        let shifted = packed(&[&[0; 8], &pointer]);
        assert_eq!(table_entries(Address(0x1004), &shifted, &ranges()), []);
    }

    #[test]
    fn candidates_are_each_value_once_and_small_numbers_none() {
        let bytes = packed(&[&WEIGHT.to_le_bytes(), &WEIGHT.to_le_bytes(), &5_u64.to_le_bytes()]);
        let found = candidates(&[node(bytes.clone()), node(bytes)]);
        assert!(found.contains(&Address(WEIGHT)));
        assert_eq!(found.iter().filter(|a| a.0 == WEIGHT).count(), 1);
        assert!(found.iter().all(|a| a.0 >= LOWEST));
    }

    #[test]
    fn ranges_that_meet_are_one() {
        assert_eq!(ranges().all().len(), 2);
        assert_eq!(ranges().of(Address(WEIGHT + 0x1fff)).unwrap().bytes, 0x2000);
        assert_eq!(ranges().of(Address(WEIGHT - 1)), None);
        assert_eq!(Ranges::default().of(Address(1)), None);
    }
}
