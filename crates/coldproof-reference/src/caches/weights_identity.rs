//! Which weights are served, by content: a number that an engine counts starts again with it.

use std::collections::BTreeMap;

/// The digest of what was delivered, over all updates since the last whole load.
///
/// Equal identities are equal weights. Equal weights that came by other ways (another spelling, an
/// update in part) may have two identities, which costs a miss.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeightsIdentity {
    committed: Option<[u8; 32]>,
    open: Option<Open>,
}

/// What an open update begins with, and the digests of what it delivered.
#[derive(Clone, Debug)]
struct Open {
    before: Option<[u8; 32]>,
    sources: BTreeMap<String, [u8; 32]>,
}

impl WeightsIdentity {
    /// An update is opened; in a partial one what was there stays where nothing comes.
    pub(crate) fn begin(&mut self, partial: bool) {
        let before = self.committed.filter(|_| partial);
        self.open = Some(Open { before, sources: BTreeMap::new() });
    }

    /// A source arrived.
    pub(crate) fn saw(&mut self, source: &str, bytes: &[u8]) {
        if let Some(open) = &mut self.open {
            open.sources.insert(source.to_owned(), *blake3::hash(bytes).as_bytes());
        }
    }

    /// The update is what is served from here on.
    pub(crate) fn commit(&mut self) {
        let Some(Open { before, sources }) = self.open.take() else { return };
        // An update that keeps all weights: of adapters alone.
        if before.is_some() && sources.is_empty() {
            return;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&before.unwrap_or_default());
        for (source, digest) in &sources {
            hasher.update(&(source.len() as u64).to_le_bytes()).update(source.as_bytes());
            hasher.update(digest);
        }
        self.committed = Some(*hasher.finalize().as_bytes());
    }

    /// The weights that are served, once some are.
    pub(crate) const fn committed(&self) -> Option<[u8; 32]> {
        self.committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updated(identity: &mut WeightsIdentity, partial: bool, sources: &[(&str, u8)]) -> [u8; 32] {
        identity.begin(partial);
        for (source, byte) in sources {
            identity.saw(source, &[*byte]);
        }
        identity.commit();
        identity.committed().expect("committed")
    }

    #[test]
    fn a_whole_load_is_known_by_its_content_alone() {
        let mut one = WeightsIdentity::default();
        let a = updated(&mut one, false, &[("v", 1), ("w", 2)]);
        let b = updated(&mut one, false, &[("v", 1), ("w", 3)]);
        assert_ne!(a, b);
        let mut other = WeightsIdentity::default();
        assert_eq!(updated(&mut other, false, &[("w", 3), ("v", 1)]), b, "in any order");
        assert_eq!(updated(&mut one, false, &[("v", 1), ("w", 2)]), a, "and again");
        assert_ne!(updated(&mut one, false, &[("vw", 1)]), updated(&mut one, false, &[("v", 1)]));
    }

    #[test]
    fn a_partial_update_is_known_by_what_it_came_onto() {
        let after = |first: u8| {
            let mut identity = WeightsIdentity::default();
            updated(&mut identity, false, &[("v", first), ("w", 2)]);
            updated(&mut identity, true, &[("w", 3)])
        };
        let mut kept = WeightsIdentity::default();
        let before = updated(&mut kept, false, &[("v", 1)]);
        assert_eq!(updated(&mut kept, true, &[]), before);
        assert_eq!(after(1), after(1));
        assert_ne!(after(1), after(4));
    }

    #[test]
    fn an_update_that_is_given_up_names_nothing() {
        let mut identity = WeightsIdentity::default();
        let a = updated(&mut identity, false, &[("v", 1)]);
        identity.begin(false);
        identity.saw("v", &[2]);
        assert_eq!(identity.committed(), Some(a));
        assert_eq!(updated(&mut identity, false, &[("v", 1)]), a);
    }
}
