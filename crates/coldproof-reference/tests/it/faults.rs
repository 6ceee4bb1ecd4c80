//! Each fault does what its row says, seen from bytes, addresses or outputs; its twin does not.

use std::collections::BTreeMap;

use camino::Utf8Path;
use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::Fact;
use coldproof_contract::words::{Address, Rank};
use coldproof_reference::engine::{Engine, EngineConfig, EngineError, GenerateRequest, Mode};
use coldproof_reference::faults::{FAULTS, FaultId, FaultRow, Spelling, Variant};

use crate::fixtures::{
    Bits, addresses, bits, config, differences, fused, loaded, memory, request, serve, tensors,
    update, with_fault,
};

/// A model and a topology that show a fault, and the update that does.
fn needs(row: &FaultRow, folder: &Utf8Path) -> (&'static str, u32, Vec<TensorRef>) {
    let model = row.family.unwrap_or("llama");
    let update = match row.spelling {
        Spelling::Any | Spelling::PerExpert => tensors(model, "B"),
        Spelling::Fused => fused(model, "B", folder),
    };
    (model, row.min_tp, update)
}

/// What can be seen after A, capture, a warm request, an update to B, and pressure.
struct Seen {
    /// Slots whose bytes are not those of cold B, with the ranks.
    differing: BTreeMap<String, Vec<u32>>,
    /// Slots whose registered address moved.
    moved: Vec<String>,
    /// Captured addresses of blocks that were freed since.
    stale: Vec<String>,
    graph: Result<Bits, EngineError>,
    eager: Result<Bits, EngineError>,
    cached: Result<Bits, EngineError>,
}

fn cached() -> GenerateRequest {
    GenerateRequest { use_prefix_cache: true, ..request(Mode::Eager) }
}

/// Purposes of freed blocks that graphs still point into.
fn stale(engine: &mut Engine) -> Vec<String> {
    let mut live: BTreeMap<(Rank, Address), String> = BTreeMap::new();
    let mut freed: BTreeMap<(Rank, Address), String> = BTreeMap::new();
    for (rank, fact) in engine.allocator_log().unwrap() {
        match fact {
            Fact::Alloc(alloc) => {
                live.insert((rank, alloc.address), alloc.purpose);
            }
            Fact::Free(free) => {
                if let Some(purpose) = live.remove(&(rank, free.address)) {
                    freed.insert((rank, free.address), purpose);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (rank, fact) in engine.graph_nodes().unwrap() {
        let Fact::Node(node) = fact else { continue };
        for arg in node.args {
            let owner = live.get(&(rank, arg.address)).filter(|owner| *owner != "pressure");
            if let (None, Some(purpose)) = (owner, freed.get(&(rank, arg.address))) {
                found.push(purpose.clone());
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn observe(row: &FaultRow, variant: Option<Variant>, lying: bool) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let (model, tp, to) = needs(row, folder);
    let deadline = std::time::Duration::from_millis(1500);
    let base = EngineConfig { deadline, lying, ..config(model, tp) };
    let base = variant.map_or(base.clone(), |variant| with_fault(base, row.id, variant));
    let mut engine = loaded(base, model, "A");
    engine.capture().unwrap();
    engine.generate(&cached()).unwrap();
    let before = addresses(&mut engine);
    update(&mut engine, &to).unwrap();
    let after = addresses(&mut engine);
    let moved = before.iter().filter(|&(slot, address)| after[slot] != *address);
    let moved = moved.map(|((_, name), _)| name.clone()).collect();
    let mut cold = loaded(config(model, tp), model, "B");
    let differing = differences(&memory(&mut engine), &memory(&mut cold));
    engine.pressure().unwrap();
    let stale = stale(&mut engine);
    let eager = serve(&mut engine, Mode::Eager);
    let cached = engine.generate(&cached()).map(|output| bits(&output.rows));
    let graph = serve(&mut engine, Mode::Graph);
    Seen { differing, moved, stale, graph, eager, cached }
}

fn cold_b(row: &FaultRow) -> Bits {
    let model = row.family.unwrap_or("llama");
    serve(&mut loaded(config(model, row.min_tp), model, "B"), Mode::Eager).unwrap()
}

#[test]
fn every_twin_is_a_cold_load_in_every_respect() {
    for row in &FAULTS {
        for variant in [None, Some(Variant::Twin)] {
            let (seen, cold) = (observe(row, variant, false), cold_b(row));
            assert!(seen.differing.is_empty(), "{}: {:?}", row.id, seen.differing);
            assert!(seen.moved.is_empty() && seen.stale.is_empty(), "{}", row.id);
            assert_eq!(seen.graph.as_ref(), Ok(&cold), "{}", row.id);
            assert_eq!(seen.eager.as_ref(), Ok(&cold), "{}", row.id);
            assert_eq!(seen.cached.as_ref(), Ok(&cold), "{}", row.id);
        }
    }
}

fn faulty(id: FaultId) -> (Seen, Bits) {
    (observe(id.row(), Some(Variant::Faulty), false), cold_b(id.row()))
}

fn differs(object: &str, ranks: &[u32]) -> BTreeMap<String, Vec<u32>> {
    BTreeMap::from([(object.to_owned(), ranks.to_vec())])
}

#[test]
fn f1_01_moves_an_absorbed_matrix_away_from_the_old_graph() {
    let (seen, cold) = faulty(FaultId::F1_01);
    let object = FaultId::F1_01.row().object.to_owned();
    assert!(seen.differing.is_empty(), "the new matrix is right: {:?}", seen.differing);
    assert_eq!(seen.moved, std::slice::from_ref(&object));
    assert_eq!(seen.stale, [object]);
    assert_eq!(seen.eager.as_ref(), Ok(&cold), "eager launches use the new matrix");
    assert!(seen.graph.is_ok());
    assert_ne!(seen.graph, Ok(cold));
}

#[test]
fn f1_05_livelocks_the_old_graph_in_the_kernel_of_the_workspace() {
    let (seen, cold) = faulty(FaultId::F1_05);
    let object = FaultId::F1_05.row().object.to_owned();
    assert!(seen.differing.is_empty(), "the new scratch is right: {:?}", seen.differing);
    assert_eq!(seen.moved, std::slice::from_ref(&object));
    assert_eq!(seen.stale, [object]);
    assert_eq!(seen.eager, Ok(cold), "eager launches use the new scratch");
    let Err(EngineError::Timeout { kernel, address: Some(_), deadline_ms: 1500 }) = seen.graph
    else {
        panic!("{:?}", seen.graph)
    };
    assert_eq!(kernel.as_deref(), Some("linear_permuted"));
}

#[test]
fn f1_08_moves_the_permutation_behind_the_registry() {
    let (seen, cold) = faulty(FaultId::F1_08);
    let object = FaultId::F1_08.row().object.to_owned();
    assert!(seen.moved.is_empty(), "the registry names the old block");
    assert_eq!(seen.stale, std::slice::from_ref(&object));
    assert!(seen.differing.is_empty() || seen.differing == differs(&object, &[0]));
    assert_eq!(seen.eager.as_ref(), Ok(&cold), "eager launches use the new permutation");
    assert_ne!(seen.graph, Ok(cold));
}

#[test]
fn f2_01_keeps_the_copy_of_the_old_norm() {
    let (seen, cold) = faulty(FaultId::F2_01);
    assert_eq!(seen.differing, differs(FaultId::F2_01.row().object, &[0]));
    assert!(seen.moved.is_empty() && seen.stale.is_empty());
    assert!(seen.graph.is_ok());
    assert_ne!(seen.graph, Ok(cold));
}

#[test]
fn f3_01_scatters_rows_over_the_packed_experts() {
    let (seen, cold) = faulty(FaultId::F3_01);
    assert_eq!(seen.differing, differs(FaultId::F3_01.row().object, &[0]));
    assert_ne!(seen.graph, Ok(cold));
}

#[test]
fn f3_05_keeps_the_absorbed_matrices_of_the_old_projection() {
    let (seen, cold) = faulty(FaultId::F3_05);
    let layer = FaultId::F3_05.row().object;
    let stale = ["W_UK_T", "W_UV"].map(|name| (format!("{layer}.{name}"), vec![0]));
    assert_eq!(seen.differing, BTreeMap::from(stale), "the projection itself is new");
    assert!(seen.moved.is_empty() && seen.stale.is_empty());
    for outputs in [seen.eager, seen.graph] {
        assert!(outputs.is_ok());
        assert_ne!(outputs, Ok(cold.clone()), "prefill and decode read them");
    }
}

#[test]
fn f3_06_keeps_the_old_values_of_one_layer() {
    let (seen, cold) = faulty(FaultId::F3_06);
    assert_eq!(seen.differing, differs(FaultId::F3_06.row().object, &[0]));
    assert_ne!(seen.graph, Ok(cold));

    let mut engine =
        loaded(with_fault(config("llama", 1), FaultId::F3_06, Variant::Faulty), "llama", "A");
    engine.drain_claims().unwrap();
    update(&mut engine, &tensors("llama", "B")).unwrap();
    let facts = engine.drain_claims().unwrap();
    let applied = facts.iter().filter_map(|(_, fact)| match fact {
        Fact::Application(fact) => Some(fact.source.as_str()),
        _ => None,
    });
    let applied: Vec<&str> = applied.collect();
    assert_eq!(applied.len(), tensors("llama", "B").len(), "the count is full");
    let count = |part: &str| {
        let name = format!("model.layers.0.self_attn.{part}_proj.weight");
        applied.iter().filter(|source| **source == name).count()
    };
    assert_eq!([count("q"), count("k"), count("v")], [1, 2, 0]);
}

#[test]
fn f4_01_updates_one_of_two_names_and_computes_with_the_other() {
    let (seen, cold) = faulty(FaultId::F4_01);
    assert_eq!(seen.differing, differs(FaultId::F4_01.row().object, &[0]));
    assert_eq!(seen.moved, ["backbone.layers.0.mixer.conv1d.weight"]);
    assert!(seen.stale.is_empty(), "the view keeps the old block alive");
    assert_eq!(seen.graph, seen.eager);
    assert!(seen.eager.is_ok());
    assert_ne!(seen.eager, Ok(cold));
}

#[test]
fn f4_02_loses_the_rotary_table() {
    let (seen, cold) = faulty(FaultId::F4_02);
    assert_eq!(seen.differing, differs(FaultId::F4_02.row().object, &[0]));
    assert_ne!(seen.graph, Ok(cold));
}

#[test]
fn f5_01_gives_each_rank_its_slice_of_the_router() {
    let (seen, cold) = faulty(FaultId::F5_01);
    assert_eq!(seen.differing, differs(FaultId::F5_01.row().object, &[0, 1]));
    assert_ne!(seen.graph, Ok(cold));
}

#[test]
fn f6_02_keeps_the_old_experts_and_reports_success() {
    let (seen, cold) = faulty(FaultId::F6_02);
    let object = "model.layers.0.mlp.experts.w13_weight";
    assert_eq!(seen.differing, differs(object, &[0]));
    assert_ne!(seen.graph, Ok(cold));
}

/// The weights are right, and so is what is computed without the cache.
fn only_a_hit_is_wrong(fault: FaultId) {
    let (seen, cold) = faulty(fault);
    assert!(seen.differing.is_empty() && seen.moved.is_empty() && seen.stale.is_empty());
    assert_eq!(seen.graph.as_ref(), Ok(&cold));
    assert_eq!(seen.eager.as_ref(), Ok(&cold), "without the cache it is right");
    assert!(seen.cached.is_ok());
    assert_ne!(seen.cached, Ok(cold));
}

#[test]
fn f7_02_serves_keys_and_values_of_the_old_weights() {
    only_a_hit_is_wrong(FaultId::F7_02);
}

#[test]
fn f7_04_starts_from_states_of_the_old_weights() {
    only_a_hit_is_wrong(FaultId::F7_04);
}

#[test]
fn a_hit_has_the_bits_of_a_request_that_is_computed() {
    for model in ["mamba2", "nemotron_h"] {
        for tp in [1, 2] {
            let mut engine = loaded(config(model, tp), model, "A");
            let computed = serve(&mut engine, Mode::Eager).unwrap();
            let rows = |engine: &mut Engine| -> u64 {
                let output = bits(&engine.generate(&cached()).unwrap().rows);
                assert_eq!(output, computed, "{model} tp {tp}");
                let launches = engine.launches().unwrap().into_iter();
                let scans = launches.filter_map(|(_, fact)| match fact {
                    Fact::Launch(launch) if launch.kernel == "state_scan" => Some(launch.rows),
                    _ => None,
                });
                scans.sum()
            };
            engine.launches().unwrap();
            let (first, second) = (rows(&mut engine), rows(&mut engine));
            // One block of 16 positions, on each rank, in both state-space layers.
            assert_eq!(first - second, 16 * 2 * u64::from(tp), "{model} tp {tp}");
        }
    }
}

#[test]
fn a_lie_hides_what_the_engine_states_and_nothing_that_is_observed() {
    for row in &FAULTS {
        let (honest, lying) =
            (observe(row, Some(Variant::Faulty), false), observe(row, Some(Variant::Faulty), true));
        assert!(lying.moved.is_empty(), "{}: claims are a fault-free engine's", row.id);
        assert_eq!(lying.stale, honest.stale, "{}", row.id);
        assert_eq!(lying.graph, honest.graph, "{}", row.id);
        assert_eq!(lying.cached, honest.cached, "{}", row.id);
        let rebound =
            [FaultId::F1_01, FaultId::F1_02, FaultId::F1_05, FaultId::F4_01].contains(&row.id);
        assert!(rebound || lying.differing == honest.differing, "{}", row.id);
    }
}

#[test]
fn a_livelocked_engine_can_be_ended_from_another_thread() {
    let hour = std::time::Duration::from_secs(3600);
    let base = EngineConfig { deadline: hour, ..config("llama", 2) };
    let mut engine = loaded(with_fault(base, FaultId::F1_05, Variant::Faulty), "llama", "A");
    engine.capture().unwrap();
    update(&mut engine, &tensors("llama", "B")).unwrap();
    engine.pressure().unwrap();
    let canceller = engine.canceller();
    let hung = std::thread::spawn(move || serve(&mut engine, Mode::Graph));
    canceller.cancel();
    let error = hung.join().unwrap().expect_err("it hangs for an hour");
    assert!(error.ends(), "{error}");
}

#[test]
fn two_faults_at_once_do_what_each_does_alone() {
    let mut base = with_fault(config("llama", 1), FaultId::F2_01, Variant::Faulty);
    base.faults.extend(with_fault(base.clone(), FaultId::F4_02, Variant::Faulty).faults);
    let mut engine = loaded(base, "llama", "A");
    update(&mut engine, &tensors("llama", "B")).unwrap();
    let mut cold = loaded(config("llama", 1), "llama", "B");
    let found = differences(&memory(&mut engine), &memory(&mut cold));
    let objects = [FaultId::F2_01, FaultId::F4_02].map(|id| id.row().object);
    assert_eq!(found.keys().collect::<Vec<_>>(), objects);
}
