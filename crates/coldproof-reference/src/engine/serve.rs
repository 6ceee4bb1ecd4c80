//! Requests: a prompt at once, then one token a step for all of a batch.

use super::EngineError;
use super::adapters::{by_adapter, replays};
use super::core::Core;
use super::images::HeldImage;
use super::request::{GenerateRequest, Mode, Output};
use super::speculate::Draft;
use crate::caches::{OutOfBlocks, symbols};
use crate::ranks::{Computed, Failure, Step, Worker};

/// A request that is being served.
pub(super) struct Active<'a> {
    pub(super) request: &'a GenerateRequest,
    /// Tokens whose keys and values are computed.
    pub(super) tokens: Vec<u32>,
    /// The blocks that hold them.
    pub(super) blocks: Vec<u32>,
    /// The entries that hold its images' rows.
    images: Vec<HeldImage>,
    /// Logits after the last of them.
    pub(super) last: Vec<f32>,
    pub(super) draft: Draft,
    pub(super) output: Output,
}

impl Active<'_> {
    /// The token of the next step, or nothing where the request is answered.
    fn next(&mut self) -> Option<u32> {
        let decoded = self.tokens.len() - self.request.prompt.len();
        if let Some(&forced) = self.request.forced.get(decoded) {
            return Some(forced);
        }
        if self.output.greedy.len() == self.request.greedy_tokens {
            return None;
        }
        let token = largest(&self.last);
        self.output.greedy.push(token);
        (self.output.greedy.len() < self.request.greedy_tokens).then_some(token)
    }

    /// Whether all forced tokens are computed, so that the model chooses what follows.
    fn chooses(&self) -> bool {
        self.tokens.len() >= self.request.prompt.len() + self.request.forced.len()
    }

    /// Takes in the logits after token `token`.
    pub(super) fn advance(&mut self, token: u32, logits: Vec<f32>) {
        let position = self.tokens.len() as u32;
        if !self.chooses() {
            self.output.rows.push((position, logits.clone()));
        }
        self.tokens.push(token);
        self.last = logits;
    }
}

/// The token of the largest logit, of equals the lowest.
pub(super) fn largest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

impl From<OutOfBlocks> for EngineError {
    fn from(error: OutOfBlocks) -> Self {
        Self::refused(error.to_string())
    }
}

impl Core {
    /// Serves requests together. Prompts are computed one by one, eagerly, as far as the prefix
    /// cache and the tiers below it do not hold them.
    pub(crate) fn generate(
        &mut self,
        requests: &[GenerateRequest],
    ) -> Result<Vec<Output>, EngineError> {
        self.check_serving("generate")?;
        self.check_requests(requests)?;
        let mut active: Vec<Active<'_>> = requests
            .iter()
            .map(|request| Active {
                request,
                tokens: Vec::new(),
                blocks: Vec::new(),
                images: Vec::new(),
                last: Vec::new(),
                draft: Draft::default(),
                output: Output::default(),
            })
            .collect();
        let served = self.serve(&mut active);
        let mut kept = Vec::new();
        for sequence in &active {
            let request = sequence.request;
            let vision = self.dims.vision.as_ref();
            let cached = (request.use_prefix_cache && served.is_ok())
                .then(|| symbols(self.cacheable(sequence), &request.images, vision));
            let key = self.weights_key(request);
            let cache = cached.as_deref().map(|symbols| (symbols, key));
            self.blocks.release(&sequence.blocks, cache);
            self.release_images(&sequence.images, request.use_encoder_cache && served.is_ok());
            kept.extend(cached.map(|symbols| (sequence, symbols)));
        }
        served?;
        for (sequence, symbols) in kept {
            self.offload(sequence.request, &symbols, &sequence.blocks)?;
        }
        Ok(active.into_iter().map(|sequence| sequence.output).collect())
    }

    fn serve(&mut self, active: &mut [Active<'_>]) -> Result<(), EngineError> {
        for sequence in &mut *active {
            self.prefill(sequence)?;
        }
        loop {
            let mut stepping: Vec<(&mut Active<'_>, u32)> = Vec::new();
            let mut speculated = false;
            for sequence in &mut *active {
                if self.dims.drafts().is_some() && sequence.chooses() {
                    speculated |= self.speculate(sequence)?;
                } else if let Some(token) = sequence.next() {
                    stepping.push((sequence, token));
                }
            }
            if stepping.is_empty() && !speculated {
                return Ok(());
            }
            for (adapter, group) in by_adapter(stepping, |(one, _)| one.request.adapter.clone()) {
                self.decode(group, adapter)?;
            }
        }
    }

    fn prefill(&mut self, sequence: &mut Active<'_>) -> Result<(), EngineError> {
        let request = sequence.request;
        if request.use_prefix_cache {
            let vision = self.dims.vision.as_ref();
            let symbols = symbols(&request.prompt, &request.images, vision);
            sequence.blocks = self.blocks.take_prefix(&symbols, self.weights_key(request));
            self.fetch_prefix(request, &symbols, &mut sequence.blocks)?;
            self.leave_last_block(sequence);
        }
        let known = sequence.blocks.len() * self.config.block_size as usize;
        let all = request.prompt.len();
        self.cover(sequence, all)?;
        let images = self.take_images(request, known, &mut sequence.images)?;
        let step = Step {
            request: request.name.clone(),
            ids: request.prompt.iter().skip(known).map(|&token| token as i32).collect(),
            positions: (known as i32..all as i32).collect(),
            tables: vec![table(&sequence.blocks)],
            one_sequence: true,
            last_row_alone: true,
            adapter: request.adapter.clone(),
            images,
            ..Step::default()
        };
        let Computed { mut logits, hidden } = self.step(step, Mode::Eager)?;
        let logits = logits.pop().unwrap_or_default();
        sequence.output.rows.push((all as u32 - 1, logits.clone()));
        sequence.tokens.clone_from(&request.prompt);
        sequence.last = logits;
        sequence.draft = Draft::after(known, hidden);
        self.draft_row(sequence)
    }

    /// One token of each request of one adapter, or of the base model.
    fn decode(
        &mut self,
        mut stepping: Vec<(&mut Active<'_>, u32)>,
        adapter: Option<String>,
    ) -> Result<(), EngineError> {
        let names = stepping.iter().map(|(sequence, _)| sequence.request.name.as_str());
        let graph = stepping.iter().all(|(sequence, _)| replays(sequence.request))
            && self.graphs.replays(stepping.len());
        let request = names.collect::<Vec<_>>().join("+");
        let mut step = Step { request, adapter, ..Step::default() };
        for (sequence, token) in &mut stepping {
            let position = sequence.tokens.len();
            self.cover(sequence, position + 1)?;
            step.ids.push(*token as i32);
            step.positions.push(position as i32);
            step.tables.push(table(&sequence.blocks));
        }
        let computed = self.step(step, if graph { Mode::Graph } else { Mode::Eager })?;
        let mut hidden = computed.hidden.into_iter();
        for ((sequence, token), logits) in stepping.into_iter().zip(computed.logits) {
            sequence.advance(token, logits);
            sequence.draft.hidden.extend(hidden.next());
            self.draft_row(sequence)?;
        }
        Ok(())
    }

    /// Takes blocks until they hold `tokens` tokens.
    pub(super) fn cover(
        &mut self,
        sequence: &mut Active<'_>,
        tokens: usize,
    ) -> Result<(), EngineError> {
        while sequence.blocks.len() * (self.config.block_size as usize) < tokens {
            sequence.blocks.push(self.blocks.take()?);
        }
        Ok(())
    }

    /// One forward on every rank.
    pub(super) fn step(&mut self, step: Step, mode: Mode) -> Result<Computed, EngineError> {
        self.compute(move |worker| match mode {
            Mode::Eager => worker.run_eager(&step),
            Mode::Graph => worker.replay(&step),
        })
    }

    /// What every rank computes; all of the last pipeline stage have the same.
    pub(super) fn compute<F>(&mut self, forward: F) -> Result<Computed, EngineError>
    where
        F: Fn(&mut Worker) -> Result<Computed, Failure> + Send + Sync + 'static,
    {
        let all = self.each(move |worker| {
            let computed = forward(worker)?;
            let first = worker.rank.tp == 0 && worker.rank.ep == 0;
            Ok(if first { computed } else { Computed::default() })
        })?;
        Ok(all.into_iter().find(|computed| !computed.logits.is_empty()).unwrap_or_default())
    }

    fn check_requests(&self, requests: &[GenerateRequest]) -> Result<(), EngineError> {
        let refused = |text: String| Err(EngineError::refused(text));
        let base: Vec<_> = requests.iter().filter(|request| request.adapter.is_none()).collect();
        let replayed = base.iter().all(|request| replays(request));
        let largest = self.captured.iter().copied().max().unwrap_or(0);
        if replayed && base.len() > largest {
            return refused(format!(
                "the largest captured graph has {largest} rows and the batch {}; call `capture` \
                 first, or send fewer",
                base.len()
            ));
        }
        self.check_adapters(requests)?;
        for request in requests {
            let name = &request.name;
            if request.prompt.is_empty() {
                return refused(format!("request `{name}` has an empty prompt; give it a token"));
            }
            let mut tokens = request.prompt.iter().chain(&request.forced);
            let vocabulary = self.dims.vocabulary;
            if let Some(token) = tokens.find(|&&token| u64::from(token) >= vocabulary) {
                return refused(format!(
                    "request `{name}` has token {token}; the vocabulary has {vocabulary}"
                ));
            }
            self.check_images(request)?;
            let length = request.prompt.len() + request.forced.len() + request.greedy_tokens;
            let most = self.dims.max_positions;
            if length as u64 > most {
                return refused(format!(
                    "request `{name}` has {length} tokens; the model has {most} positions"
                ));
            }
        }
        Ok(())
    }
}

/// A block table as kernels read it. Blocks and tokens are far below 2^31: the arena holds them.
pub(super) fn table(blocks: &[u32]) -> Vec<i32> {
    blocks.iter().map(|&block| block as i32).collect()
}
