//! Kernels of experts that are spread over ranks.

use coldproof_contract::evidence::ArgFact;
use coldproof_contract::words::Address;

use super::args::{Args, WORD_BYTES};
use super::context::element;
use super::{Context, Op};
use crate::device::DeviceError;

/// Where an expert is not on this rank.
pub const ELSEWHERE: i32 = -1;

/// Turns ids of the model's experts into places in this rank's stack.
#[derive(Clone, Debug)]
pub struct LocalExperts {
    /// I32 `[m, top_k]`: ids of the model's experts.
    pub ids: Address,
    /// I32 `[experts]`: the place of each in this rank's stack, or -1.
    pub map: Address,
    /// I32 `[m, top_k]`: places.
    pub places: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Experts a token.
    pub top_k: usize,
    /// Experts of the model.
    pub experts: usize,
}

impl Op for LocalExperts {
    fn name(&self) -> &'static str {
        "local_experts"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.ids, &[self.m, self.top_k], WORD_BYTES)
            .read(self.map, &[self.experts], WORD_BYTES)
            .write(self.places, &[self.m, self.top_k], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let ids = context.i32s(self.ids, &[self.m, self.top_k])?;
        let mut places = Vec::with_capacity(ids.len());
        for &id in ids {
            let address = element(self.map, i64::from(id), WORD_BYTES);
            places.extend_from_slice(context.i32s(address, &[1])?);
        }
        context.put(self.places, &places)
    }
}

/// Takes each pair's row from the rank that has its expert, in place: a choice and no sum, so that
/// bits do not depend on where an expert is. Like a device it checks nothing: the row of an expert
/// that no rank has is zero, and of several ranks that have it the first counts.
#[derive(Clone, Debug)]
pub struct SelectExperts {
    /// I32 `[m, top_k]`: places of the pairs' experts on this rank, or -1.
    pub places: Address,
    /// F32 `[m, top_k, width]`.
    pub y: Address,
    /// Rows (tokens).
    pub m: usize,
    /// Experts a token.
    pub top_k: usize,
    /// Width of a row.
    pub width: usize,
}

impl Op for SelectExperts {
    fn name(&self) -> &'static str {
        "select_experts"
    }

    fn args(&self) -> Vec<ArgFact> {
        Args::default()
            .read(self.places, &[self.m, self.top_k], WORD_BYTES)
            .update(self.y, &[self.m, self.top_k, self.width], WORD_BYTES)
            .done()
    }

    fn rows(&self) -> usize {
        self.m
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        let pairs = self.m * self.top_k;
        let places = context.i32s(self.places, &[self.m, self.top_k])?;
        let mut own: Vec<f32> =
            places.iter().map(|&place| if place == ELSEWHERE { 0.0 } else { 1.0 }).collect();
        own.extend_from_slice(context.f32s(self.y, &[self.m, self.top_k, self.width])?);
        let all = context.exchange_in(&context.groups.experts, self.name(), own)?;
        let mut y = Vec::with_capacity(pairs * self.width);
        for pair in 0..pairs {
            let first = pairs + pair * self.width;
            match all.iter().find(|rank| rank[pair] != 0.0) {
                Some(holder) => y.extend_from_slice(&holder[first..first + self.width]),
                None => y.resize(y.len() + self.width, 0.0),
            }
        }
        context.put(self.y, &y)
    }
}
