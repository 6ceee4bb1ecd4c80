//! One node of a captured graph, as plain data: what a driver gave, or a recording of it.

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Launches a kernel.
    Kernel,
    /// Copies memory.
    Memcpy,
    /// Fills memory.
    Memset,
    /// Calls a function of the host.
    Host,
    /// Runs another graph, whose nodes follow it.
    Graph,
    /// Runs one of several graphs, or one again and again.
    Conditional,
    /// Allocates memory of the graph's own.
    MemAlloc,
    /// Frees memory of the graph's own.
    MemFree,
    /// Writes or waits for words of memory.
    BatchMemOp,
    /// Orders other nodes and touches no memory: an event, a semaphore, nothing.
    Order,
    /// A kind that this release does not know, with the driver's number.
    Other(u32),
}

impl NodeKind {
    /// Its name in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memcpy => "memcpy",
            Self::Memset => "memset",
            Self::Host => "host",
            Self::Graph => "graph",
            Self::Conditional => "conditional",
            Self::MemAlloc => "mem-alloc",
            Self::MemFree => "mem-free",
            Self::BatchMemOp => "batch-mem-op",
            Self::Order => "order",
            Self::Other(_) => "other",
        }
    }
}

/// One argument of a node, by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Position among the node's arguments.
    pub index: u32,
    /// Its bytes, as the node holds them: a pointer, a number, a struct with pointers in it.
    pub bytes: Vec<u8>,
}

impl Argument {
    /// An argument that is one pointer.
    #[must_use]
    pub fn pointer(index: u32, address: u64) -> Self {
        Self { index, bytes: address.to_le_bytes().to_vec() }
    }

    /// An argument of a kernel, whose signature the driver does not tell.
    #[must_use]
    pub const fn opaque(index: u32, bytes: Vec<u8>) -> Self {
        Self { index, bytes }
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Position in the graph; one number more for each graph that it is nested in, outermost first.
    pub path: Vec<u32>,
    /// What it does.
    pub kind: NodeKind,
    /// The kernel, as its module names it; the kind for any other node.
    pub kernel: String,
    /// What it was captured with.
    pub arguments: Vec<Argument>,
    /// Why some of its arguments, or the graph in it, could not be read. Such a node may retain
    /// anything.
    pub unread: Option<String>,
}
