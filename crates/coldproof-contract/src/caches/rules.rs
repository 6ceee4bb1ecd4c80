//! The cache inventory: every cache acknowledges the new generation or is empty.

use std::collections::BTreeMap;

use crate::words::Generation;

/// What the operator chose for a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheChoice {
    /// It must be empty when requests run again.
    Empty,
    /// It may keep entries and must acknowledge the new generation, so that old ones never match.
    Acknowledge,
    /// It may serve entries of old generations. The report says so.
    KeepOld,
}

/// One cache as it is after an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSighting {
    /// The generation that it serves entries for.
    pub generation: Generation,
    /// Entries in it.
    pub entries: u64,
}

/// A cache that could serve what is old.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// It must be empty and is not.
    #[error("cache `{cache}` must be empty and holds {entries} entries")]
    NotEmpty {
        /// The cache.
        cache: String,
        /// Its entries.
        entries: u64,
    },
    /// It holds entries of another generation.
    #[error("cache `{cache}` holds entries of generation {} and {} is served", found.0, served.0)]
    Unacknowledged {
        /// The cache.
        cache: String,
        /// The generation that it acknowledged.
        found: Generation,
        /// The generation that is served.
        served: Generation,
    },
    /// It said nothing.
    #[error("cache `{cache}` is in the inventory and was not seen after the update")]
    Silent {
        /// The cache.
        cache: String,
    },
    /// A cache that nobody declared.
    #[error("cache `{cache}` is not in the inventory; choose what an update does to it")]
    Undeclared {
        /// The cache.
        cache: String,
    },
}

/// Every cache that is derived from weights, with the operator's choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheInventory {
    choices: BTreeMap<String, CacheChoice>,
}

impl CacheInventory {
    /// An inventory of these caches.
    #[must_use]
    pub const fn new(choices: BTreeMap<String, CacheChoice>) -> Self {
        Self { choices }
    }

    /// Judges the caches of an engine that now serves `served`. An empty cache is right under
    /// every choice.
    #[must_use]
    pub fn check(
        &self,
        served: Generation,
        seen: &BTreeMap<String, CacheSighting>,
    ) -> Vec<CacheError> {
        let mut errors = Vec::new();
        for (name, &choice) in &self.choices {
            let cache = name.clone();
            let Some(&CacheSighting { generation: found, entries }) = seen.get(name) else {
                errors.push(CacheError::Silent { cache });
                continue;
            };
            match choice {
                _ if entries == 0 => {}
                CacheChoice::Empty => errors.push(CacheError::NotEmpty { cache, entries }),
                CacheChoice::Acknowledge if found != served => {
                    errors.push(CacheError::Unacknowledged { cache, found, served });
                }
                CacheChoice::Acknowledge | CacheChoice::KeepOld => {}
            }
        }
        let strangers = seen.keys().filter(|cache| !self.choices.contains_key(*cache));
        errors.extend(strangers.map(|cache| CacheError::Undeclared { cache: cache.clone() }));
        errors
    }

    /// Caches that may serve old entries by the operator's choice: a report must name them.
    pub fn kept_old(&self) -> impl Iterator<Item = &str> {
        let kept = self.choices.iter().filter(|(_, choice)| **choice == CacheChoice::KeepOld);
        kept.map(|(cache, _)| cache.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: Generation = Generation(2);

    fn check(choice: CacheChoice, generation: u64, entries: u64) -> Vec<CacheError> {
        let inventory = CacheInventory::new(BTreeMap::from([("kv".to_owned(), choice)]));
        let sighting = CacheSighting { generation: Generation(generation), entries };
        inventory.check(SERVED, &BTreeMap::from([("kv".to_owned(), sighting)]))
    }

    fn cache() -> String {
        "kv".to_owned()
    }

    #[test]
    fn an_empty_cache_is_right_under_every_choice() {
        for choice in [CacheChoice::Empty, CacheChoice::Acknowledge, CacheChoice::KeepOld] {
            assert_eq!(check(choice, 1, 0), []);
        }
    }

    #[test]
    fn a_cache_with_entries_is_judged_by_its_choice() {
        let full = CacheError::NotEmpty { cache: cache(), entries: 3 };
        assert_eq!(check(CacheChoice::Empty, 2, 3), [full]);
        let found = Generation(1);
        let old = CacheError::Unacknowledged { cache: cache(), found, served: SERVED };
        assert_eq!(check(CacheChoice::Acknowledge, 1, 3), [old]);
        assert_eq!(check(CacheChoice::Acknowledge, 2, 3), []);
        assert_eq!(check(CacheChoice::KeepOld, 1, 3), []);
    }

    #[test]
    fn a_label_from_the_future_is_no_acknowledgement() {
        assert_eq!(check(CacheChoice::Acknowledge, 3, 1).len(), 1);
    }

    #[test]
    fn silent_and_undeclared_caches_are_named() {
        let choices = BTreeMap::from([(cache(), CacheChoice::KeepOld)]);
        let inventory = CacheInventory::new(choices);
        let silent = inventory.check(SERVED, &BTreeMap::new());
        assert_eq!(silent, [CacheError::Silent { cache: cache() }]);
        assert_eq!(inventory.kept_old().collect::<Vec<_>>(), ["kv"]);
        let sighting = CacheSighting { generation: SERVED, entries: 0 };
        let seen = BTreeMap::from([(cache(), sighting)]);
        let undeclared = CacheInventory::default().check(SERVED, &seen);
        assert_eq!(undeclared, [CacheError::Undeclared { cache: cache() }]);
    }
}
