//! Every check can fail, and stays silent on the nearest correct twin. Each test changes one thing
//! in a run in which everything is right.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod adapters;
mod caches;
mod deliveries;
mod derived;
mod drafts;
mod exercised;
mod factors;
mod fuzz;
mod images;
mod kernel_format;
mod left_out;
mod lifecycle;
mod names;
mod outputs;
mod packed;
mod partial;
mod placement;
mod post_load;
mod recaptured;
mod record;
mod refused;
mod replicas;
mod rooms;
mod routing;
mod state;
mod storage;
mod strikes;
mod support;
mod tiers;
mod topologies;
mod transition;
mod unknown;
mod unseen;
mod verdict;

#[test]
fn a_run_in_which_nothing_is_wrong_passes_everything() {
    support::assert_silent(&support::correct());
    support::assert_silent(&support::correct_at(2));
}
