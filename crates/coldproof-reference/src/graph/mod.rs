//! Captured graphs: recorded launches that keep raw addresses.

mod stream;

use coldproof_contract::evidence::NodeFact;

pub(crate) use stream::Stream;

use crate::arena::Allocation;
use crate::kernels::Kernel;

/// One recorded launch.
#[derive(Clone, Debug)]
pub struct Node {
    /// The kernel with the arguments of capture time.
    pub kernel: Kernel,
}

/// A captured graph. A replay runs its kernels with the addresses that they had at capture,
/// whatever lies there now.
#[derive(Debug)]
pub struct Graph {
    /// Its name, for example `decode-1`.
    pub name: String,
    /// Recorded launches, in order.
    pub nodes: Vec<Node>,
    /// Activations that it keeps, in region `graph_pool`.
    pub pool: Vec<Allocation>,
}

impl Graph {
    /// The census: every node with every pointer it retains.
    #[must_use]
    pub fn census(&self) -> Vec<NodeFact> {
        let fact = |(index, node): (usize, &Node)| NodeFact {
            graph: self.name.clone(),
            node: u32::try_from(index).unwrap_or(u32::MAX),
            kernel: node.kernel.name().to_owned(),
            args: node.kernel.args(),
        };
        self.nodes.iter().enumerate().map(fact).collect()
    }
}
