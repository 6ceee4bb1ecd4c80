//! Which topologies a model can have, and which the routing lane takes.

use coldproof_checkpoint::arch::ModelConfig;
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::Topology;

use super::placeable;
use super::read::{Model, Read};
use crate::error::Failure;
use crate::settings::ProveSettings;

/// Degrees that the embedded engine has.
const DEGREES: [u32; 5] = [1, 2, 3, 4, 8];

/// The topology asked for, or the smallest that the faults need.
pub(super) fn asked(to: &Read, settings: &ProveSettings, least: u32) -> Result<Topology, Failure> {
    let Some(tp) = settings.tp else { return Ok(Topology::SINGLE) };
    if tp < least {
        return Err(Failure::usage(
            "--tp",
            format!("the fault needs tp {least} and --tp is {tp}"),
            "give more ranks, or leave --tp out",
        ));
    }
    let Model::Known(model) = &to.model else { return Ok(Topology::tensor(tp)) };
    let rules = &to.rules;
    let valid: Vec<u32> = DEGREES.into_iter().filter(|&tp| divides(model, rules, tp)).collect();
    if valid.contains(&tp) {
        return Ok(Topology::tensor(tp));
    }
    let list: Vec<String> = valid.iter().map(u32::to_string).collect();
    Err(Failure::usage(
        "--tp",
        format!(
            "tp {tp} does not divide {} attention heads and {} kv heads of this model",
            model.heads, model.kv_heads
        ),
        format!("these do: {}", list.join(", ")),
    ))
}

/// The topology of the routing lane: that of the run, or the smallest above one rank.
pub(crate) fn routing(
    model: &ModelConfig,
    rules: &[SourceRule],
    run: Topology,
    settings: &ProveSettings,
    least: u32,
    notes: &mut Vec<String>,
) -> Topology {
    if run.size() > 1 || !settings.lanes.contains(&coldproof_contract::evidence::LaneName::Routing)
    {
        return run;
    }
    let found = DEGREES.into_iter().find(|&tp| tp >= least.max(2) && divides(model, rules, tp));
    match found {
        Some(tp) => {
            notes.push(format!(
                "the routing lane started tp {tp} by itself: one rank cannot show a wrong rank"
            ));
            Topology::tensor(tp)
        }
        None => {
            notes
                .push("no tp above 1 divides this model; the routing lane has one rank".to_owned());
            run
        }
    }
}

fn divides(model: &ModelConfig, rules: &[SourceRule], tp: u32) -> bool {
    let tp64 = u64::from(tp);
    let kv = model.kv_heads.is_multiple_of(tp64) || tp64.is_multiple_of(model.kv_heads);
    model.heads.is_multiple_of(tp64) && kv && placeable(rules, Topology::tensor(tp))
}
