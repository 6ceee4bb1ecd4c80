//! Element types as bits: formats of floats, neighbours, small integers.

mod element;
mod format;

pub(crate) use element::{for_each, load, neighbours, store};
pub(crate) use format::Format;
