//! A captured graph, counted again: what tells whether it is still the graph that was captured.

use serde::{Deserialize, Serialize};

use super::{ArgAccess, NodeFact};
use crate::digest;
use crate::words::Hex128;

/// The nodes of one captured graph as they are now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusFact {
    /// The graph's name.
    pub graph: String,
    /// How many nodes it has; 0 where there is no such graph any more.
    pub nodes: u64,
    /// [`census_digest`] of them.
    pub digest: Hex128,
}

/// A digest of the nodes of one graph: their order, kernels, and every pointer that they retain.
#[must_use]
pub fn census_digest<'n>(nodes: impl IntoIterator<Item = &'n NodeFact>) -> Hex128 {
    let mut bytes = Vec::new();
    for node in nodes {
        let kernel = node.kernel.as_bytes();
        bytes.extend(node.node.to_le_bytes());
        bytes.extend((kernel.len() as u64).to_le_bytes());
        bytes.extend(kernel);
        bytes.extend((node.args.len() as u64).to_le_bytes());
        for arg in &node.args {
            let access = match arg.access {
                ArgAccess::Read => 0_u8,
                ArgAccess::Write => 1,
                ArgAccess::ReadWrite => 2,
                ArgAccess::Unknown => 3,
            };
            bytes.extend(arg.index.to_le_bytes());
            bytes.extend(arg.address.0.to_le_bytes());
            bytes.extend(arg.bytes.to_le_bytes());
            bytes.push(access);
        }
    }
    digest::content(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::ArgFact;
    use crate::words::Address;

    fn node(node: u32, kernel: &str) -> NodeFact {
        let arg = |index: u32| ArgFact {
            index,
            address: Address(0x1000 + u64::from(index)),
            bytes: 8,
            access: ArgAccess::Read,
        };
        let graph = "decode-1".to_owned();
        NodeFact { graph, node, kernel: kernel.to_owned(), args: (0..2).map(arg).collect() }
    }

    #[test]
    fn every_field_of_every_node_counts_and_the_name_of_the_graph_does_not() {
        let nodes = [node(0, "linear"), node(1, "add")];
        let digest = census_digest(&nodes);
        let changed = |change: &dyn Fn(&mut [NodeFact; 2])| {
            let mut nodes = nodes.clone();
            change(&mut nodes);
            census_digest(&nodes) != digest
        };
        assert!(changed(&|nodes| nodes.swap(0, 1)));
        assert!(changed(&|nodes| nodes[1].node = 2));
        assert!(changed(&|nodes| nodes[1].kernel = "mul".to_owned()));
        assert!(changed(&|nodes| nodes[1].args.truncate(1)));
        assert!(changed(&|nodes| nodes[1].args[1].index = 5));
        assert!(changed(&|nodes| nodes[1].args[1].address = Address(0x2000)));
        assert!(changed(&|nodes| nodes[1].args[1].bytes = 9));
        assert!(changed(&|nodes| nodes[1].args[1].access = ArgAccess::Unknown));
        assert_ne!(census_digest(&nodes[..1]), digest);
        assert!(!changed(&|nodes| nodes[1].graph = "decode-2".to_owned()));
    }
}
