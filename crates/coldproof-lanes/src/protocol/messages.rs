//! Requests and answers.

use camino::Utf8PathBuf;
use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::{Fact, LaunchFact, NodeFact};
use coldproof_contract::words::{Address, ByteRange, ExpertPlacement, Rank, TransactionId};
use serde::{Deserialize, Serialize};

use crate::engine::{
    Capabilities, EngineError, GenerateRequest, Output, PromisedAdapter, ReadBack, ReadBackRequest,
    StartSpec, WakeTag,
};

/// One line to an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each command is a method of `Engine` or `Probe`")]
pub enum Request {
    Initialize {
        spec: StartSpec,
    },
    Capabilities,
    Deadline {
        ms: u64,
    },
    Load {
        tensors: Vec<TensorRef>,
    },
    Capture,
    Generate {
        request: GenerateRequest,
    },
    GenerateBatch {
        requests: Vec<GenerateRequest>,
    },
    Pause,
    Sleep {
        level: u8,
    },
    Wake {
        tag: WakeTag,
    },
    Begin {
        required: Vec<String>,
    },
    BeginPartial {
        required: Vec<String>,
        preserved: Vec<String>,
    },
    BeginKernel {
        required: Vec<String>,
    },
    BeginWithAdapters {
        required: Vec<String>,
        preserved: Vec<String>,
        adapters: Vec<PromisedAdapter>,
    },
    Apply {
        bucket: Vec<TensorRef>,
    },
    ApplyAdapter {
        name: String,
    },
    Finish,
    Commit,
    Abort,
    Invalidate,
    Resume,
    LoadAdapter {
        name: String,
        folder: Utf8PathBuf,
    },
    PlaceExperts {
        placement: ExpertPlacement,
    },
    Claims,
    DrainClaims,
    AllocatorLog,
    Census,
    Launches,
    Read {
        rank: Rank,
        range: ByteRange,
    },
    Write {
        rank: Rank,
        address: Address,
        bytes: Vec<u8>,
    },
    Pressure,
    ReleasePressure,
    Digest {
        rank: Rank,
        requests: Vec<ReadBackRequest>,
    },
    Shutdown,
}

/// One line from an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each answer is what a method of `Engine` or `Probe` returns")]
pub enum Answer {
    Done,
    Failed { error: EngineError },
    Capabilities { capabilities: Capabilities },
    Output(OutputBits),
    Outputs { outputs: Vec<OutputBits> },
    Transaction { id: TransactionId },
    Facts { facts: Vec<(Rank, Fact)> },
    Nodes { nodes: Vec<(Rank, NodeFact)> },
    Launches { launches: Vec<(Rank, LaunchFact)> },
    Bytes { bytes: Vec<u8> },
    ReadBacks { read_backs: Vec<ReadBack> },
}

/// An [`Output`] whose logits travel as bits: JSON has no infinities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputBits {
    /// (position, f32 bits of the whole vocabulary), as [`Output::rows`].
    pub rows: Vec<(u32, Vec<u32>)>,
    /// The chosen tokens.
    pub greedy: Vec<u32>,
    /// As [`Output::draft_rows`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draft_rows: Vec<(u32, Vec<u32>)>,
}

impl From<Output> for OutputBits {
    fn from(output: Output) -> Self {
        let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
        let rows = |rows: Vec<(u32, Vec<f32>)>| {
            rows.into_iter().map(|(position, row)| (position, bits(row))).collect()
        };
        let Output { rows: own, greedy, draft_rows } = output;
        Self { rows: rows(own), greedy, draft_rows: rows(draft_rows) }
    }
}

impl From<OutputBits> for Output {
    fn from(output: OutputBits) -> Self {
        let row = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
        let rows = |rows: Vec<(u32, Vec<u32>)>| {
            rows.into_iter().map(|(position, bits)| (position, row(bits))).collect()
        };
        let OutputBits { rows: own, greedy, draft_rows } = output;
        Self { rows: rows(own), greedy, draft_rows: rows(draft_rows) }
    }
}
