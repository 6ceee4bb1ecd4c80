//! What drafts tokens that the model then verifies: a draft model, or a layer behind the model's
//! own that predicts further tokens.

use std::sync::Arc;

use coldproof_checkpoint::arch::DRAFT;
use coldproof_contract::words::Address;

use super::{Builder, Decoder, Dims, Mtp};
use crate::layers::{Forward, LayerError};

/// A model that drafts for another: its keys and values lie in the same blocks.
#[derive(Clone, Debug)]
pub(crate) struct DraftModel {
    dims: Arc<Dims>,
    decoder: Box<Decoder>,
}

impl DraftModel {
    /// Declares a model beside the one that it drafts for.
    pub(crate) fn declare(builder: &mut Builder<'_>, dims: &Arc<Dims>) -> Self {
        let mut own = builder.beside(dims, DRAFT);
        let decoder = Box::new(dims.declare(&mut own));
        builder.append(own);
        Self { dims: Arc::clone(dims), decoder }
    }
}

/// What drafts.
#[derive(Clone, Debug)]
pub(crate) enum Drafter {
    /// A model of its own.
    Model(DraftModel),
    /// A layer behind the model's own.
    Mtp(Box<Mtp>),
}

impl Drafter {
    /// Whether it reads the model's hidden rows.
    pub(crate) const fn reads_hidden(&self) -> bool {
        matches!(self, Self::Mtp(_))
    }

    /// Its dimensions, where they are not those of the model that it drafts for.
    pub(crate) fn dims(&self) -> Option<&Dims> {
        match self {
            Self::Model(draft) => Some(&draft.dims),
            Self::Mtp(_) => None,
        }
    }

    /// Logits, F32 `[1, vocabulary]`, of the token after the batch's last row. `hidden` is F32
    /// `[rows, hidden]`, read by a layer behind the model's own alone.
    pub(crate) fn forward(
        &self,
        forward: &mut Forward<'_>,
        hidden: Address,
    ) -> Result<Option<Address>, LayerError> {
        match self {
            Self::Model(draft) => {
                Ok(draft.decoder.forward(forward, true)?.map(|outputs| outputs.logits))
            }
            Self::Mtp(mtp) => mtp.forward(forward, hidden).map(Some),
        }
    }
}
