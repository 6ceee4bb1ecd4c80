//! The transaction of an update: its state machine, the receipts of its ranks, its certificate.

mod certificate;
mod machine;
mod receipt;

pub use certificate::{Certificate, GenerationIdentity, Proof, Proofs};
pub use machine::{Base, Machine, MachineError, Phase, Residency, Scope, State};
pub use receipt::{Expectation, Receipt, ReceiptError, Reconciled, Vote, reconcile};
