//! A block from a tier below the paged ones, back into the slots of its rank.

use std::sync::Arc;

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::Args;
use super::{Context, Op};
use crate::device::DeviceError;

/// Writes one block's bytes of every paged slot.
#[derive(Clone, Debug)]
pub struct KvFetch {
    /// In host memory, slot by slot.
    pub bytes: Arc<Vec<u8>>,
    /// Where each slot has the block, and how many bytes of it.
    pub spans: Vec<(Address, usize)>,
    /// Rows (tokens) of the block.
    pub rows: usize,
}

impl Op for KvFetch {
    fn name(&self) -> &'static str {
        "kv_fetch"
    }

    fn args(&self) -> Vec<ArgFact> {
        let write =
            |args: Args, (address, bytes): &(Address, usize)| args.write(*address, &[*bytes], 1);
        self.spans.iter().fold(Args::default(), write).done()
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let mut rest = self.bytes.as_slice();
        for &(address, bytes) in &self.spans {
            let Some((own, after)) = rest.split_at_checked(bytes) else {
                return context.assert(false, || "the block is shorter than its slots".to_owned());
            };
            context.put(address, own)?;
            rest = after;
        }
        context.assert(rest.is_empty(), || "the block is longer than its slots".to_owned())
    }
}
