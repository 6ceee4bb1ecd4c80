//! Loading: which source goes where on this rank, writing it, and post-load.
//!
//! A parameter has a lifecycle phase. Before the first post-load its storage is in logical order;
//! after it, in runtime order, at the same address. A loader writes according to the phase that the
//! storage is in: through the packing where that is known (experts), after restoring logical order
//! where the packing itself depends on the new weights (`o_proj`).

mod absorb;
mod apply;
mod catalogue;
mod experts;
mod layout;
mod narrow;
mod post_load;
mod store;

pub(crate) use apply::Load;
pub(crate) use catalogue::{Catalogue, Half, HeadPart, PartId, Source, SourceError, Target};
pub(crate) use experts::HeldExperts;
pub(crate) use layout::{Layout, Matrix};
pub(crate) use narrow::{Heads, Move, Place, SectionRows, Shard, moves};
pub(crate) use post_load::{Hook, HookKind, bind};
pub(crate) use store::{convert_slot, layout_of, matrix_of, read_slot, write_moves};
