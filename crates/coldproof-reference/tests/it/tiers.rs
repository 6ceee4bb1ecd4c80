//! Tiers below the KV cache: what they give back has the bits of what was computed, on the same
//! weights alone.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::{Factors, Lora};
use coldproof_contract::evidence::{CacheFact, Fact, RequestStage};
use coldproof_contract::words::Topology;
use coldproof_reference::adapters::modules;
use coldproof_reference::engine::{Engine, EngineConfig, GenerateRequest, KvTiers, Mode};
use coldproof_reference::faults::{FaultId, Variant};

use crate::fixtures::{
    Bits, as_expected, bits, config, loaded, model_config, request, rows, tensors, update,
    with_fault,
};

const BLOCK: u32 = 4;
const HOST: Option<RequestStage> = Some(RequestStage::HostTier);
const FILE: Option<RequestStage> = Some(RequestStage::FileTier);

fn scratch() -> (tempfile::TempDir, Utf8PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(scratch.path()).unwrap().join("kv");
    (scratch, folder)
}

/// An engine whose KV cache holds one request.
fn tiered(base: EngineConfig, folder: Option<&Utf8Path>) -> EngineConfig {
    let tiers = KvTiers { host_bytes: 1 << 26, folder: folder.map(Utf8Path::to_owned) };
    let kv_blocks = 1 + 48 / BLOCK;
    EngineConfig { block_size: BLOCK, kv_blocks, kv_tiers: Some(tiers), ..base }
}

fn cached(model: &str) -> GenerateRequest {
    as_expected(model, GenerateRequest { use_prefix_cache: true, ..request(Mode::Eager) })
}

/// A request that shares no prefix with the other, and pushes it out of the KV cache.
fn filler() -> GenerateRequest {
    let prompt = (0..47).map(|index| 11 + 5 * index).collect();
    let name = "filler".to_owned();
    GenerateRequest { name, prompt, use_prefix_cache: true, ..GenerateRequest::default() }
}

fn serve(engine: &mut Engine, request: &GenerateRequest) -> Bits {
    bits(&engine.generate(request).unwrap().rows)
}

/// The answer, and which rows it took.
fn seen(engine: &mut Engine, model: &str) -> (Bits, BTreeMap<Option<RequestStage>, u64>) {
    engine.launches().unwrap();
    let answer = serve(engine, &cached(model));
    (answer, rows(engine))
}

fn caches(engine: &mut Engine, name: &str) -> Vec<CacheFact> {
    let facts = engine.claims().unwrap().into_iter();
    let own = facts.filter_map(|(_, fact)| match fact {
        Fact::Cache(cache) if cache.cache == name => Some(cache),
        _ => None,
    });
    own.collect()
}

/// What the engine said of its files.
fn told(engine: &mut Engine) -> Vec<String> {
    let facts = engine.drain_claims().unwrap().into_iter();
    let own = facts.filter_map(|(_, fact)| match fact {
        Fact::Claim(claim) if claim.what == "file-kv" => Some(claim.value),
        _ => None,
    });
    own.collect()
}

/// Files of blocks below a folder.
fn files(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir_utf8().unwrap() {
        let path = entry.unwrap().into_path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn what_each_tier_gives_back_has_the_bits_of_what_was_computed() {
    let tp = Topology::tensor;
    for (model, topology) in [
        ("llama", tp(1)),
        ("llama", Topology { tp: 2, pp: 2, ep: 1, ..Topology::SINGLE }),
        ("deepseek_v3", tp(2)),
        ("deepseek_v3", Topology { tp: 1, pp: 1, ep: 2, ..Topology::SINGLE }),
        ("mamba2", tp(1)),
        ("mamba2", tp(2)),
        ("nemotron_h", tp(2)),
        ("gemma3", tp(1)),
        ("llava", tp(1)),
    ] {
        let (_scratch, folder) = scratch();
        let start = || {
            let base = EngineConfig { topology, ..config(model, 1) };
            loaded(tiered(base, Some(&folder)), model, "A")
        };
        let (mut engine, ranks) = (start(), u64::from(topology.size()));
        let what = format!("{model} {topology:?}");
        let (computed, full) = seen(&mut engine, model);
        assert_eq!(full.get(&HOST), None, "{what}");
        // The last token is computed: of the whole blocks before it none is.
        let prompt = cached(model).prompt.len() as u64;
        let reused = (prompt - 1) / u64::from(BLOCK) * u64::from(BLOCK) * ranks;
        serve(&mut engine, &filler());
        let (fetched, from) = seen(&mut engine, model);
        assert_eq!(fetched, computed, "{what}: host");
        assert_eq!((from[&HOST], from.get(&FILE)), (reused, None), "{what}");
        assert!(from[&None] < full[&None], "{what}: {from:?} of {full:?}");
        assert!(caches(&mut engine, "host-kv").iter().all(|cache| cache.hits > 0), "{what}");
        drop(engine);
        let mut engine = start();
        let (fetched, from) = seen(&mut engine, model);
        assert_eq!(fetched, computed, "{what}: file");
        assert_eq!((from[&FILE], from.get(&HOST)), (reused, None), "{what}");
        let stated = caches(&mut engine, "file-kv");
        assert_eq!(stated.len() as u64, ranks, "{what}");
        assert!(stated.iter().all(|cache| cache.hits > 0 && cache.entries > 0), "{what}");
        // What was fetched from a file is in host memory too.
        serve(&mut engine, &filler());
        let (fetched, from) = seen(&mut engine, model);
        assert_eq!((fetched, from[&HOST]), (computed, reused), "{what}");
    }
}

#[test]
fn other_weights_take_nothing_and_the_same_ones_come_back() {
    let (_scratch, folder) = scratch();
    let start = |label| loaded(tiered(config("llama", 2), Some(&folder)), "llama", label);
    let (a, full) = seen(&mut start("A"), "llama");
    let mut other = start("B");
    let (b, computed) = seen(&mut other, "llama");
    assert_eq!(computed, full, "another engine on B");
    assert_ne!(a, b);
    drop(other);
    let mut engine = start("A");
    assert_eq!(seen(&mut engine, "llama").0, a);
    serve(&mut engine, &filler());
    update(&mut engine, &tensors("llama", "B")).unwrap();
    assert_eq!(caches(&mut engine, "host-kv")[0].entries, 0);
    let (updated, from) = seen(&mut engine, "llama");
    assert_eq!(updated, b);
    assert_eq!(from.get(&HOST), None, "the host tier is emptied");
    assert!(from[&FILE] > 0, "B was computed by the engine before");
    serve(&mut engine, &filler());
    update(&mut engine, &tensors("llama", "A")).unwrap();
    let (back, from) = seen(&mut engine, "llama");
    assert_eq!((back, from.contains_key(&FILE)), (a, true), "content has no age");
}

#[test]
fn host_memory_keeps_blocks_over_the_sleep_that_keeps_weights() {
    for (level, kept) in [(1, true), (2, false)] {
        let mut engine = loaded(tiered(config("llama", 1), None), "llama", "A");
        let (computed, _) = seen(&mut engine, "llama");
        assert!(caches(&mut engine, "host-kv")[0].entries > 0);
        assert!(caches(&mut engine, "file-kv").is_empty(), "there is no such tier");
        engine.pause().unwrap();
        engine.sleep(level).unwrap();
        engine.wake("weights").unwrap();
        engine.wake("kv_cache").unwrap();
        assert_eq!(caches(&mut engine, "host-kv")[0].entries > 0, kept, "level {level}");
        if level == 2 {
            engine.load(&tensors("llama", "A")).unwrap();
        }
        engine.resume().unwrap();
        let (answer, from) = seen(&mut engine, "llama");
        assert_eq!((answer, from.contains_key(&HOST)), (computed, kept), "level {level}");
    }
}

#[test]
fn a_full_host_tier_lets_the_oldest_blocks_go() {
    let base = tiered(config("llama", 1), None);
    let tiers = |host_bytes| Some(KvTiers { host_bytes, folder: None });
    let mut engine = loaded(base.clone(), "llama", "A");
    let (computed, full) = seen(&mut engine, "llama");
    let blocks = caches(&mut engine, "host-kv")[0].entries;
    let block_bytes = 2 * 2 * u64::from(BLOCK) * 64 * 4;
    for host_bytes in [0, block_bytes] {
        let small = EngineConfig { kv_tiers: tiers(host_bytes), ..base.clone() };
        let mut engine = loaded(small, "llama", "A");
        assert_eq!(seen(&mut engine, "llama"), (computed.clone(), full.clone()));
        assert!(caches(&mut engine, "host-kv")[0].entries < blocks);
        serve(&mut engine, &filler());
        assert_eq!(seen(&mut engine, "llama"), (computed.clone(), full.clone()), "{host_bytes}");
    }
}

#[test]
fn a_file_that_is_not_the_block_is_a_stated_miss_and_is_mended() {
    let (_scratch, folder) = scratch();
    let start = || loaded(tiered(config("llama", 2), Some(&folder)), "llama", "A");
    let (computed, full) = seen(&mut start(), "llama");
    let whole: Vec<(Utf8PathBuf, Vec<u8>)> =
        files(&folder).into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect();
    type Harm = fn(&Utf8Path, &[u8]);
    let harms: [(&str, Harm); 6] = [
        ("empty", |path, _| fs::write(path, "").unwrap()),
        ("truncated", |path, bytes| fs::write(path, &bytes[..bytes.len() - 1]).unwrap()),
        ("torn", |path, bytes| {
            let half = bytes.len() / 2;
            fs::write(path, [&bytes[..half], &vec![0; bytes.len() - half]].concat()).unwrap();
        }),
        ("foreign", |path, bytes| fs::write(path, vec![b'x'; bytes.len()]).unwrap()),
        ("a link to nothing", |path, _| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/nowhere", path).unwrap();
        }),
        ("a device", |path, _| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        }),
    ];
    for (what, harm) in harms {
        whole.iter().for_each(|(path, bytes)| harm(path, bytes));
        let mut engine = start();
        assert_eq!(seen(&mut engine, "llama"), (computed.clone(), full.clone()), "{what}");
        let told = told(&mut engine);
        assert_eq!(told.len(), 2, "{what}: one a rank: {told:?}");
        assert!(told.iter().all(|text| text.contains(".kv` is not taken: it ")), "{told:?}");
        let now: Vec<_> = whole.iter().map(|(path, _)| fs::read(path).unwrap()).collect();
        assert!(now.iter().eq(whole.iter().map(|(_, bytes)| bytes)), "{what}: mended");
    }
}

#[test]
fn a_block_is_a_hit_only_where_every_rank_has_it() {
    let (_scratch, folder) = scratch();
    let start = || loaded(tiered(config("llama", 2), Some(&folder)), "llama", "A");
    let mut engine = start();
    let (computed, full) = seen(&mut engine, "llama");
    let own = |rank: &str| -> Vec<Utf8PathBuf> {
        files(&folder).into_iter().filter(|path| path.as_str().contains(rank)).collect()
    };
    // Keys are the same on every rank, and one that is gone ends the prefix there.
    let names = |rank: &str| own(rank).iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    let (zero, one): (Vec<String>, Vec<String>) = (names("_r0/"), names("_r1/"));
    assert_eq!(zero, one);
    let mut fewer = Vec::new();
    for path in own("_r1/") {
        let (bytes, beside) = (fs::read(&path).unwrap(), path.with_extension("gone"));
        fs::rename(&path, &beside).unwrap();
        let (answer, from) = seen(&mut start(), "llama");
        assert_eq!(answer, computed);
        fewer.push(from.get(&FILE).copied().unwrap_or(0));
        assert_eq!(fs::read(&path).unwrap(), bytes, "it is there again");
        fs::remove_file(beside).unwrap();
    }
    // Of seven whole blocks five may be reused; each is some file's, on both ranks.
    fewer.sort_unstable();
    let rows = |blocks: u64| blocks * u64::from(BLOCK) * 2;
    assert_eq!(fewer, [0, 1, 2, 3, 4, 5, 5].map(rows), "{full:?}");
}

#[test]
fn a_folder_that_cannot_be_used_is_one_clear_error() {
    let (scratch, folder) = scratch();
    let file = Utf8Path::from_path(scratch.path()).unwrap().join("file");
    fs::write(&file, "").unwrap();
    let refused = Engine::start(tiered(config("llama", 2), Some(&file))).expect_err("a file");
    let text = refused.to_string();
    assert!(text.contains(file.as_str()) && text.contains("give a writable one"), "{text}");
    let mut engine = loaded(tiered(config("llama", 2), Some(&folder)), "llama", "A");
    fs::remove_dir_all(&folder).unwrap();
    let (computed, _) = seen(&mut engine, "llama");
    let told = told(&mut engine);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("7 blocks are not kept: "), "{told:?}");
    assert!(!folder.exists(), "nothing half-written");
    serve(&mut engine, &filler());
    let (answer, from) = seen(&mut engine, "llama");
    assert_eq!((answer, from.contains_key(&HOST)), (computed, true), "host memory has it");
}

/// Answers to the request, and whether a tier had a part in them: after an update to B by an engine
/// that served it on A, and by another engine on B with its folder.
fn with(id: Option<(FaultId, Variant)>, lying: bool) -> [(Bits, bool); 2] {
    let (_scratch, folder) = scratch();
    let base = EngineConfig { lying, ..tiered(config("llama", 1), Some(&folder)) };
    let base = id.map_or(base.clone(), |(id, variant)| with_fault(base, id, variant));
    let mut engine = loaded(base.clone(), "llama", "A");
    seen(&mut engine, "llama");
    let taken = |engine: &mut Engine| {
        let (answer, from) = seen(engine, "llama");
        (answer, from.contains_key(&HOST) || from.contains_key(&FILE))
    };
    let other = taken(&mut loaded(base.clone(), "llama", "B"));
    serve(&mut engine, &filler());
    // What the one on B kept is of the same weights as after the update: there is to be none of it.
    fs::remove_dir_all(&folder).unwrap();
    seen(&mut loaded(base, "llama", "A"), "llama");
    update(&mut engine, &tensors("llama", "B")).unwrap();
    [taken(&mut engine), other]
}

#[test]
fn each_tier_fault_serves_old_blocks_and_each_twin_none() {
    let [right, cold] = with(None, false);
    assert_eq!((right.1, cold.1), (false, false));
    assert_eq!(right.0, cold.0);
    for lying in [false, true] {
        for (id, updated, other) in
            [(FaultId::R38, true, false), (FaultId::R41, false, true), (FaultId::R59, true, true)]
        {
            let [after, beside] = with(Some((id, Variant::Faulty)), lying);
            assert_eq!((after.1, beside.1), (updated, other), "{id}");
            assert_eq!(after.0 != cold.0, updated, "{id}: the outputs are wrong");
            assert_eq!(beside.0 != cold.0, other, "{id}");
            let twin = with(Some((id, Variant::Twin)), lying);
            assert_eq!(twin, [right.clone(), cold.clone()], "{id}~");
        }
    }
}

#[test]
fn an_engine_of_another_cut_takes_no_block() {
    let (_scratch, folder) = scratch();
    let start = |base| loaded(tiered(base, Some(&folder)), "llama", "A");
    let (computed, _) = seen(&mut start(config("llama", 1)), "llama");
    let staged = EngineConfig {
        topology: Topology { tp: 1, pp: 2, ep: 1, ..Topology::SINGLE },
        ..config("llama", 1)
    };
    for base in [config("llama", 2), staged] {
        let mut engine = start(base);
        let (answer, from) = seen(&mut engine, "llama");
        assert_eq!((answer, from.get(&FILE)), (computed.clone(), None));
        assert_eq!(told(&mut engine), Vec::<String>::new());
    }
}

/// An adapter of rank 1 on every query projection.
fn adapter(at: &Utf8Path, value: f32) {
    let all = modules(&model_config("llama")).into_iter();
    let factors = all.filter(|module| module.name.ends_with("q_proj")).map(|module| {
        let (a, b) = (vec![value; module.inputs as usize], vec![value; module.outputs as usize]);
        (module.name.clone(), Factors::rounded((module.outputs, module.inputs), &a, &b))
    });
    Lora::write(at, (1, 1.0), &factors.collect()).unwrap();
}

#[test]
fn an_adapter_takes_the_blocks_of_its_content_under_any_name() {
    let (scratch, folder) = scratch();
    let root = Utf8Path::from_path(scratch.path()).unwrap();
    let (one, two) = (root.join("one"), root.join("two"));
    adapter(&one, 0.25);
    adapter(&two, 0.5);
    let start = || loaded(tiered(config("llama", 2), Some(&folder)), "llama", "A");
    let with = |engine: &mut Engine, name: &str| {
        engine.launches().unwrap();
        let adapter = Some(name.to_owned());
        let answer = serve(engine, &GenerateRequest { adapter, ..cached("llama") });
        (answer, rows(engine).contains_key(&FILE))
    };
    let mut engine = start();
    engine.load_adapter("adapter", &one).unwrap();
    let (first, _) = with(&mut engine, "adapter");
    assert!(!seen(&mut engine, "llama").1.contains_key(&HOST), "the base model computes its own");
    let mut engine = start();
    engine.load_adapter("adapter", &two).unwrap();
    let (second, fetched) = with(&mut engine, "adapter");
    assert!(!fetched && second != first, "another content under the same name");
    engine.load_adapter("other", &one).unwrap();
    assert_eq!(with(&mut engine, "other"), (first, true));
}
