//! `docs/adapters.md` has every message of the protocol, with its fields, and no other.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_checkpoint::TensorRef;
use coldproof_contract::words::{
    Address, ByteRange, Dtype, ExpertPlacement, Packing, Rank, Topology, TransactionId,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Answer, OutputBits, Request};
use crate::engine::{
    Capabilities, DecodeMode, EngineError, GenerateRequest, Image, KvTiers, PromisedAdapter,
    ReadBackRequest, StartSpec, WakeTag,
};

const PAGE: &str = include_str!("../../../../docs/adapters.md");

/// Names of messages with the names of their fields.
type Messages = BTreeMap<String, BTreeSet<String>>;

/// What stands between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Cells of the rows of each table whose first heading is `heading`.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in PAGE.lines() {
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        inside = line.starts_with('|') && (inside || cells[0] == heading);
        if inside && cells[0].starts_with('`') {
            rows.push(cells);
        }
    }
    rows
}

/// The messages of the tables whose first heading is `heading`. A cell says `field`s, and after a
/// colon what they hold.
fn documented(heading: &str) -> Messages {
    let message = |cells: Vec<String>| {
        let name = quoted(&cells[0]).remove(0);
        let name = match serde_json::from_str::<Value>(&name) {
            Ok(error) => error["error"].as_str().unwrap().to_owned(),
            Err(_) => name,
        };
        let fields = cells.get(1).map_or("", |cell| cell.split(':').next().unwrap());
        (name, quoted(fields).into_iter().collect())
    };
    rows(heading).into_iter().map(message).collect()
}

/// Every name that the type has for itself: an unknown one is refused with the list.
fn names<T: DeserializeOwned + std::fmt::Debug>(tag: &str) -> BTreeSet<String> {
    let unknown = serde_json::json!({ tag: "no such message" });
    let text = serde_json::from_value::<T>(unknown).unwrap_err().to_string();
    quoted(&text).into_iter().skip(1).collect()
}

/// The messages of these samples; there must be one of each that the type has.
fn known<T>(tag: &str, samples: &[T]) -> Messages
where
    T: serde::Serialize + DeserializeOwned + std::fmt::Debug,
{
    let message = |sample: &T| {
        let mut value = serde_json::to_value(sample).unwrap();
        let fields = value.as_object_mut().unwrap();
        let name = fields.remove(tag).unwrap().as_str().unwrap().to_owned();
        (name, fields.keys().cloned().collect())
    };
    let messages: Messages = samples.iter().map(message).collect();
    assert_eq!(messages.keys().cloned().collect::<BTreeSet<_>>(), names::<T>(tag));
    messages
}

fn fields<T: serde::Serialize>(sample: &T) -> BTreeSet<String> {
    let value = serde_json::to_value(sample).unwrap();
    value.as_object().unwrap().keys().cloned().collect()
}

/// The fields that a paragraph beginning with `name` lists.
fn listed(name: &str) -> BTreeSet<String> {
    let first = format!("`{name}`:");
    let text = PAGE.split("\n\n").find_map(|text| text.split_once(&first)).unwrap().1;
    quoted(text).into_iter().collect()
}

pub(super) fn spec() -> StartSpec {
    StartSpec {
        model: "model".into(),
        topology: Topology::SINGLE,
        seed: 0,
        arena_base: 0,
        reversed_allocation: false,
        faults: vec![],
        lying: false,
        deadline_ms: 1,
        adapter_rank: 0,
        kv_tiers: None,
    }
}

fn tiers() -> KvTiers {
    KvTiers { cache_tokens: 0, host_bytes: 0, folder: "folder".into() }
}

pub(super) fn request() -> GenerateRequest {
    GenerateRequest {
        name: String::new(),
        prompt: vec![],
        forced: vec![],
        greedy: 0,
        mode: DecodeMode::Eager,
        use_prefix_cache: false,
        adapter: None,
        images: vec![],
        use_encoder_cache: false,
        // The first is left out.
        replica: 1,
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        kind: String::new(),
        version: String::new(),
        topology: Topology::SINGLE,
        graphs: false,
        sleep: false,
        prefix_cache: false,
        batch_max: 1,
        images: false,
        kv_tiers: false,
        adapter_updates: false,
        expert_placement: false,
    }
}

fn promised() -> PromisedAdapter {
    PromisedAdapter { name: String::new(), folder: "folder".into() }
}

fn tensor() -> TensorRef {
    TensorRef {
        name: String::new(),
        file: "file".into(),
        offset: 0,
        bytes: 0,
        dtype: Dtype::Bf16,
        shape: vec![],
    }
}

fn requests() -> Vec<Request> {
    let (rank, address) = (Rank::default(), Address(0));
    let range = ByteRange { address, bytes: 0 };
    vec![
        Request::Initialize { spec: spec() },
        Request::Capabilities,
        Request::Deadline { ms: 1 },
        Request::Load { tensors: vec![tensor()] },
        Request::Capture,
        Request::Generate { request: request() },
        Request::GenerateBatch { requests: vec![request()] },
        Request::Pause,
        Request::Sleep { level: 1 },
        Request::Wake { tag: WakeTag::Weights },
        Request::Begin { required: vec![] },
        Request::BeginPartial { required: vec![], preserved: vec![] },
        Request::BeginKernel { required: vec![] },
        Request::BeginWithAdapters {
            required: vec![],
            preserved: vec![],
            adapters: vec![promised()],
        },
        Request::Apply { bucket: vec![tensor()] },
        Request::ApplyAdapter { name: String::new() },
        Request::Finish,
        Request::Commit,
        Request::Abort,
        Request::Invalidate,
        Request::Resume,
        Request::LoadAdapter { name: String::new(), folder: "folder".into() },
        Request::PlaceExperts { placement: ExpertPlacement::default() },
        Request::Claims,
        Request::DrainClaims,
        Request::AllocatorLog,
        Request::Census,
        Request::Launches,
        Request::Read { rank, range },
        Request::Write { rank, address, bytes: vec![] },
        Request::Pressure,
        Request::ReleasePressure,
        Request::Digest { rank, requests: vec![read_back()] },
        Request::Shutdown,
    ]
}

fn read_back() -> ReadBackRequest {
    ReadBackRequest {
        address: Address(0),
        dtype: Dtype::Bf16,
        logical_shape: vec![],
        packing: Packing::Plain,
        permutation: None,
        pieces: vec![],
        zero_fill: false,
    }
}

fn errors() -> Vec<EngineError> {
    let text = String::new;
    vec![
        EngineError::Refused { text: text() },
        EngineError::Unsupported { what: text() },
        EngineError::Timeout { deadline_ms: 1, kernel: None, address: None },
        EngineError::Died { text: text(), kernel: None, address: None },
    ]
}

fn answers() -> Vec<Answer> {
    let output = OutputBits { rows: vec![], greedy: vec![], draft_rows: vec![(0, vec![])] };
    vec![
        Answer::Done,
        Answer::Failed { error: errors().remove(0) },
        Answer::Capabilities { capabilities: capabilities() },
        Answer::Output(output.clone()),
        Answer::Outputs { outputs: vec![output] },
        Answer::Transaction { id: TransactionId(1) },
        Answer::Facts { facts: vec![] },
        Answer::Nodes { nodes: vec![] },
        Answer::Launches { launches: vec![] },
        Answer::Bytes { bytes: vec![] },
        Answer::ReadBacks { read_backs: vec![] },
    ]
}

#[test]
fn every_message_is_documented_with_its_fields() {
    assert_eq!(documented("command"), known("command", &requests()));
    assert_eq!(documented("answer"), known("answer", &answers()));
    assert_eq!(documented("error"), known("error", &errors()));
}

#[test]
fn every_command_is_answered_as_documented() {
    let answers: BTreeSet<String> = documented("answer").into_keys().collect();
    for cells in rows("command") {
        let [answer] = quoted(&cells[2]).try_into().unwrap();
        assert!(answers.contains(&answer), "{cells:?}");
    }
}

#[test]
fn every_field_of_what_messages_carry_is_named() {
    for (name, wanted) in [
        ("spec", fields(&spec())),
        ("capabilities", fields(&capabilities())),
        ("request", fields(&request())),
        ("promised adapter", fields(&promised())),
        ("image", fields(&Image { at: 0, shape: [1; 3], pixels: vec![] })),
        ("kv_tiers", fields(&tiers())),
    ] {
        let missing: Vec<_> = wanted.difference(&listed(name)).cloned().collect();
        assert!(missing.is_empty(), "`{name}`: {missing:?}");
    }
}

#[test]
fn a_capability_that_is_left_out_is_none() {
    let mut value = serde_json::to_value(Capabilities {
        batch_max: 4,
        images: true,
        kv_tiers: true,
        adapter_updates: true,
        expert_placement: true,
        ..capabilities()
    })
    .unwrap();
    for name in ["batch_max", "images", "kv_tiers", "adapter_updates", "expert_placement"] {
        value.as_object_mut().unwrap().remove(name);
    }
    let read = serde_json::from_value::<Capabilities>(value).unwrap();
    let left = [read.images, read.kv_tiers, read.adapter_updates, read.expert_placement];
    assert_eq!((read.batch_max, left), (1, [false; 4]));
}
