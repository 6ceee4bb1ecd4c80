//! Kernels by which a pipeline stage hands the residual stream to the next one.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::{Context, Op};
use crate::device::DeviceError;

/// What both ends of a transfer call it.
const TRANSFER: &str = "stage_transfer";

/// Gives every row to the stage behind.
#[derive(Clone, Debug)]
pub struct StageSend {
    /// F32 `[m, width]`.
    pub x: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for StageSend {
    fn name(&self) -> &'static str {
        "stage_send"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default().read(self.x, &[self.m, self.width], WORD_BYTES).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let next = context.groups.next.as_ref();
        context.assert(next.is_some(), || "no stage is behind this one".to_owned())?;
        let rows = context.f32s(self.x, &[self.m, self.width])?.to_vec();
        if let Some(next) = next {
            context.exchange_in(next, TRANSFER, rows)?;
        }
        Ok(())
    }
}

/// Takes every row from the stage before.
#[derive(Clone, Debug)]
pub struct StageReceive {
    /// F32 `[m, width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for StageReceive {
    fn name(&self) -> &'static str {
        "stage_receive"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default().write(self.y, &[self.m, self.width], WORD_BYTES).done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let previous = context.groups.previous.as_ref();
        context.assert(previous.is_some(), || "no stage is before this one".to_owned())?;
        let Some(previous) = previous else { return Ok(()) };
        let all = context.exchange_in(previous, TRANSFER, vec![0.0; self.m * self.width])?;
        // The stage before is the first end of the two.
        all.first().map_or(Ok(()), |rows| context.put(self.y, rows))
    }
}
