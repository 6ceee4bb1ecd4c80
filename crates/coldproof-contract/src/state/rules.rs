//! The state inventory: what an update does to each piece of state, and which names are one
//! storage. The check seals one of the names that share storages, and one of the configuration,
//! for each arm and rank.

use std::collections::{BTreeMap, BTreeSet};

use crate::words::{Hex128, Policy, SlotName, StorageId};

/// What is promised of one piece of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRule {
    /// What an update does to it.
    pub policy: Policy,
    /// The state whose storage it shares, if it is another name.
    pub alias_of: Option<SlotName>,
}

/// An inventory that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// Another name of nothing.
    #[error("`{alias}` is another name of `{owner}`, which is not in the inventory; add it")]
    UnknownOwner {
        /// The alias.
        alias: SlotName,
        /// What it is said to share a storage with.
        owner: SlotName,
    },
    /// Another name of another name.
    #[error("`{alias}` is another name of `{owner}`, which is an alias itself; name the owner")]
    AliasOfAlias {
        /// The alias.
        alias: SlotName,
        /// What it is said to share a storage with.
        owner: SlotName,
    },
    /// One storage cannot be both kept and rewritten.
    #[error("`{alias}` and `{owner}` share a storage and have different policies")]
    Policies {
        /// The alias.
        alias: SlotName,
        /// The owner.
        owner: SlotName,
    },
}

/// The value of one piece of state at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSighting {
    /// Digest of its value.
    pub content: Hex128,
    /// Whether it is empty, for state that can be.
    pub empty: bool,
}

/// Values at some time, by name.
pub type StateSightings = BTreeMap<SlotName, StateSighting>;

/// State that is not what its policy says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is gone.
    #[error("`{name}` is no longer there")]
    Lost {
        /// Which state.
        name: SlotName,
    },
    /// It was to be kept, and has another value than a cold load's, or, where none is known, than
    /// before.
    #[error("`{name}` was to be preserved and has another value")]
    NotPreserved {
        /// Which state.
        name: SlotName,
    },
    /// It was to be rebuilt, and has another value than a cold load's.
    #[error("`{name}` was to be refreshed and differs from a cold load's")]
    NotRefreshed {
        /// Which state.
        name: SlotName,
    },
    /// It was to be emptied, and is not.
    #[error("`{name}` was to be invalidated and is not empty")]
    NotInvalidated {
        /// Which state.
        name: SlotName,
    },
    /// Two names of one storage have two storages now.
    #[error("`{alias}` and `{owner}` shared a storage and no longer do")]
    AliasSplit {
        /// The alias.
        alias: SlotName,
        /// The owner.
        owner: SlotName,
    },
    /// There is nothing to hold refreshed state against.
    #[error("`{name}` was refreshed and no cold load's value is known")]
    NoReference {
        /// Which state.
        name: SlotName,
    },
    /// State that nobody declared.
    #[error("`{name}` is not in the inventory; give it a policy")]
    Undeclared {
        /// Which state.
        name: SlotName,
    },
}

/// What is promised of all state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateInventory {
    rules: BTreeMap<SlotName, StateRule>,
}

impl StateInventory {
    /// Makes the inventory final.
    ///
    /// # Errors
    /// An alias without an owner, of an alias, or with another policy than its owner.
    pub fn seal(rules: BTreeMap<SlotName, StateRule>) -> Result<Self, InventoryError> {
        for (alias, rule) in &rules {
            let Some(owner) = &rule.alias_of else { continue };
            let names = || (alias.clone(), owner.clone());
            let Some(of_owner) = rules.get(owner) else {
                let (alias, owner) = names();
                return Err(InventoryError::UnknownOwner { alias, owner });
            };
            if of_owner.alias_of.is_some() {
                let (alias, owner) = names();
                return Err(InventoryError::AliasOfAlias { alias, owner });
            }
            if of_owner.policy != rule.policy {
                let (alias, owner) = names();
                return Err(InventoryError::Policies { alias, owner });
            }
        }
        Ok(Self { rules })
    }

    /// Names that share a storage, by owner; only groups of two or more.
    #[must_use]
    pub fn alias_groups(&self) -> BTreeMap<&SlotName, BTreeSet<&SlotName>> {
        let mut groups: BTreeMap<&SlotName, BTreeSet<&SlotName>> = BTreeMap::new();
        for (alias, rule) in &self.rules {
            if let Some(owner) = &rule.alias_of {
                groups.entry(owner).or_default().insert(alias);
            }
        }
        groups
    }

    /// What an update does to a piece of state, if it is in the inventory.
    #[must_use]
    pub fn policy(&self, name: &SlotName) -> Option<Policy> {
        self.rules.get(name).map(|rule| rule.policy)
    }

    /// Judges values: `before` an update, `after` it, and of a `cold` load of the new weights.
    #[must_use]
    pub fn values(
        &self,
        before: &StateSightings,
        after: &StateSightings,
        cold: &StateSightings,
    ) -> Vec<StateError> {
        let judged = self.rules.iter().filter_map(|(name, rule)| match after.get(name) {
            None => Some(StateError::Lost { name: name.clone() }),
            Some(now) => check_value(name, rule.policy, before.get(name), now, cold.get(name)),
        });
        let strangers = after.keys().filter(|name| !self.rules.contains_key(*name));
        judged.chain(strangers.map(|name| StateError::Undeclared { name: name.clone() })).collect()
    }

    /// Names of one storage that have two. One that has none now is not split: it is lost.
    #[must_use]
    pub fn splits(&self, storages: &BTreeMap<SlotName, StorageId>) -> Vec<StateError> {
        let groups = self.alias_groups().into_iter();
        let pairs = groups.flat_map(|(owner, own)| own.into_iter().map(move |own| (owner, own)));
        pairs
            .filter(|(owner, alias)| {
                let both = storages.get(owner).zip(storages.get(alias));
                both.is_some_and(|(owner, alias)| owner != alias)
            })
            .map(|(owner, alias)| StateError::AliasSplit {
                alias: alias.clone(),
                owner: owner.clone(),
            })
            .collect()
    }
}

fn check_value(
    name: &SlotName,
    policy: Policy,
    before: Option<&StateSighting>,
    now: &StateSighting,
    cold: Option<&StateSighting>,
) -> Option<StateError> {
    let name = name.clone();
    match (policy, cold) {
        (Policy::Preserve, _) => {
            let kept = cold.or(before).is_some_and(|wanted| wanted.content == now.content);
            (!kept).then_some(StateError::NotPreserved { name })
        }
        (Policy::Refresh, Some(cold)) if cold.content == now.content => None,
        (Policy::Refresh, Some(_)) => Some(StateError::NotRefreshed { name }),
        (Policy::Refresh, None) => Some(StateError::NoReference { name }),
        (Policy::Invalidate, _) if now.empty => None,
        (Policy::Invalidate, _) => Some(StateError::NotInvalidated { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(policy: Policy, alias_of: Option<&str>) -> StateRule {
        StateRule { policy, alias_of: alias_of.map(SlotName::from) }
    }

    fn inventory() -> StateInventory {
        let rules = BTreeMap::from([
            ("weight".into(), rule(Policy::Refresh, None)),
            ("tied".into(), rule(Policy::Refresh, Some("weight"))),
            ("table".into(), rule(Policy::Preserve, None)),
            ("blocks".into(), rule(Policy::Invalidate, None)),
        ]);
        StateInventory::seal(rules).unwrap()
    }

    fn sighting(content: u128, empty: bool) -> StateSighting {
        StateSighting { content: Hex128(content), empty }
    }

    fn state(weight: u128) -> StateSightings {
        BTreeMap::from([
            ("weight".into(), sighting(weight, false)),
            ("tied".into(), sighting(weight, false)),
            ("table".into(), sighting(77, false)),
            ("blocks".into(), sighting(0, true)),
        ])
    }

    /// Errors after an update from weight 1 to weight 2 in which `change` went wrong.
    fn errors(change: impl Fn(&mut StateSightings)) -> Vec<StateError> {
        let mut after = state(2);
        change(&mut after);
        inventory().values(&state(1), &after, &state(2))
    }

    fn change(name: &'static str, by: impl Fn(&mut StateSighting)) -> impl Fn(&mut StateSightings) {
        move |state| by(state.get_mut(&name.into()).unwrap())
    }

    #[test]
    fn an_update_by_the_policies_is_silent() {
        assert_eq!(errors(|_| ()), []);
    }

    #[test]
    fn each_policy_is_checked() {
        let kept = errors(change("weight", |weight| weight.content = Hex128(1)));
        assert_eq!(kept, [StateError::NotRefreshed { name: "weight".into() }]);
        let rewritten = errors(change("table", |table| table.content = Hex128(1)));
        assert_eq!(rewritten, [StateError::NotPreserved { name: "table".into() }]);
        let full = errors(change("blocks", |blocks| blocks.empty = false));
        assert_eq!(full, [StateError::NotInvalidated { name: "blocks".into() }]);
    }

    #[test]
    fn what_is_preserved_is_what_a_cold_load_has_else_what_it_was() {
        let all = |table: u128| {
            let mut state = state(2);
            state.insert("table".into(), sighting(table, false));
            state
        };
        let errors = |before, after, cold: &StateSightings| {
            inventory().values(&all(before), &all(after), cold)
        };
        let not_preserved = [StateError::NotPreserved { name: "table".into() }];
        assert_eq!(errors(1, 2, &all(2)), []);
        assert_eq!(errors(1, 1, &all(2)), not_preserved);
        let mut cold = all(2);
        cold.remove(&SlotName::from("table"));
        assert_eq!(errors(1, 1, &cold), []);
        assert_eq!(errors(1, 2, &cold), not_preserved);
    }

    #[test]
    fn names_of_one_storage_stay_together() {
        let splits = |storages: &[(&str, u64)]| {
            let storages = storages.iter().map(|(name, of)| ((*name).into(), StorageId(*of)));
            inventory().splits(&storages.collect())
        };
        assert_eq!(splits(&[("weight", 1), ("tied", 1), ("table", 2)]), []);
        let (alias, owner) = ("tied".into(), "weight".into());
        assert_eq!(
            splits(&[("weight", 1), ("tied", 9)]),
            [StateError::AliasSplit { alias, owner }]
        );
        assert_eq!(splits(&[("weight", 9), ("tied", 9)]), []);
        assert_eq!(splits(&[("tied", 9)]), []);
        assert_eq!(inventory().alias_groups().len(), 1);
    }

    #[test]
    fn lost_and_undeclared_state_is_named() {
        let lost = errors(|state| {
            state.remove(&SlotName::from("table"));
        });
        assert_eq!(lost, [StateError::Lost { name: "table".into() }]);
        let new = errors(|state| {
            state.insert("x".into(), sighting(1, false));
        });
        assert_eq!(new, [StateError::Undeclared { name: "x".into() }]);
    }

    #[test]
    fn refreshed_state_without_a_reference_is_said_so() {
        let mut cold = state(2);
        cold.remove(&SlotName::from("weight"));
        let errors = inventory().values(&state(1), &state(2), &cold);
        assert_eq!(errors, [StateError::NoReference { name: "weight".into() }]);
    }

    #[test]
    fn inventories_that_contradict_themselves_are_refused() {
        let seal = |of: &str, policy| {
            StateInventory::seal(BTreeMap::from([
                ("a".into(), rule(Policy::Refresh, None)),
                ("b".into(), rule(Policy::Refresh, Some("a"))),
                ("c".into(), rule(policy, Some(of))),
            ]))
        };
        assert!(seal("a", Policy::Refresh).is_ok());
        let unknown = seal("x", Policy::Refresh);
        assert!(matches!(unknown, Err(InventoryError::UnknownOwner { .. })));
        let chained = seal("b", Policy::Refresh);
        assert!(matches!(chained, Err(InventoryError::AliasOfAlias { .. })));
        let mixed = seal("a", Policy::Preserve);
        assert!(matches!(mixed, Err(InventoryError::Policies { .. })));
    }
}
