//! Fixed tokens for every arm of a run.

use crate::engine::{DecodeMode, GenerateRequest};

/// Tokens of the main request's prompt.
const PROMPT: u32 = 16;
/// Tokens that are decoded one by one after it.
const FORCED: u32 = 8;
/// Tokens of the longest prompt of a batch.
const ROW_PROMPT: u32 = 6;
/// Tokens that a batch decodes.
const ROW_FORCED: u32 = 4;
/// Tokens of the cache request: several blocks of any usual size.
const CACHED: u32 = 70;

/// The requests of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// The longest sequence.
    pub positions_max: u32,
    /// Decoded tokens of one positive control.
    pub control: u32,
}

impl Requests {
    fn tokens(self, first: u32, count: u32) -> Vec<u32> {
        let room = self.vocabulary.saturating_sub(1).max(1);
        (first..first + count).map(|i| (7 * i + 3) % room).collect()
    }

    /// The main request: teacher-forced logits and a few greedy tokens.
    #[must_use]
    pub fn main(self, mode: DecodeMode) -> GenerateRequest {
        let prompt = PROMPT.min(self.positions_max / 4).max(1);
        let forced = FORCED.min(self.positions_max / 4);
        GenerateRequest {
            name: "main".to_owned(),
            prompt: self.tokens(0, prompt),
            forced: self.tokens(prompt, forced),
            greedy: 4.min(self.positions_max / 4),
            mode,
            use_prefix_cache: false,
            adapter: None,
        }
    }

    /// Requests of one batch: other tokens in each, and prompts of other lengths, so that no two
    /// rows of a decode step are at one position.
    #[must_use]
    pub fn rows(self, batch: u32, mode: DecodeMode) -> Vec<GenerateRequest> {
        let forced = ROW_FORCED.min(self.positions_max / 4);
        let row = |index: u32| {
            let prompt = ROW_PROMPT.saturating_sub(index).min(self.positions_max / 4).max(1);
            let first = 100 * (index + 1);
            GenerateRequest {
                name: format!("row-{index}"),
                prompt: self.tokens(first, prompt),
                forced: self.tokens(first + prompt, forced),
                greedy: 0,
                mode,
                use_prefix_cache: false,
                adapter: None,
            }
        };
        (0..batch).map(row).collect()
    }

    /// The cache request: a long prompt that the prefix cache may serve.
    #[must_use]
    pub fn cache(self) -> GenerateRequest {
        let prompt = CACHED.min(self.positions_max.saturating_sub(2)).max(1);
        GenerateRequest {
            name: "cache".to_owned(),
            prompt: self.tokens(1_000, prompt),
            forced: self.tokens(1_000 + prompt, 1),
            greedy: 0,
            mode: DecodeMode::Eager,
            use_prefix_cache: true,
            adapter: None,
        }
    }

    /// The cache request with an adapter, or on the base model beside one.
    #[must_use]
    pub fn adapted(self, adapter: Option<&str>) -> GenerateRequest {
        let name = if adapter.is_some() { "adapted" } else { "unadapted" };
        let adapter = adapter.map(str::to_owned);
        GenerateRequest { name: name.to_owned(), adapter, ..self.cache() }
    }

    /// The positive control: almost everything is computed by replays, where there are any.
    #[must_use]
    pub fn control(self, mode: DecodeMode) -> GenerateRequest {
        GenerateRequest {
            name: "control".to_owned(),
            prompt: self.tokens(0, 1),
            forced: self.tokens(1, self.control.min(self.positions_max / 2)),
            greedy: 0,
            mode,
            use_prefix_cache: false,
            adapter: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_batch_have_other_tokens_at_other_positions() {
        let rows =
            Requests { vocabulary: 331, positions_max: 256, control: 1 }.rows(4, DecodeMode::Graph);
        for (index, row) in rows.iter().enumerate() {
            for other in &rows[..index] {
                assert_ne!(row.name, other.name);
                assert_ne!(row.prompt.len(), other.prompt.len());
                assert!(row.forced.iter().zip(&other.forced).all(|(one, two)| one != two));
            }
        }
        assert!(rows.iter().all(|row| row.forced.len() == rows[0].forced.len()));
    }

    #[test]
    fn rows_fit_the_smallest_model() {
        let rows =
            Requests { vocabulary: 2, positions_max: 4, control: 1 }.rows(4, DecodeMode::Graph);
        assert!(rows.iter().all(|row| row.prompt.len() + row.forced.len() <= 4));
    }
}
