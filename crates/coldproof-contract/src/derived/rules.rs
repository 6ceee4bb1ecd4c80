//! The graph of derived slots: declared inputs, epochs, and which values are older than an input.

use std::collections::{BTreeMap, BTreeSet};

use crate::order::{Cycle, topological};
use crate::words::{Generation, SlotName};

/// A graph that cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DerivedError {
    /// An input that is no slot.
    #[error("`{slot}` is computed from `{input}`, which is no slot; register it")]
    UnknownInput {
        /// The derived slot.
        slot: SlotName,
        /// The input.
        input: SlotName,
    },
    /// Nothing to compute it from.
    #[error("`{slot}` is derived and declares no input; declare what it is computed from")]
    NoInput {
        /// The derived slot.
        slot: SlotName,
    },
    /// Slots that are computed from each other.
    #[error("these slots are computed from each other: {}", texts(slots))]
    Cycle {
        /// Each is computed from the next, the last from the first.
        slots: Vec<SlotName>,
    },
}

fn texts(slots: &[SlotName]) -> String {
    slots.iter().map(|slot| slot.0.as_str()).collect::<Vec<_>>().join(", ")
}

/// A derived slot that does not follow its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The derived slot.
    pub slot: SlotName,
    /// The generation that it was computed from; absent where the engine states none.
    pub epoch: Option<Generation>,
    /// The generation of the newest slot that it depends on.
    pub needed: Generation,
    /// How it depends on that one: from an input of the slot, down to the newest.
    pub path: Vec<SlotName>,
}

/// Derived slots with their declared inputs, in an order in which they can be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedGraph {
    inputs: BTreeMap<SlotName, BTreeSet<SlotName>>,
    order: Vec<SlotName>,
}

impl DerivedGraph {
    /// Checks declared inputs against the slots that are not derived.
    ///
    /// # Errors
    /// An input that is no slot, a slot without inputs, or slots computed from each other.
    pub fn new(
        inputs: BTreeMap<SlotName, BTreeSet<SlotName>>,
        others: &BTreeSet<SlotName>,
    ) -> Result<Self, DerivedError> {
        for (slot, needs) in &inputs {
            if needs.is_empty() {
                return Err(DerivedError::NoInput { slot: slot.clone() });
            }
            let known = |input: &&SlotName| inputs.contains_key(*input) || others.contains(*input);
            if let Some(input) = needs.iter().find(|input| !known(input)) {
                let (slot, input) = (slot.clone(), input.clone());
                return Err(DerivedError::UnknownInput { slot, input });
            }
        }
        match topological(&inputs) {
            Ok(order) => Ok(Self { inputs, order }),
            Err(Cycle(slots)) => Err(DerivedError::Cycle { slots }),
        }
    }

    /// Derived slots, each after all that it is computed from.
    #[must_use]
    pub fn order(&self) -> &[SlotName] {
        &self.order
    }

    /// Slots that are computed from `slot`, directly or not, in the order of computation.
    #[must_use]
    pub fn downstream(&self, slot: &SlotName) -> Vec<&SlotName> {
        let mut reached: BTreeSet<&SlotName> = BTreeSet::from([slot]);
        let mut downstream = Vec::new();
        for derived in &self.order {
            let needs = self.inputs.get(derived);
            if needs.is_some_and(|needs| needs.iter().any(|input| reached.contains(input))) {
                reached.insert(derived);
                downstream.push(derived);
            }
        }
        downstream
    }

    /// Derived slots that are older than a slot they depend on, in the order of computation.
    ///
    /// A slot is also stale where only an input of an input is newer: an input that was not
    /// refreshed hides nothing. Slots without an epoch count as never written.
    #[must_use]
    pub fn stale(&self, epochs: &BTreeMap<SlotName, Generation>) -> Vec<Stale> {
        // What each derived slot needs, and through which input.
        let mut needed: BTreeMap<&SlotName, (Generation, &SlotName)> = BTreeMap::new();
        let mut stale = Vec::new();
        for slot in &self.order {
            let inputs = self.inputs.get(slot).into_iter().flatten();
            let newest = inputs
                .map(|input| {
                    let own = epochs.get(input).copied().unwrap_or_default();
                    let through = needed.get(input).map_or(own, |(needs, _)| own.max(*needs));
                    (through, input)
                })
                // The first of equals, so that the path is the same in every run.
                .reduce(|best, next| if next.0 > best.0 { next } else { best });
            let Some((needs, through)) = newest else { continue };
            let epoch = epochs.get(slot).copied();
            if epoch.unwrap_or_default() < needs {
                let path = path(&needed, epochs, through, needs);
                stale.push(Stale { slot: slot.clone(), epoch, needed: needs, path });
            }
            needed.insert(slot, (needs, through));
        }
        stale
    }
}

/// From an input down to the slot that is as new as `needs`.
fn path(
    needed: &BTreeMap<&SlotName, (Generation, &SlotName)>,
    epochs: &BTreeMap<SlotName, Generation>,
    first: &SlotName,
    needs: Generation,
) -> Vec<SlotName> {
    let mut path = vec![first.clone()];
    let mut at = first;
    while epochs.get(at).copied().unwrap_or_default() < needs
        && let Some((_, next)) = needed.get(at)
    {
        path.push((*next).clone());
        at = next;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Result<DerivedGraph, DerivedError> {
        let inputs = edges.iter().map(|(slot, inputs)| {
            (SlotName::from(*slot), inputs.iter().map(|&input| input.into()).collect())
        });
        DerivedGraph::new(inputs.collect(), &BTreeSet::from(["w".into(), "v".into()]))
    }

    fn epochs(epochs: &[(&str, u64)]) -> BTreeMap<SlotName, Generation> {
        epochs.iter().map(|&(slot, epoch)| (slot.into(), Generation(epoch))).collect()
    }

    fn chain() -> DerivedGraph {
        graph(&[("a", &["w"]), ("b", &["a", "v"])]).unwrap()
    }

    #[test]
    fn graphs_that_cannot_be_computed_are_refused() {
        let unknown = graph(&[("a", &["x"])]);
        let (slot, input) = ("a".into(), "x".into());
        assert_eq!(unknown, Err(DerivedError::UnknownInput { slot, input }));
        let cycle = graph(&[("a", &["b", "w"]), ("b", &["a"])]);
        assert_eq!(cycle, Err(DerivedError::Cycle { slots: vec!["a".into(), "b".into()] }));
        assert_eq!(graph(&[("a", &[])]), Err(DerivedError::NoInput { slot: "a".into() }));
    }

    #[test]
    fn inputs_are_computed_first() {
        let graph = graph(&[("a", &["z"]), ("z", &["w"])]).unwrap();
        assert_eq!(graph.order(), ["z".into(), "a".into()]);
    }

    #[test]
    fn a_value_as_new_as_its_inputs_is_not_stale() {
        let fresh = epochs(&[("w", 2), ("v", 1), ("a", 2), ("b", 2)]);
        assert_eq!(chain().stale(&fresh), []);
        let newer = epochs(&[("w", 1), ("v", 1), ("a", 1), ("b", 2)]);
        assert_eq!(chain().stale(&newer), []);
    }

    #[test]
    fn a_value_older_than_an_input_is_stale() {
        let stale = chain().stale(&epochs(&[("w", 2), ("v", 1), ("a", 2), ("b", 1)]));
        assert_eq!(stale.len(), 1);
        assert_eq!((stale[0].slot.0.as_str(), stale[0].needed), ("b", Generation(2)));
        assert_eq!(stale[0].path, ["a".into()]);
    }

    #[test]
    fn an_input_that_was_not_refreshed_hides_nothing() {
        let stale = chain().stale(&epochs(&[("w", 2), ("v", 1), ("a", 1)]));
        let slots: Vec<&str> = stale.iter().map(|stale| stale.slot.0.as_str()).collect();
        assert_eq!(slots, ["a", "b"]);
        assert_eq!(stale[1].path, ["a".into(), "w".into()]);
        assert_eq!(stale[1].epoch, None);
    }

    #[test]
    fn downstream_is_what_depends_on_a_slot() {
        assert_eq!(chain().downstream(&"w".into()), [&SlotName::from("a"), &"b".into()]);
        assert_eq!(chain().downstream(&"v".into()), [&SlotName::from("b")]);
        assert!(chain().downstream(&"b".into()).is_empty());
    }
}
