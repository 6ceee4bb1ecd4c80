//! Speculative decoding: what drafts proposes tokens, and the model computes all of them at once
//! and keeps those that it would have chosen itself. So the tokens are those of the model alone,
//! whatever is drafted; the draft's own logits show what drafts.

use super::EngineError;
use super::core::Core;
use super::request::Mode;
use super::serve::{Active, largest, table};
use crate::models::Drafts;
use crate::ranks::Step;

/// Tokens that a draft model proposes at once; a layer behind the model's own proposes one.
const PROPOSED: usize = 2;

/// How far the drafts of a sequence are.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Positions whose keys and values of the drafter are computed.
    entries: usize,
    /// Hidden rows of the model from that position on, where drafts are computed from them.
    pub(super) hidden: Vec<Vec<f32>>,
}

impl Draft {
    /// Of a prompt of which so many positions were known before.
    pub(super) const fn after(known: usize, hidden: Vec<Vec<f32>>) -> Self {
        Self { entries: known, hidden }
    }
}

impl Core {
    /// Tokens whose blocks may be cached: the drafter's keys and values are theirs too.
    pub(super) fn cacheable<'s>(&self, sequence: &'s Active<'_>) -> &'s [u32] {
        let tokens = &sequence.tokens;
        let end = self.dims.drafts().map_or(tokens.len(), |_| sequence.draft.entries);
        &tokens[..end.min(tokens.len())]
    }

    /// Gives the last of the known blocks back where drafts are computed from hidden rows: what
    /// follows it is drafted from rows of its positions, which no cache holds. As vLLM does.
    pub(super) fn leave_last_block(&mut self, sequence: &mut Active<'_>) {
        if self.dims.drafts() == Some(Drafts::FromHidden)
            && let Some(block) = sequence.blocks.pop()
        {
            self.blocks.release(&[block], None);
        }
    }

    /// Drafts what follows a sequence and keeps the logits.
    pub(super) fn draft_row(&mut self, sequence: &mut Active<'_>) -> Result<(), EngineError> {
        let drafted = self.draft(sequence, &[])?;
        let position = sequence.tokens.len() as u32 - 1;
        sequence.output.draft_rows.extend(drafted.map(|logits| (position, logits)));
        Ok(())
    }

    /// The next tokens of a sequence, at least one: the model's own choice, and as many of what is
    /// drafted behind it as the model chooses too. Says whether any was wanted.
    pub(super) fn speculate(&mut self, sequence: &mut Active<'_>) -> Result<bool, EngineError> {
        let wanted = sequence.request.greedy_tokens - sequence.output.greedy.len();
        if wanted == 0 {
            return Ok(false);
        }
        let mut proposed = vec![largest(&sequence.last)];
        let most = match self.dims.drafts() {
            Some(Drafts::FromTokens) => PROPOSED,
            Some(Drafts::FromHidden) => 1,
            None => 0,
        };
        while proposed.len() < wanted.min(1 + most) {
            let Some(logits) = self.draft(sequence, &proposed)? else { break };
            proposed.push(largest(&logits));
        }
        // The last token's logits choose nothing any more.
        if wanted == 1 {
            sequence.output.greedy.extend(proposed);
        } else {
            self.verify(sequence, &proposed)?;
        }
        Ok(true)
    }

    /// Computes proposed tokens at once and keeps those before the first that the model would not
    /// have chosen.
    fn verify(&mut self, sequence: &mut Active<'_>, proposed: &[u32]) -> Result<(), EngineError> {
        let first = sequence.tokens.len();
        self.cover(sequence, first + proposed.len())?;
        let request = sequence.request;
        let step = Step {
            request: request.name.clone(),
            ids: proposed.iter().map(|&token| token as i32).collect(),
            positions: (first as i32..(first + proposed.len()) as i32).collect(),
            tables: vec![table(&sequence.blocks)],
            one_sequence: true,
            adapter: request.adapter.clone(),
            ..Step::default()
        };
        let computed = self.step(step, Mode::Eager)?;
        for (&token, logits) in proposed.iter().zip(computed.logits) {
            if sequence.tokens.len() > first && token != largest(&sequence.last) {
                break;
            }
            sequence.output.greedy.push(token);
            sequence.advance(token, logits);
        }
        let draft = &mut sequence.draft;
        draft.entries = draft.entries.min(sequence.tokens.len());
        draft.hidden.extend(computed.hidden);
        draft.hidden.truncate(sequence.tokens.len() - draft.entries);
        Ok(())
    }

    /// Lets what drafts compute everything that it has not computed of a sequence with `proposed`
    /// behind it; the logits after the last token. Nothing where there is nothing to compute.
    fn draft(
        &mut self,
        sequence: &mut Active<'_>,
        proposed: &[u32],
    ) -> Result<Option<Vec<f32>>, EngineError> {
        let Some(drafts) = self.dims.drafts() else { return Ok(None) };
        let (first, all) = (sequence.draft.entries, sequence.tokens.len() + proposed.len());
        // A hidden row stands beside the token behind it.
        let shift = usize::from(drafts == Drafts::FromHidden);
        let rows = all.saturating_sub(first + shift);
        if rows == 0 {
            return Ok(None);
        }
        self.cover(sequence, all)?;
        let tokens = sequence.tokens.iter().chain(proposed).skip(first + shift);
        let hidden = &mut sequence.draft.hidden;
        let step = Step {
            request: sequence.request.name.clone(),
            ids: tokens.map(|&token| token as i32).collect(),
            positions: (first as i32..(first + rows) as i32).collect(),
            tables: vec![table(&sequence.blocks)],
            one_sequence: true,
            last_row_alone: true,
            hidden: hidden.drain(..rows.min(hidden.len())).collect(),
            ..Step::default()
        };
        sequence.draft.entries += rows;
        let replayed = sequence.request.mode == Mode::Graph && self.graphs.replays(1);
        let drafted = self.compute(move |worker| worker.draft(&step, replayed))?;
        Ok(drafted.logits.into_iter().next())
    }
}
