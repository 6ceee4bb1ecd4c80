//! The key manifest: what a caller promises to deliver, sealed before the first write. The check
//! seals each manifest of the evidence and opens an account of what was delivered against it.

use std::collections::{BTreeMap, BTreeSet};

/// The five classes. Each source of an update is in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyClass {
    /// Must arrive, and has not been loaded (yet).
    Required,
    /// Arrived and reached a slot.
    Loaded,
    /// The caller keeps it from the old generation.
    ExplicitlyPreserved,
    /// May be absent, and is.
    AllowedMissing,
    /// Arrived, and nothing expects it.
    Unexpected,
}

/// A name, or a pattern in which a `*` stands for one whole segment between dots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPattern(pub String);

impl KeyPattern {
    /// Whether a name is meant.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (self.0.split('.'), name.split('.'));
        loop {
            match (pattern.next(), name.next()) {
                (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(wanted), Some(found)) if wanted == found => {}
                _ => return false,
            }
        }
    }
}

/// What a caller promises, while it is being written down. Nothing can be applied against it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyManifestDraft {
    /// Sources that must arrive.
    pub required: BTreeSet<String>,
    /// Sources that the caller keeps from the old generation.
    pub explicitly_preserved: BTreeSet<String>,
    /// Sources that may be absent.
    pub allowed_missing: BTreeSet<KeyPattern>,
}

/// A promise that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyManifestError {
    /// Required and preserved at once.
    #[error("`{source_name}` is both required and preserved; choose one")]
    RequiredAndPreserved {
        /// The checkpoint tensor.
        source_name: String,
    },
    /// The allowlist would hide a required source.
    #[error("`{}` of the allowlist covers the required `{source_name}`; narrow it", pattern.0)]
    AllowlistCoversRequired {
        /// The entry.
        pattern: KeyPattern,
        /// The checkpoint tensor.
        source_name: String,
    },
    /// The allowlist covers what the caller preserves.
    #[error("`{}` of the allowlist covers the preserved `{source_name}`; narrow it", pattern.0)]
    AllowlistCoversPreserved {
        /// The entry.
        pattern: KeyPattern,
        /// The checkpoint tensor.
        source_name: String,
    },
    /// A source that the model needs and the caller says nothing of.
    #[error("the model needs `{source_name}`: require it, preserve it, or allow it to be missing")]
    Unclassified {
        /// The checkpoint tensor.
        source_name: String,
    },
}

impl KeyManifestDraft {
    /// Makes the promise final. `needed` are the sources that the model is made of: each must be
    /// in a class, so that an omission is written down by the caller and not found by accident.
    ///
    /// # Errors
    /// A source in two classes, or needed and in none.
    pub fn seal(
        self,
        needed: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<KeyManifest, KeyManifestError> {
        if let Some(both) = self.required.intersection(&self.explicitly_preserved).next() {
            return Err(KeyManifestError::RequiredAndPreserved { source_name: both.clone() });
        }
        for pattern in &self.allowed_missing {
            if let Some(source) = self.required.iter().find(|source| pattern.matches(source)) {
                let (pattern, source_name) = (pattern.clone(), source.clone());
                return Err(KeyManifestError::AllowlistCoversRequired { pattern, source_name });
            }
            let mut preserved = self.explicitly_preserved.iter();
            if let Some(source) = preserved.find(|source| pattern.matches(source)) {
                let (pattern, source_name) = (pattern.clone(), source.clone());
                return Err(KeyManifestError::AllowlistCoversPreserved { pattern, source_name });
            }
        }
        let manifest = KeyManifest { promised: self };
        for source in needed {
            if manifest.class(source.as_ref()) == KeyClass::Unexpected {
                let source_name = source.as_ref().to_owned();
                return Err(KeyManifestError::Unclassified { source_name });
            }
        }
        Ok(manifest)
    }
}

/// A sealed promise: it has no way to be changed.
///
/// A draft cannot be applied against:
///
/// ```compile_fail
/// use coldproof_contract::names::KeyManifestDraft;
/// let account = KeyManifestDraft::default().open();
/// ```
///
/// A sealed one cannot be changed:
///
/// ```compile_fail
/// use coldproof_contract::names::KeyManifestDraft;
/// let mut sealed = KeyManifestDraft::default().seal([""; 0]).unwrap();
/// sealed.required.insert("late".to_owned());
/// ```
///
/// ```
/// use coldproof_contract::names::KeyManifestDraft;
/// let sealed = KeyManifestDraft::default().seal([""; 0]).unwrap();
/// assert!(sealed.open().finish().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyManifest {
    promised: KeyManifestDraft,
}

impl KeyManifest {
    /// The class of a source before anything arrives.
    #[must_use]
    pub fn class(&self, source: &str) -> KeyClass {
        if self.promised.required.contains(source) {
            KeyClass::Required
        } else if self.promised.explicitly_preserved.contains(source) {
            KeyClass::ExplicitlyPreserved
        } else if self.promised.allowed_missing.iter().any(|pattern| pattern.matches(source)) {
            KeyClass::AllowedMissing
        } else {
            KeyClass::Unexpected
        }
    }

    /// Sources that must arrive, by name.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        self.promised.required.iter().map(String::as_str)
    }

    /// Opens the account of one update.
    #[must_use]
    pub const fn open(&self) -> KeyAccount<'_> {
        KeyAccount { manifest: self, delivered: BTreeSet::new(), consumed: BTreeSet::new() }
    }
}

/// A source that was not dealt with as promised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum KeyError {
    /// Required, and never arrived.
    #[error("`{source_name}` is required and was never delivered")]
    Missing {
        /// The checkpoint tensor.
        source_name: String,
    },
    /// Arrived, and nothing expects it.
    #[error("`{source_name}` was delivered and nothing expects it")]
    Unexpected {
        /// The checkpoint tensor.
        source_name: String,
    },
    /// Arrived twice.
    #[error("`{source_name}` was delivered twice")]
    DeliveredTwice {
        /// The checkpoint tensor.
        source_name: String,
    },
    /// Arrived although the caller keeps the old one.
    #[error("`{source_name}` was delivered although the caller preserves the old one")]
    PreservedDelivered {
        /// The checkpoint tensor.
        source_name: String,
    },
    /// Arrived, and no slot took it.
    #[error("`{source_name}` was delivered and reached no slot")]
    NotConsumed {
        /// The checkpoint tensor.
        source_name: String,
    },
    /// A slot took what never arrived.
    #[error("`{source_name}` was consumed and never delivered")]
    ConsumedUndelivered {
        /// The checkpoint tensor.
        source_name: String,
    },
}

/// Declared against delivered against consumed, of one update.
#[derive(Clone, Debug)]
pub struct KeyAccount<'m> {
    manifest: &'m KeyManifest,
    delivered: BTreeSet<String>,
    consumed: BTreeSet<String>,
}

impl KeyAccount<'_> {
    /// A source arrived. Chunks of one source are one delivery.
    ///
    /// # Errors
    /// A source that nothing expects, that the caller preserves, or that arrived before.
    pub fn delivered(&mut self, source: &str) -> Result<(), KeyError> {
        let source_name = source.to_owned();
        match self.manifest.class(source) {
            KeyClass::Unexpected => Err(KeyError::Unexpected { source_name }),
            KeyClass::ExplicitlyPreserved => Err(KeyError::PreservedDelivered { source_name }),
            _ if !self.delivered.insert(source_name.clone()) => {
                Err(KeyError::DeliveredTwice { source_name })
            }
            _ => Ok(()),
        }
    }

    /// A slot took elements of a source. Several slots and ranks may take one source.
    ///
    /// # Errors
    /// A source that never arrived.
    pub fn consumed(&mut self, source: &str) -> Result<(), KeyError> {
        if !self.delivered.contains(source) {
            return Err(KeyError::ConsumedUndelivered { source_name: source.to_owned() });
        }
        self.consumed.insert(source.to_owned());
        Ok(())
    }

    /// What is left open, by name.
    #[must_use]
    pub fn finish(&self) -> Vec<KeyError> {
        let open = self.classes().into_iter().filter_map(|(name, class)| {
            let source_name = name.to_owned();
            match class {
                KeyClass::Loaded | KeyClass::ExplicitlyPreserved | KeyClass::Unexpected => None,
                _ if self.delivered.contains(name) => Some(KeyError::NotConsumed { source_name }),
                KeyClass::Required => Some(KeyError::Missing { source_name }),
                KeyClass::AllowedMissing => None,
            }
        });
        open.collect()
    }

    /// The class of every source that was promised by name or arrived.
    #[must_use]
    pub fn classes(&self) -> BTreeMap<&str, KeyClass> {
        let promised = &self.manifest.promised;
        let names = promised.required.iter().chain(&promised.explicitly_preserved);
        let exact = promised.allowed_missing.iter().map(|pattern| &pattern.0);
        let exact = exact.filter(|name| !name.split('.').any(|segment| segment == "*"));
        names
            .chain(exact)
            .chain(&self.delivered)
            .map(|name| {
                let loaded = self.consumed.contains(name);
                let class = if loaded { KeyClass::Loaded } else { self.manifest.class(name) };
                (name.as_str(), class)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn draft(required: &[&str], preserved: &[&str], allowed: &[&str]) -> KeyManifestDraft {
        KeyManifestDraft {
            required: names(required),
            explicitly_preserved: names(preserved),
            allowed_missing: allowed.iter().map(|&name| KeyPattern(name.to_owned())).collect(),
        }
    }

    fn sealed() -> KeyManifest {
        draft(&["w", "v"], &["kept"], &["bias"]).seal(["w", "v", "kept", "bias"]).unwrap()
    }

    fn text(name: &str) -> String {
        name.to_owned()
    }

    #[test]
    fn a_star_is_one_segment() {
        let pattern = KeyPattern("layers.*.bias".to_owned());
        assert!(pattern.matches("layers.11.bias"));
        assert!(!pattern.matches("layers.1.attn.bias"));
        assert!(!pattern.matches("layers.1.bias.x"));
        assert!(!pattern.matches("layers.1"));
    }

    #[test]
    fn classes_are_disjoint() {
        let both = draft(&["w"], &["w"], &[]).seal(["w"]);
        let source_name = text("w");
        assert_eq!(both, Err(KeyManifestError::RequiredAndPreserved { source_name }));
        let hides = draft(&["l.0.scale"], &[], &["l.*.scale"]).seal(["l.0.scale"]);
        assert!(matches!(hides, Err(KeyManifestError::AllowlistCoversRequired { .. })));
        let hides = draft(&[], &["l.0.scale"], &["l.*.scale"]).seal(["l.0.scale"]);
        assert!(matches!(hides, Err(KeyManifestError::AllowlistCoversPreserved { .. })));
        assert!(draft(&["l.0.weight"], &[], &["l.*.scale"]).seal(["l.0.weight"]).is_ok());
    }

    #[test]
    fn a_needed_source_must_be_in_a_class() {
        let open = draft(&["w"], &[], &[]).seal(["w", "v"]);
        assert_eq!(open, Err(KeyManifestError::Unclassified { source_name: text("v") }));
    }

    #[test]
    fn a_kept_promise_is_silent() {
        let manifest = sealed();
        let mut account = manifest.open();
        for source in ["v", "w"] {
            account.delivered(source).unwrap();
            account.consumed(source).unwrap();
        }
        assert_eq!(account.finish(), []);
        let classes = account.classes();
        assert_eq!(classes["w"], KeyClass::Loaded);
        assert_eq!(classes["kept"], KeyClass::ExplicitlyPreserved);
        assert_eq!(classes["bias"], KeyClass::AllowedMissing);
    }

    #[test]
    fn both_sides_are_checked() {
        let manifest = sealed();
        let mut account = manifest.open();
        account.delivered("w").unwrap();
        let source_name = text("v");
        assert_eq!(account.consumed("v"), Err(KeyError::ConsumedUndelivered { source_name }));
        let missing = KeyError::Missing { source_name: text("v") };
        let idle = KeyError::NotConsumed { source_name: text("w") };
        assert_eq!(account.finish(), [missing, idle]);
        assert_eq!(account.classes()["w"], KeyClass::Required);
    }

    #[test]
    fn repeats_strangers_and_preserved_sources_are_refused() {
        let manifest = sealed();
        let mut account = manifest.open();
        account.delivered("w").unwrap();
        let twice = KeyError::DeliveredTwice { source_name: text("w") };
        assert_eq!(account.delivered("w"), Err(twice));
        let stranger = KeyError::Unexpected { source_name: text("x") };
        assert_eq!(account.delivered("x"), Err(stranger));
        let kept = KeyError::PreservedDelivered { source_name: text("kept") };
        assert_eq!(account.delivered("kept"), Err(kept));
        assert_eq!(account.delivered("bias"), Ok(()));
    }
}
