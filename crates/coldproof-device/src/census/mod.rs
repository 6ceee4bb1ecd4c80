//! What a captured graph retains: its nodes, the addresses in their arguments, and those in tables
//! of device memory to which the arguments point, one level deep.

mod node;
mod scan;

use std::collections::BTreeMap;

use coldproof_contract::words::{Address, ByteRange};

use crate::{Device, DeviceError, GraphHandle};

pub use node::{Argument, Node, NodeKind};
pub use scan::{NodeAddress, Ranges, scan, table_entries};

/// Bytes behind an address that are read for a table of pointers, where nobody says otherwise.
pub const DEFAULT_TABLE_BYTES: u64 = 4096;
/// Memory is mapped by pages of this size at least.
pub(crate) const PAGE: u64 = 2 << 20;

/// What one graph retains.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Its nodes, those of child graphs behind the node that runs them.
    pub nodes: Vec<Node>,
    /// Addresses in their arguments and behind them, by node.
    pub addresses: Vec<NodeAddress>,
    /// The driver's allocations under addresses that the caller did not know of.
    pub others: Vec<ByteRange>,
    /// Addresses behind which no table could be looked for, in order: no memory is there any more,
    /// or it cannot be read and may hold any address.
    pub unfollowed: Vec<Address>,
}

/// Counts what a graph retains. `known` is memory that is or was there, from the allocator's log:
/// an address whose memory has gone back to the driver is found by it alone.
///
/// `table_bytes` are read behind each address, of memory that is there now, once the device has
/// finished; 0 follows nothing and waits for nothing, as it must be while a capture is under way.
///
/// # Errors
/// A call that the driver refused.
pub fn census(
    device: &dyn Device,
    graph: GraphHandle,
    known: &[ByteRange],
    table_bytes: u64,
) -> Result<Census, DeviceError> {
    let nodes = device.nodes(graph)?;
    let mut others: Vec<ByteRange> = Vec::new();
    let known_ranges = Ranges::new(known.iter().copied());
    for address in scan::candidates(&nodes) {
        let seen = others.last().is_some_and(|range| range.contains(address));
        if !seen && known_ranges.of(address).is_none() {
            others.extend(device.allocation(address));
        }
    }
    let ranges = Ranges::new(known.iter().chain(&others).copied());
    let mut addresses: Vec<NodeAddress> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        addresses.extend(scan(node, index as u32, &ranges));
    }
    let mut found = Census { nodes, addresses, others, unfollowed: Vec::new() };
    if table_bytes > 0 {
        // What is still on its way may be a table.
        device.synchronise()?;
        found.follow(device, &ranges, table_bytes);
    }
    Ok(found)
}

/// Bytes behind an address that can be read, `wanted` at most. A range may be a reservation, in
/// which mappings begin and end on pages.
fn readable(device: &dyn Device, at: Address, range: ByteRange, wanted: u64) -> u64 {
    let wanted = wanted.min(range.bytes - (at.0 - range.address.0));
    if wanted == 0 || device.allocation(at.plus(wanted - 1)).is_some() {
        return wanted;
    }
    wanted.min(at.plus(1).0.next_multiple_of(PAGE) - at.0)
}

impl Census {
    /// Reads what lies behind each address, once, and adds the addresses in it.
    fn follow(&mut self, device: &dyn Device, ranges: &Ranges, table_bytes: u64) {
        let mut tables: BTreeMap<Address, Vec<(Address, Address)>> = BTreeMap::new();
        let mut bytes = Vec::new();
        for at in self.addresses.iter().map(|found| found.address) {
            if tables.contains_key(&at) {
                continue;
            }
            let entries = tables.entry(at).or_default();
            // Memory that went back to the driver cannot be read; what it held is gone.
            let Some(range) = device.allocation(at) else {
                self.unfollowed.push(at);
                continue;
            };
            let left = readable(device, at, range, table_bytes);
            bytes.resize(usize::try_from(left).unwrap_or(0), 0);
            match device.read(at, &mut bytes) {
                Ok(()) => *entries = table_entries(at, &bytes, ranges),
                Err(_) => self.unfollowed.push(at),
            }
        }
        let mut all = Vec::with_capacity(self.addresses.len());
        for found in &self.addresses {
            all.push(*found);
            for (place, address) in &tables[&found.address] {
                all.push(NodeAddress { address: *address, through: Some(*place), ..*found });
            }
        }
        self.addresses = all;
        self.unfollowed.sort_unstable();
    }
}

#[cfg(test)]
mod tests;
