//! The embedded reference engine behind the two traits.

use std::time::Duration;

use camino::Utf8Path;
use coldproof_checkpoint::TensorRef;
use coldproof_checkpoint::arch::ModelConfig;
use coldproof_contract::evidence::{Fact, LaunchFact, NodeFact};
use coldproof_contract::words::{
    Address, ByteRange, ExpertPlacement, Rank, Topology, TransactionId,
};
use coldproof_reference::engine as reference;
use coldproof_reference::faults::{FaultSwitch, Variant};

use crate::engine::{
    Capabilities, DecodeMode, Engine, EngineError, GenerateRequest, Image, Output, Probe,
    PromisedAdapter, Reply, StartSpec, WakeTag,
};

/// The embedded engine.
#[derive(Debug)]
pub struct Reference {
    engine: reference::Engine,
    topology: Topology,
}

impl Reference {
    /// Starts it.
    ///
    /// # Errors
    /// A model, a topology or a fault that it does not know.
    pub fn start(spec: &StartSpec) -> Reply<Self> {
        let refused = |text: String| EngineError::Refused { text };
        let model = ModelConfig::read(&spec.model).map_err(|error| refused(error.to_string()))?;
        let faults = spec.faults.iter().map(|id| switch(id)).collect::<Reply<Vec<_>>>()?;
        let mut config = reference::EngineConfig::new(model);
        config.topology = spec.topology;
        config.arena_base = spec.arena_base;
        config.seed = spec.seed;
        config.reversed_allocation = spec.reversed_allocation;
        config.faults = faults;
        config.lying = spec.lying;
        config.deadline = Duration::from_millis(spec.deadline_ms);
        if let Some(tiers) = &spec.kv_tiers {
            // One block more than tokens fill: unused entries of block tables name it.
            config.kv_blocks = tiers.cache_tokens.div_ceil(config.block_size).saturating_add(1);
            let (host_bytes, folder) = (tiers.host_bytes, Some(tiers.folder.clone()));
            config.kv_tiers = Some(reference::KvTiers { host_bytes, folder });
        }
        let engine = reference::Engine::start(config).map_err(translate)?;
        Ok(Self { engine, topology: spec.topology })
    }
}

/// `F1.05` is the fault, `F1.05~` its correct twin.
fn switch(id: &str) -> Reply<FaultSwitch> {
    let (id, variant) = match id.strip_suffix('~') {
        Some(id) => (id, Variant::Twin),
        None => (id, Variant::Faulty),
    };
    let id = id.parse().map_err(|error| EngineError::Refused { text: format!("{error}") })?;
    Ok(FaultSwitch { id, variant })
}

fn translate(error: reference::EngineError) -> EngineError {
    match error {
        reference::EngineError::Refused { text } => EngineError::Refused { text },
        reference::EngineError::Timeout { kernel, address, deadline_ms } => {
            EngineError::Timeout { deadline_ms, kernel, address }
        }
        reference::EngineError::Died { text, kernel, address } => {
            EngineError::Died { text, kernel, address }
        }
    }
}

fn asked(request: &GenerateRequest) -> reference::GenerateRequest {
    reference::GenerateRequest {
        name: request.name.clone(),
        prompt: request.prompt.clone(),
        forced: request.forced.clone(),
        mode: match request.mode {
            DecodeMode::Eager => reference::Mode::Eager,
            DecodeMode::Graph => reference::Mode::Graph,
        },
        use_prefix_cache: request.use_prefix_cache,
        images: request.images.iter().map(shown).collect(),
        use_encoder_cache: request.use_encoder_cache,
        greedy_tokens: request.greedy as usize,
        adapter: request.adapter.clone(),
        replica: request.replica,
    }
}

fn shown(image: &Image) -> reference::Image {
    reference::Image { at: image.at, shape: image.shape, pixels: image.pixels.clone() }
}

fn answered(output: reference::Output) -> Output {
    Output { rows: output.rows, greedy: output.greedy, draft_rows: output.draft_rows }
}

impl Engine for Reference {
    fn capabilities(&mut self) -> Reply<Capabilities> {
        Ok(Capabilities {
            kind: "reference".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            topology: self.topology,
            graphs: true,
            sleep: true,
            prefix_cache: true,
            batch_max: reference::BATCH_MAX,
            images: self.engine.takes_images(),
            kv_tiers: true,
            adapter_updates: true,
            expert_placement: true,
        })
    }

    fn set_deadline(&mut self, deadline: Duration) -> Reply<()> {
        self.engine.set_deadline(deadline);
        Ok(())
    }

    fn load(&mut self, tensors: &[TensorRef]) -> Reply<()> {
        self.engine.load(tensors).map_err(translate)
    }

    fn capture(&mut self) -> Reply<()> {
        self.engine.capture().map_err(translate)
    }

    fn generate(&mut self, request: &GenerateRequest) -> Reply<Output> {
        let output = self.engine.generate(&asked(request)).map_err(translate)?;
        Ok(answered(output))
    }

    fn generate_batch(&mut self, requests: &[GenerateRequest]) -> Reply<Vec<Output>> {
        let requests: Vec<_> = requests.iter().map(asked).collect();
        let outputs = self.engine.generate_batch(&requests).map_err(translate)?;
        Ok(outputs.into_iter().map(answered).collect())
    }

    fn pause(&mut self) -> Reply<()> {
        self.engine.pause().map_err(translate)
    }

    fn sleep(&mut self, level: u8) -> Reply<()> {
        self.engine.sleep(level).map_err(translate)
    }

    fn wake(&mut self, tag: WakeTag) -> Reply<()> {
        let tag = match tag {
            WakeTag::Weights => "weights",
            WakeTag::KvCache => "kv_cache",
        };
        self.engine.wake(tag).map_err(translate)
    }

    fn begin(&mut self, required: &[String]) -> Reply<TransactionId> {
        self.engine.begin(required).map_err(translate)
    }

    fn begin_partial(&mut self, required: &[String], preserved: &[String]) -> Reply<TransactionId> {
        self.engine.begin_partial(required, preserved).map_err(translate)
    }

    fn begin_kernel(&mut self, required: &[String]) -> Reply<TransactionId> {
        self.engine.begin_kernel(required).map_err(translate)
    }

    fn begin_with_adapters(
        &mut self,
        required: &[String],
        preserved: &[String],
        adapters: &[PromisedAdapter],
    ) -> Reply<TransactionId> {
        let of = |adapter: &PromisedAdapter| (adapter.name.clone(), adapter.folder.clone());
        let adapters: Vec<_> = adapters.iter().map(of).collect();
        self.engine.begin_with_adapters(required, preserved, &adapters).map_err(translate)
    }

    fn apply_adapter(&mut self, name: &str) -> Reply<()> {
        self.engine.apply_adapter(name).map_err(translate)
    }

    fn apply(&mut self, bucket: &[TensorRef]) -> Reply<()> {
        self.engine.apply(bucket).map_err(translate)
    }

    fn finish(&mut self) -> Reply<()> {
        self.engine.finish().map_err(translate)
    }

    fn commit(&mut self) -> Reply<()> {
        self.engine.commit().map(|_| ()).map_err(translate)
    }

    fn abort(&mut self) -> Reply<()> {
        self.engine.abort().map_err(translate)
    }

    fn invalidate(&mut self) -> Reply<()> {
        self.engine.invalidate().map_err(translate)
    }

    fn resume(&mut self) -> Reply<()> {
        self.engine.resume().map_err(translate)
    }

    fn load_adapter(&mut self, name: &str, folder: &Utf8Path) -> Reply<()> {
        self.engine.load_adapter(name, folder).map_err(translate)
    }

    fn place_experts(&mut self, placement: &ExpertPlacement) -> Reply<()> {
        self.engine.place_experts(placement).map_err(translate)
    }

    fn claims(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        self.engine.claims().map_err(translate)
    }

    fn drain_claims(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        self.engine.drain_claims().map_err(translate)
    }

    fn shutdown(&mut self) {
        self.engine.shutdown();
    }
}

impl Probe for Reference {
    fn allocator_log(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        self.engine.allocator_log().map_err(translate)
    }

    fn graph_nodes(&mut self) -> Reply<Vec<(Rank, NodeFact)>> {
        let facts = self.engine.graph_nodes().map_err(translate)?;
        let node = |(rank, fact)| match fact {
            Fact::Node(node) => Some((rank, node)),
            _ => None,
        };
        Ok(facts.into_iter().filter_map(node).collect())
    }

    fn launches(&mut self) -> Reply<Vec<(Rank, LaunchFact)>> {
        let facts = self.engine.launches().map_err(translate)?;
        let launch = |(rank, fact)| match fact {
            Fact::Launch(launch) => Some((rank, launch)),
            _ => None,
        };
        Ok(facts.into_iter().filter_map(launch).collect())
    }

    fn read(&mut self, rank: Rank, range: ByteRange) -> Reply<Vec<u8>> {
        self.engine.read(rank, range.address, range.bytes).map_err(translate)
    }

    fn write(&mut self, rank: Rank, address: Address, bytes: &[u8]) -> Reply<()> {
        self.engine.write(rank, address, bytes).map_err(translate)
    }

    fn pressure(&mut self) -> Reply<()> {
        self.engine.pressure().map(|_| ()).map_err(translate)
    }

    fn release_pressure(&mut self) -> Reply<()> {
        self.engine.release_pressure().map_err(translate)
    }
}
