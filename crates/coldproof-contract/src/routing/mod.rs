//! Category 5, routing and sharding: every element is written to the right slot, rank and shard.

mod rules;

pub use rules::{Half, HeadRole, Piece, PlacementError, Sharding, SourceRule};
