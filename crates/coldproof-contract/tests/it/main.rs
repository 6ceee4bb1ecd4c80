//! The rules of placement and of the ledger, held against index tables written by hand.

mod copier;
mod histories;
mod layouts;
mod placement;
