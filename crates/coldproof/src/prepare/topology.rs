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

/// The most ranks that it has.
const RANKS_MAX: u32 = coldproof_reference::engine::RANKS_MAX;

/// The topology asked for, or the smallest that the faults need: `least` in any lane, of which
/// `tp` in all of them.
pub(super) fn asked(
    to: &Read,
    settings: &ProveSettings,
    (least, tp): (Topology, u32),
) -> Result<Topology, Failure> {
    let topology = Topology {
        tp: settings.tp.unwrap_or(tp),
        pp: settings.pp,
        ep: settings.ep.unwrap_or(least.ep),
        dp: settings.dp.unwrap_or(least.dp),
    };
    let tp = topology.tp;
    let axes = [
        ("--tp", settings.tp, least.tp),
        ("--ep", settings.ep, least.ep),
        ("--dp", settings.dp, least.dp),
    ];
    for (option, typed, least) in axes {
        if let Some(typed) = typed.filter(|typed| *typed < least) {
            return Err(Failure::usage(
                option,
                format!("the fault needs {option} {least} and it is {typed}"),
                format!("give more ranks, or leave {option} out"),
            ));
        }
    }
    let Model::Known(model) = &to.model else { return Ok(Topology::tensor(tp)) };
    spread(model, topology.ep)?;
    let rules = &to.rules;
    let valid: Vec<u32> = DEGREES.into_iter().filter(|&tp| divides(model, rules, tp)).collect();
    if valid.contains(&tp) {
        return within(topology);
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

/// Whether the experts of a model can be spread over `ep` ranks.
fn spread(model: &ModelConfig, ep: u32) -> Result<(), Failure> {
    let experts = model.moe.as_ref().map(|moe| moe.experts);
    match experts {
        _ if ep == 1 => Ok(()),
        None => Err(Failure::usage(
            "--ep",
            format!("--ep {ep} spreads experts, and this model has none"),
            "leave --ep out",
        )),
        Some(experts) if experts.is_multiple_of(ep.into()) => Ok(()),
        Some(experts) => {
            let divide = (1..=experts).filter(|ep| experts.is_multiple_of(*ep));
            let list: Vec<String> = divide.map(|ep| ep.to_string()).collect();
            Err(Failure::usage(
                "--ep",
                format!("ep {ep} does not divide the {experts} experts of this model"),
                format!("these do: {}", list.join(", ")),
            ))
        }
    }
}

/// A topology of no more ranks than the embedded engine starts.
fn within(topology: Topology) -> Result<Topology, Failure> {
    if topology.size() <= RANKS_MAX {
        return Ok(topology);
    }
    let Topology { tp, pp, ep, dp } = topology;
    let size = [tp, pp, ep, dp].into_iter().map(u128::from).product::<u128>();
    Err(Failure::usage(
        if dp > 1 { "--dp" } else { "--pp" },
        format!("tp {tp}, pp {pp}, ep {ep} and dp {dp} are {size} ranks; the most are {RANKS_MAX}"),
        "give fewer",
    ))
}

/// The topology of the routing lane: that of the run, with the smallest tp above one.
pub(crate) fn routing(
    model: &ModelConfig,
    rules: &[SourceRule],
    run: Topology,
    settings: &ProveSettings,
    least: u32,
    notes: &mut Vec<String>,
) -> Topology {
    if run.tp > 1 || !settings.lanes.contains(&coldproof_contract::evidence::LaneName::Routing) {
        return run;
    }
    let fits = |tp| Topology { tp, ..run }.size() <= RANKS_MAX && divides(model, rules, tp);
    let found = DEGREES.into_iter().find(|&tp| tp >= least.max(2) && fits(tp));
    match found {
        Some(tp) => {
            notes.push(format!(
                "the routing lane started tp {tp} by itself: one rank cannot show a wrong rank"
            ));
            Topology { tp, ..run }
        }
        None => {
            notes.push(
                "no tp above 1 divides this model or has its ranks; the routing lane has tp 1"
                    .to_owned(),
            );
            run
        }
    }
}

fn divides(model: &ModelConfig, rules: &[SourceRule], tp: u32) -> bool {
    let tp64 = u64::from(tp);
    let kv = model.kv_heads.is_multiple_of(tp64) || tp64.is_multiple_of(model.kv_heads);
    model.heads.is_multiple_of(tp64) && kv && placeable(rules, Topology::tensor(tp))
}
