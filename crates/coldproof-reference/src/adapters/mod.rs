//! Adapters (LoRA): where one acts on a rank, and what a rank holds of it.
//!
//! A rank has room for the factors of every product that an adapter may change, zeros where it
//! changes nothing: what is launched does not depend on what an adapter holds.

mod loaded;
mod sites;
mod transaction;

use std::collections::BTreeSet;

use coldproof_checkpoint::arch::ModelConfig;

pub(crate) use loaded::{Adapters, InUse, Room};
pub(crate) use sites::Sites;

use crate::loader::{Place, Shard};
use crate::models::{Builder, Dims, KvShape};

/// A module of the base model that an adapter may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Rows of its weight.
    pub outputs: u64,
    /// Columns of its weight.
    pub inputs: u64,
}

/// Every module of a model that an adapter may change, by its usual name.
#[must_use]
pub fn modules(model: &ModelConfig) -> Vec<Module> {
    let dims = Dims::from(model);
    let whole = Place { shard: Shard::WHOLE, experts: Shard::WHOLE, stage: Shard::WHOLE };
    let mut builder = Builder::new(&dims, whole, KvShape { blocks: 2, block_size: 1 });
    dims.declare(&mut builder);
    let Builder { catalogue, adapted, .. } = builder;
    let usual: BTreeSet<String> = catalogue.parts().iter().cloned().collect();
    sites::adapted_sources(&catalogue, &adapted)
        .filter(|(name, _)| usual.contains(&format!("{name}.weight")))
        .map(|(name, source)| Module {
            name: name.to_owned(),
            outputs: source.shape[0],
            inputs: source.shape[1],
        })
        .collect()
}
