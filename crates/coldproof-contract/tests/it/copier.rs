//! A plain copier: the bytes that a history leaves behind decide whether it was legal.
//!
//! It knows the hand-written tables and nothing of placement, manifest or ledger. A slot adds what
//! is written to what it holds, so that an element that is written twice shows in the bytes.

use std::collections::BTreeMap;

use coldproof_contract::lifecycle::ApplicationIdentity;
use coldproof_contract::words::{Fragment, SlotName};

use crate::layouts::{Layout, parse_element};

/// One application on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) rank: u32,
    pub(crate) application: ApplicationIdentity,
}

/// What memory holds: one word a written element. Untouched elements and padding are zero.
pub(crate) type Memory = BTreeMap<(u32, SlotName, Vec<u64>), u64>;

/// A word that stands for one element of one source; different for all that the tests use.
fn word(source: &str, element: u64) -> u64 {
    let mut word = element.wrapping_add(1);
    for byte in source.bytes() {
        word = (word ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^= word >> 29;
    }
    word
}

/// What is read beyond the end of a source.
const BEYOND: u64 = 0xdead_beef_dead_beef;

/// All coordinates of a box, row-major.
pub(crate) fn coordinates(fragment: &Fragment) -> Vec<Vec<u64>> {
    let mut all = vec![Vec::new()];
    for span in &fragment.0 {
        let longer = |before: Vec<u64>| {
            let with = move |at| before.iter().copied().chain([at]).collect();
            (span.start..span.end).map(with)
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// Row-major position, or nothing beyond the shape.
pub(crate) fn flat(at: &[u64], shape: &[u64]) -> Option<u64> {
    let inside = at.len() == shape.len() && at.iter().zip(shape).all(|(at, extent)| at < extent);
    inside.then(|| at.iter().zip(shape).fold(0, |flat, (at, extent)| flat * extent + at))
}

/// What the tables say that memory must hold.
pub(crate) fn wanted(layout: &Layout) -> Memory {
    let mut memory = Memory::new();
    for table in &layout.tables {
        let whole = coordinates(&Fragment::whole(table.shape));
        let tokens: Vec<&str> = table.elements.split_whitespace().collect();
        assert_eq!(tokens.len(), whole.len(), "{}: one token an element", layout.name);
        for (at, token) in whole.into_iter().zip(tokens) {
            if let Some((source, element)) = parse_element(token) {
                memory.insert((table.rank, table.slot.into(), at), word(&source, element));
            }
        }
    }
    memory
}

/// What memory holds after a history.
pub(crate) fn copied(layout: &Layout, history: &[Write]) -> Memory {
    let mut memory = Memory::new();
    for Write { rank, application } in history {
        let owner = layout.aliases.iter().find(|(alias, _)| *alias == application.slot.0);
        let slot: SlotName = owner.map_or(application.slot.clone(), |(_, owner)| (*owner).into());
        let from = coordinates(&application.source_fragment);
        let to = coordinates(&application.slot_fragment);
        let shape = layout.rules.iter().find(|rule| rule.source == application.source);
        for index in 0..from.len().max(to.len()) {
            let element = from.get(index).and_then(|at| flat(at, &shape?.shape));
            let value = element.map_or(BEYOND, |element| word(&application.source, element));
            // What does not fit lands behind the slot, where no table allows anything.
            let at = to.get(index).cloned().unwrap_or_else(|| vec![u64::MAX]);
            let held = memory.entry((*rank, slot.clone(), at)).or_default();
            *held = held.wrapping_add(value);
        }
    }
    memory
}

/// Whether the bytes that a history leaves behind are those of the tables.
pub(crate) fn is_legal(layout: &Layout, history: &[Write]) -> bool {
    copied(layout, history) == wanted(layout)
}
