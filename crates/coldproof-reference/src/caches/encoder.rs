//! Rows of images that the encoder computed.
//!
//! As with KV blocks, an entry that no request holds stays cached until it is handed out again,
//! oldest first. The rows live in each rank's arena; this table lives once, with the scheduler.

use std::collections::VecDeque;

use coldproof_contract::words::Generation;

use super::{ImageId, Invalidation};

/// No entry is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the encoder's cache holds {entries} images and none is free; send fewer images at once")]
pub(crate) struct OutOfEntries {
    /// Entries of the cache.
    pub(crate) entries: usize,
}

/// Whose rows an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    image: ImageId,
    generation: Generation,
}

/// Which entries are held, free and cached.
#[derive(Debug)]
pub(crate) struct EncoderCache {
    holders: Vec<u32>,
    owners: Vec<Option<Owner>>,
    free: VecDeque<u32>,
    invalidation: Invalidation,
    /// The generation that the cache acknowledges.
    generation: Generation,
    hits: u64,
}

impl EncoderCache {
    /// A cache of `entries` images, all free.
    pub(crate) fn new(entries: u32, invalidation: Invalidation) -> Self {
        Self {
            holders: vec![0; entries as usize],
            owners: vec![None; entries as usize],
            free: (0..entries).collect(),
            invalidation,
            generation: Generation(0),
            hits: 0,
        }
    }

    /// The entry that has an image's rows.
    pub(crate) fn find(&mut self, image: ImageId, current: Generation) -> Option<u32> {
        let reaches = |made: Generation| self.invalidation.reaches(made, current);
        let has = |owner: &Option<Owner>| {
            owner.is_some_and(|owner| owner.image == image && reaches(owner.generation))
        };
        let entry = self.owners.iter().position(has)?;
        if self.holders[entry] == 0 {
            self.free.retain(|&free| free as usize != entry);
        }
        self.holders[entry] += 1;
        self.hits += 1;
        Some(entry as u32)
    }

    /// Hands out an entry; what was cached in it is forgotten.
    pub(crate) fn take(&mut self) -> Result<u32, OutOfEntries> {
        let entries = self.holders.len();
        let entry = self.free.pop_front().ok_or(OutOfEntries { entries })?;
        self.owners[entry as usize] = None;
        self.holders[entry as usize] = 1;
        Ok(entry)
    }

    /// Gives an entry back, cached as the rows of an image where it is to stay.
    pub(crate) fn release(&mut self, entry: u32, cache: Option<(ImageId, Generation)>) {
        let owner = &mut self.owners[entry as usize];
        if let (None, Some((image, generation))) = (&owner, cache) {
            *owner = Some(Owner { image, generation });
        }
        let holders = &mut self.holders[entry as usize];
        *holders = holders.saturating_sub(1);
        if *holders == 0 {
            self.free.push_back(entry);
        }
    }

    /// Answers an update to `generation`.
    pub(crate) fn invalidate(&mut self, generation: Generation) {
        self.generation = generation;
        if self.invalidation == Invalidation::Empty {
            self.forget();
        }
    }

    /// Forgets every entry: the memory behind them is gone.
    pub(crate) fn forget(&mut self) {
        self.owners.fill(None);
    }

    /// The generation that the cache last acknowledged.
    pub(crate) const fn generation(&self) -> Generation {
        self.generation
    }

    /// Entries that a request at the acknowledged generation could reach.
    pub(crate) fn entries(&self) -> u64 {
        let owners = self.owners.iter().flatten();
        let reaches = |made: Generation| self.invalidation.reaches(made, self.generation);
        owners.filter(|owner| reaches(owner.generation)).count() as u64
    }

    /// Entries reused since the last call.
    pub(crate) fn take_hits(&mut self) -> u64 {
        std::mem::take(&mut self.hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Generation = Generation(1);
    const TWO: Generation = Generation(2);

    fn image(pixel: u8) -> ImageId {
        ImageId::of(&[pixel])
    }

    fn warmed(invalidation: Invalidation) -> EncoderCache {
        let mut cache = EncoderCache::new(2, invalidation);
        let entry = cache.take().expect("free");
        cache.release(entry, Some((image(1), ONE)));
        cache
    }

    #[test]
    fn an_image_is_found_by_its_content_until_its_entry_is_handed_out() {
        let mut cache = warmed(Invalidation::Empty);
        assert_eq!(cache.find(image(2), ONE), None);
        let entry = cache.find(image(1), ONE).expect("cached");
        let other = cache.take().expect("free");
        assert_ne!(entry, other);
        assert_eq!(cache.take(), Err(OutOfEntries { entries: 2 }), "a held entry is not free");
        cache.release(entry, None);
        assert_eq!((cache.entries(), cache.take_hits()), (0, 1));
        cache.invalidate(ONE);
        cache.release(other, Some((image(3), ONE)));
        assert_eq!(cache.entries(), 1);
        assert_eq!(cache.take(), Ok(entry));
        assert_eq!(cache.take(), Ok(other));
        assert_eq!(cache.find(image(3), ONE), None);
    }

    #[test]
    fn only_unkeyed_entries_are_reached_by_other_weights() {
        for (invalidation, reached) in [
            (Invalidation::Empty, false),
            (Invalidation::KeepKeyed, false),
            (Invalidation::KeepUnkeyed, true),
        ] {
            let mut cache = warmed(invalidation);
            cache.invalidate(TWO);
            assert_eq!(cache.entries(), u64::from(reached));
            assert_eq!(cache.find(image(1), TWO).is_some(), reached);
        }
    }
}
