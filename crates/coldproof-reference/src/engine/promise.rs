//! What an update promises before its first write.

use std::collections::BTreeSet;
use std::sync::Arc;

use coldproof_checkpoint::Lora;
use coldproof_contract::transaction::Scope;

use crate::loader::PartId;
use crate::ranks::{Failure, Worker};

/// Which sources an update delivers, and which keep the bytes that they have. What is in neither
/// list must be delivered where the model needs it: nothing is preserved that was not said to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promise {
    /// Sources that arrive; of none, everything that the model needs is promised, and none may be
    /// preserved.
    pub(crate) delivered: BTreeSet<String>,
    /// Sources whose slots stay as they are: an update of whole slots, and not of all of them.
    pub(crate) preserved: Vec<String>,
    /// What is delivered.
    pub(crate) format: Format,
    /// Adapters that arrive, by name. Those of other names stay as they are.
    pub(crate) adapters: Vec<(String, Arc<Lora>)>,
}

/// What an update delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// Sources of a checkpoint, which loaders place and post-load works on.
    #[default]
    Checkpoint,
    /// The bytes of every refreshed slot of every rank as kernels read them: nothing is left to
    /// compute.
    Kernel,
}

impl Promise {
    /// These sources, which are all that the model needs.
    pub(crate) fn of(delivered: &[String]) -> Self {
        Self { delivered: delivered.iter().cloned().collect(), ..Self::default() }
    }

    /// How much is written.
    pub(crate) fn scope(&self) -> Scope {
        match (self.format, self.preserved.is_empty(), self.delivered.is_empty()) {
            // What no checkpoint and no slot of an update in kernel format holds is kept.
            (Format::Kernel, ..) | (Format::Checkpoint, false, false) => Scope::Partial,
            (Format::Checkpoint, true, _) => Scope::Full,
            (Format::Checkpoint, false, true) => Scope::Adapters,
        }
    }

    /// The adapter that is promised under a name.
    pub(crate) fn adapter(&self, name: &str) -> Option<&Arc<Lora>> {
        self.adapters.iter().find(|(own, _)| own == name).map(|(_, lora)| lora)
    }
}

impl Worker {
    /// Whether the model can take such an update. A slot is delivered whole or preserved whole:
    /// halves of two generations are no generation. Values are not looked at, so none decides.
    pub(crate) fn admit_promise(&mut self, promise: &Promise) -> Result<(), Failure> {
        let refused = |text: String| Err(Failure::Refused(text));
        promise.adapters.iter().try_for_each(|(_, lora)| self.check_adapter(lora))?;
        let Promise { delivered, preserved, format, adapters } = promise;
        if *format == Format::Kernel {
            return self.admit_kernel_promise(delivered);
        }
        if let Some(name) = delivered.iter().find(|name| !self.catalogue.knows(name)) {
            return refused(format!(
                "no layer of this model takes the promised tensor `{name}`; leave it out"
            ));
        }
        if preserved.is_empty() {
            return Ok(());
        }
        if delivered.is_empty() && adapters.is_empty() {
            return refused(
                "the update would preserve sources and deliver none; name what it delivers".into(),
            );
        }
        if let Some(name) = preserved.iter().find(|name| !self.catalogue.knows(name)) {
            return refused(format!(
                "no layer of this model has `{name}` to preserve; leave it out"
            ));
        }
        if let Some(name) = preserved.iter().find(|name| delivered.contains(*name)) {
            return refused(format!("`{name}` is to be delivered and to be preserved; choose one"));
        }
        if let Some(name) = delivered.iter().find(|name| self.repeats_other(delivered, name)) {
            return refused(format!(
                "`{name}` is a second name of a tensor that is not delivered; deliver both"
            ));
        }
        let (new, old) = (self.catalogue.parts_of(delivered), self.catalogue.parts_of(preserved));
        let units = self.catalogue.units();
        let Some((slot, part)) =
            units.iter().find_map(|(slot, parts)| Some((slot, cut(parts, &new, &old)?)))
        else {
            return Ok(());
        };
        let name = |part: PartId| self.catalogue.parts().get(part).map_or("", String::as_str);
        let slot = &self.slots[*slot].spec.name;
        refused(match part {
            Cut::Unsaid(part) => format!(
                "nobody said what becomes of `{}` in `{slot}`; deliver it or preserve it",
                name(part)
            ),
            Cut::Apart(part) => format!(
                "`{slot}` would hold parts of two generations: `{}` is not delivered with the rest \
                 of it; deliver all of its sources, or preserve all",
                name(part)
            ),
        })
    }

    /// Whether a name only repeats a source that is not delivered.
    fn repeats_other(&self, delivered: &BTreeSet<String>, name: &str) -> bool {
        let owner = self.catalogue.repeated_by(name);
        owner.is_some_and(|owner| !delivered.contains(owner))
    }
}

/// A part of a slot that is not treated as the others are.
enum Cut {
    /// It is neither delivered nor preserved.
    Unsaid(PartId),
    /// It is preserved, and others are delivered.
    Apart(PartId),
}

fn cut(parts: &BTreeSet<PartId>, new: &BTreeSet<PartId>, old: &BTreeSet<PartId>) -> Option<Cut> {
    let unsaid = parts.iter().find(|part| !new.contains(part) && !old.contains(part));
    let apart = || parts.difference(new).next().filter(|_| !parts.is_subset(old));
    unsaid.map(|part| Cut::Unsaid(*part)).or_else(|| apart().map(|part| Cut::Apart(*part)))
}
