//! Category 5, routing and sharding: every element is written to the right slot, rank and shard.

mod check;
mod error;
mod exchanged;
mod experts;
mod factor;
mod facts;
mod passed_over;
mod placement;
mod rules;
mod stacks;
mod stage;

pub(crate) use check::check;
pub use error::PlacementError;
pub(crate) use placement::uncovered;
pub use placement::{PlacedPiece, Placement, SlotPlacement};
pub use rules::{Half, HeadRole, Piece, Section, Sharding, SourceRule};
pub use stage::Stage;
