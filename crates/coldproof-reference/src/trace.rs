//! The launch trace: which kernels ran for which request, and over how many rows.

use std::collections::BTreeMap;

use coldproof_contract::evidence::{LaunchFact, RequestStage};

/// Launches since the last drain, added up by (request, stage, graph, kernel).
#[derive(Debug, Default)]
pub struct Trace {
    request: String,
    stage: Option<RequestStage>,
    counts: BTreeMap<Key, Count>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    request: String,
    stage: Option<RequestStage>,
    graph: Option<String>,
    kernel: &'static str,
}

#[derive(Debug, Default)]
struct Count {
    launches: u64,
    rows: u64,
}

impl Trace {
    /// Names the request that the launches from now on belong to; empty where there is none.
    pub fn set_request(&mut self, request: &str) {
        request.clone_into(&mut self.request);
    }

    /// Names the stage of the request that the launches from now on belong to.
    pub const fn set_stage(&mut self, stage: Option<RequestStage>) {
        self.stage = stage;
    }

    /// Counts one launch over `rows` rows, from a replay of `graph` or an eager one.
    pub fn record(&mut self, kernel: &'static str, graph: Option<&str>, rows: u64) {
        let request = self.request.clone();
        let graph = graph.map(str::to_owned);
        let key = Key { request, stage: self.stage, graph, kernel };
        let count = self.counts.entry(key).or_default();
        count.launches += 1;
        count.rows = count.rows.saturating_add(rows);
    }

    /// The counts since the last call, sorted by request, stage, graph and kernel.
    pub fn drain(&mut self) -> Vec<LaunchFact> {
        let fact = |(key, count): (Key, Count)| LaunchFact {
            request: key.request,
            kernel: key.kernel.to_owned(),
            graph: key.graph,
            stage: key.stage,
            launches: count.launches,
            rows: count.rows,
        };
        std::mem::take(&mut self.counts).into_iter().map(fact).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_add_up_by_request_kernel_and_graph() {
        let mut trace = Trace::default();
        trace.set_request("r1");
        trace.record("linear", None, 7);
        trace.record("linear", None, 1);
        trace.record("linear", Some("decode-1"), 1);
        trace.set_request("r2");
        trace.record("linear", None, 2);
        let found: Vec<_> = trace
            .drain()
            .into_iter()
            .map(|fact| (fact.request, fact.graph, fact.launches, fact.rows))
            .collect();
        let graph = Some("decode-1".to_owned());
        let expected = [
            ("r1".to_owned(), None, 2, 8),
            ("r1".to_owned(), graph, 1, 1),
            ("r2".to_owned(), None, 1, 2),
        ];
        assert_eq!(found, expected);
        assert!(trace.drain().is_empty());
    }
}
