//! Kernels: all that a forward does. Each is a plain value of raw addresses and dimensions, so
//! that a captured graph keeps addresses as a CUDA graph does.
//!
//! Weights are bf16, widened a tile at a time at use; activations, keys, values and sums are f32.
//! Every sum has one fixed order that does not depend on the batch, the threads or the cut into
//! ranks: K is cut into equal fixed blocks, each summed in 16 lanes, and blocks are added along
//! one balanced binary tree of which a rank owns a subtree. A kernel computes into registers and
//! writes at its end; dimensions are elements, sizes are bytes.

mod activate;
mod args;
mod attention;
mod bias;
mod causal_conv;
mod clamped;
mod collectives;
mod context;
mod elementwise;
mod embed;
mod encoder_attention;
mod expert_bias;
mod expert_ranks;
mod experts;
mod gated_norm;
mod grouped_top_k;
mod head_linear;
mod join;
mod kv;
mod kv_fetch;
mod latent;
mod latent_attention;
mod layer_norm;
mod linear;
mod linear_permuted;
mod lora;
mod matmul;
mod norm;
mod pages;
mod patches;
mod rope;
mod router;
mod scale;
mod slice_norm;
mod stages;
mod state_scan;
mod states;

use coldproof_contract::evidence::ArgFact;

pub use activate::Activate;
pub use attention::PagedAttention;
pub use bias::AddBias;
pub use causal_conv::CausalConv;
pub use clamped::ClampedSwiglu;
pub use collectives::{AllReduce, Gather, SelectRows};
pub use elementwise::{Add, Copy, GatedMul, SquaredRelu};
pub use embed::Embed;
pub use encoder_attention::EncoderAttention;
pub use expert_bias::ExpertBias;
pub use expert_ranks::{ELSEWHERE, LocalExperts, SelectExperts};
pub use experts::{ExpertLinear, ExpertOrder, ExpertStage, MoeCombine};
pub use gated_norm::GatedNorm;
pub use grouped_top_k::GroupedTopK;
pub use head_linear::HeadLinear;
pub use join::Join;
pub use kv::{KvWrite, Paging};
pub use kv_fetch::KvFetch;
pub use latent::{Columns, LatentDims, LatentRope, LatentWrite};
pub use latent_attention::LatentAttention;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use linear_permuted::{LinearPermuted, WORKSPACE_LOCKS};
pub use lora::{ExpertPairs, LoraExpand, LoraShrink};
pub use matmul::PANEL_COLUMNS;
pub use norm::{NormWeight, RmsNorm};
pub use pages::{Pages, Tables};
pub use patches::{Patches, TowerRows};
pub use rope::Rope;
pub use router::RouterTopK;
pub use scale::Scale;
pub use slice_norm::SliceNorm;
pub use stages::{StageReceive, StageSend};
pub use state_scan::StateScan;
pub use states::States;

pub(crate) use context::Context;

use crate::device::DeviceError;

/// What the device runs.
trait Op {
    /// The name in evidence and errors.
    fn name(&self) -> &'static str;
    /// Every pointer, with the exact extent that the kernel may touch there.
    fn args(&self) -> Vec<ArgFact>;
    /// Rows (tokens) that it computes.
    fn rows(&self) -> usize;
    /// Computes.
    fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError>;
}

/// One launch: a kernel with its arguments.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// Rows of the embedding table.
    Embed(Embed),
    /// The owner's row of each token, from all ranks.
    SelectRows(SelectRows),
    /// Root-mean-square norm.
    RmsNorm(RmsNorm),
    /// Matrix product.
    Linear(Linear),
    /// Matrix product with permuted columns and a workspace of locks.
    LinearPermuted(LinearPermuted),
    /// A bias onto a product.
    AddBias(AddBias),
    /// Norms of q and k, and rotary embedding.
    Rope(Rope),
    /// Keys and values into the paged cache.
    KvWrite(KvWrite),
    /// A block from a tier below the paged cache.
    KvFetch(KvFetch),
    /// Attention over the paged cache.
    PagedAttention(PagedAttention),
    /// Norm of some columns.
    SliceNorm(SliceNorm),
    /// Rotary embedding of queries and of the key that heads share.
    LatentRope(LatentRope),
    /// Latents into the paged cache.
    LatentWrite(LatentWrite),
    /// Attention over cached latents.
    LatentAttention(LatentAttention),
    /// One matrix product a head.
    HeadLinear(HeadLinear),
    /// `act(gate) * up`.
    GatedMul(GatedMul),
    /// One factor for all elements.
    Scale(Scale),
    /// A clamped gate.
    ClampedSwiglu(ClampedSwiglu),
    /// The biases of each token's experts.
    ExpertBias(ExpertBias),
    /// `max(x, 0)²`.
    SquaredRelu(SquaredRelu),
    /// The convolution of a state-space mixer.
    CausalConv(CausalConv),
    /// Its recurrence.
    StateScan(StateScan),
    /// Its norm.
    GatedNorm(GatedNorm),
    /// Sum of two.
    Add(Add),
    /// Columns of two side by side.
    Join(Join),
    /// Bytes from one place to another.
    Copy(Copy),
    /// The experts of each token.
    RouterTopK(RouterTopK),
    /// The experts of each token, by groups.
    GroupedTopK(GroupedTopK),
    /// Matrix products with stacked, packed experts.
    ExpertLinear(ExpertLinear),
    /// Weighted sum over experts.
    MoeCombine(MoeCombine),
    /// Sum over ranks.
    AllReduce(AllReduce),
    /// Columns of all ranks side by side.
    Gather(Gather),
    /// Places of experts on this rank.
    LocalExperts(LocalExperts),
    /// The holder's row of each pair, from all ranks.
    SelectExperts(SelectExperts),
    /// The first product of an adapter.
    LoraShrink(LoraShrink),
    /// The second product of an adapter, onto the base model's.
    LoraExpand(LoraExpand),
    /// Rows to the next pipeline stage.
    StageSend(StageSend),
    /// Rows from the pipeline stage before.
    StageReceive(StageReceive),
    /// Patches of an image.
    Patches(Patches),
    /// The rows that a vision tower begins with.
    TowerRows(TowerRows),
    /// Norm to mean 0 and variance 1.
    LayerNorm(LayerNorm),
    /// Attention of every row to every row.
    EncoderAttention(EncoderAttention),
    /// An encoder's activation.
    Activate(Activate),
}

impl Kernel {
    /// The name in evidence, for example `linear`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.op().name()
    }

    /// Every pointer argument, in order, with its exact extent in bytes.
    #[must_use]
    pub fn args(&self) -> Vec<ArgFact> {
        self.op().args()
    }

    /// Rows (tokens) that the kernel computes.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.op().rows() as u64
    }

    pub(crate) fn run(&self, context: &mut Context<'_>) -> Result<(), DeviceError> {
        self.op().run(context)
    }

    fn op(&self) -> &dyn Op {
        match self {
            Self::Embed(op) => op,
            Self::SelectRows(op) => op,
            Self::RmsNorm(op) => op,
            Self::Linear(op) => op,
            Self::LinearPermuted(op) => op,
            Self::AddBias(op) => op,
            Self::Rope(op) => op,
            Self::KvWrite(op) => op,
            Self::KvFetch(op) => op,
            Self::PagedAttention(op) => op,
            Self::SliceNorm(op) => op,
            Self::LatentRope(op) => op,
            Self::LatentWrite(op) => op,
            Self::LatentAttention(op) => op,
            Self::HeadLinear(op) => op,
            Self::GatedMul(op) => op,
            Self::Scale(op) => op,
            Self::ClampedSwiglu(op) => op,
            Self::ExpertBias(op) => op,
            Self::SquaredRelu(op) => op,
            Self::CausalConv(op) => op,
            Self::StateScan(op) => op,
            Self::GatedNorm(op) => op,
            Self::Add(op) => op,
            Self::Join(op) => op,
            Self::Copy(op) => op,
            Self::RouterTopK(op) => op,
            Self::GroupedTopK(op) => op,
            Self::ExpertLinear(op) => op,
            Self::MoeCombine(op) => op,
            Self::AllReduce(op) => op,
            Self::Gather(op) => op,
            Self::LocalExperts(op) => op,
            Self::SelectExperts(op) => op,
            Self::LoraShrink(op) => op,
            Self::LoraExpand(op) => op,
            Self::StageSend(op) => op,
            Self::StageReceive(op) => op,
            Self::Patches(op) => op,
            Self::TowerRows(op) => op,
            Self::LayerNorm(op) => op,
            Self::EncoderAttention(op) => op,
            Self::Activate(op) => op,
        }
    }
}

/// `From` for each kernel, so that `device.launch(Linear { … }.into())` reads well.
macro_rules! kernel_from {
    ($($kernel:ident),* $(,)?) => {
        $(impl From<$kernel> for Kernel {
            fn from(op: $kernel) -> Self {
                Self::$kernel(op)
            }
        })*
    };
}

kernel_from!(
    Embed,
    SelectRows,
    RmsNorm,
    Linear,
    LinearPermuted,
    AddBias,
    Rope,
    KvWrite,
    KvFetch,
    PagedAttention,
    SliceNorm,
    LatentRope,
    LatentWrite,
    LatentAttention,
    HeadLinear,
    Join,
    GatedMul,
    Scale,
    ClampedSwiglu,
    ExpertBias,
    SquaredRelu,
    CausalConv,
    StateScan,
    GatedNorm,
    Add,
    Copy,
    RouterTopK,
    GroupedTopK,
    ExpertLinear,
    MoeCombine,
    AllReduce,
    Gather,
    LocalExperts,
    SelectExperts,
    LoraShrink,
    LoraExpand,
    StageSend,
    StageReceive,
    Patches,
    TowerRows,
    LayerNorm,
    EncoderAttention,
    Activate,
);

#[cfg(test)]
mod tests;
