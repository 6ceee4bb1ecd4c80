//! Images as the tower takes them, by content. No weight is read to make one, so an update leaves
//! them as they are; what they depend on is the processor's configuration.

use std::collections::VecDeque;
use std::sync::Arc;

use coldproof_checkpoint::arch::Processor;

use super::ImageId;
use super::image::prepared;

/// Prepared images that are kept.
const IMAGES_MAX: usize = 8;

/// Prepared pixels, shared.
pub(crate) type Pixels = Arc<Vec<f32>>;

/// Prepared images, the oldest first.
#[derive(Debug)]
pub(crate) struct ProcessorCache {
    processor: Processor,
    images: VecDeque<(ImageId, Pixels)>,
    hits: u64,
}

impl ProcessorCache {
    /// Nothing prepared yet.
    pub(crate) const fn new(processor: Processor) -> Self {
        Self { processor, images: VecDeque::new(), hits: 0 }
    }

    /// A prepared image that is kept.
    pub(crate) fn find(&mut self, image: ImageId) -> Option<Pixels> {
        let (_, pixels) = self.images.iter().find(|(id, _)| *id == image)?;
        self.hits += 1;
        Some(Arc::clone(pixels))
    }

    /// Prepares an image.
    pub(crate) fn prepare(&self, pixels: &[u8]) -> Pixels {
        Arc::new(prepared(pixels, &self.processor))
    }

    /// Keeps a prepared image.
    pub(crate) fn keep(&mut self, image: ImageId, pixels: Pixels) {
        if self.images.len() == IMAGES_MAX {
            self.images.pop_front();
        }
        self.images.push_back((image, pixels));
    }

    /// Which processor prepared them.
    pub(crate) fn version(&self) -> String {
        self.processor.version()
    }

    /// Images that are kept.
    pub(crate) fn entries(&self) -> u64 {
        self.images.len() as u64
    }

    /// Images reused since the last call.
    pub(crate) fn take_hits(&mut self) -> u64 {
        std::mem::take(&mut self.hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_image_makes_room() {
        let mut cache = ProcessorCache::new(Processor::default());
        let image = |index: u8| ImageId::of(&[index]);
        for index in 0..=IMAGES_MAX as u8 {
            let pixels = cache.prepare(&[index; 3]);
            cache.keep(image(index), pixels);
        }
        assert_eq!(cache.entries(), IMAGES_MAX as u64);
        assert_eq!(cache.find(image(0)), None);
        assert!(cache.find(image(1)).is_some());
        assert_eq!(cache.take_hits(), 1);
    }
}
