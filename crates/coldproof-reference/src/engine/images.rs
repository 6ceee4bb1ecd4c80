//! Images of requests: prepared on the host, computed by the encoder where nothing has their rows.

use coldproof_checkpoint::arch::Vision;
use coldproof_contract::evidence::RequestStage;

use super::EngineError;
use super::core::Core;
use super::request::GenerateRequest;
use crate::caches::{ImageId, OutOfEntries, Pixels};
use crate::ranks::StepImage;

/// The kernel of the host in the launch trace.
const PREPARE: &str = "prepare_pixels";

impl From<OutOfEntries> for EngineError {
    fn from(error: OutOfEntries) -> Self {
        Self::refused(error.to_string())
    }
}

/// An entry of the encoder's cache that a request holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldImage {
    image: ImageId,
    entry: u32,
}

impl Core {
    /// The rows of a request's images that its prefill places, where its first `known` positions
    /// are computed already.
    pub(super) fn take_images(
        &mut self,
        request: &GenerateRequest,
        known: usize,
        held: &mut Vec<HeldImage>,
    ) -> Result<Vec<StepImage>, EngineError> {
        let Some(vision) = self.dims.vision.clone() else { return Ok(Vec::new()) };
        let (count, mut taken) = (vision.image_tokens() as usize, Vec::new());
        for image in &request.images {
            let id = ImageId::of(&image.pixels);
            let pixels = self.prepare(request, id, &image.pixels, &vision);
            let (first, end) = (image.at as usize, image.at as usize + count);
            if end <= known {
                continue;
            }
            let generation = self.machine.generation();
            let found = request.use_encoder_cache.then(|| self.encoder.find(id, generation));
            let found = found.flatten();
            let entry = found.map_or_else(|| self.encoder.take(), Ok)?;
            held.push(HeldImage { image: id, entry });
            let skipped = known.saturating_sub(first);
            taken.push(StepImage {
                pixels: found.is_none().then_some(pixels),
                entry,
                first: skipped,
                row: first + skipped - known,
                rows: count - skipped,
            });
        }
        Ok(taken)
    }

    fn prepare(
        &mut self,
        request: &GenerateRequest,
        image: ImageId,
        pixels: &[u8],
        vision: &Vision,
    ) -> Pixels {
        let Some(processor) = &mut self.processor else { return Pixels::default() };
        let cached = request.use_encoder_cache;
        if let Some(found) = cached.then(|| processor.find(image)).flatten() {
            return found;
        }
        let prepared = processor.prepare(pixels);
        self.host.set_request(&request.name);
        self.host.set_stage(Some(RequestStage::Processor));
        self.host.record(PREPARE, None, vision.image_size);
        if cached {
            processor.keep(image, Pixels::clone(&prepared));
        }
        prepared
    }

    /// Gives back what a request held; its images stay cached where they may.
    pub(super) fn release_images(&mut self, held: &[HeldImage], cached: bool) {
        let generation = self.machine.generation();
        for HeldImage { image, entry } in held {
            self.encoder.release(*entry, cached.then_some((*image, generation)));
        }
    }

    /// Whether the images of a request are those of this model, each in the place of its tokens.
    pub(super) fn check_images(&self, request: &GenerateRequest) -> Result<(), EngineError> {
        let name = &request.name;
        let refused = |text: String| Err(EngineError::refused(text));
        if request.images.is_empty() {
            return Ok(());
        }
        let Some(vision) = &self.dims.vision else {
            return refused(format!("request `{name}` has an image; this model takes none"));
        };
        let mut free = 0;
        for image in &request.images {
            let wanted = [vision.channels, vision.image_size, vision.image_size];
            let (shape, found) = (image.shape.map(u64::from), image.pixels.len() as u64);
            if shape != wanted || found != vision.pixels() {
                return refused(format!(
                    "an image of request `{name}` is {found} bytes of shape {shape:?}; this model \
                     takes {wanted:?}"
                ));
            }
            let count = vision.image_tokens();
            let at = u64::from(image.at);
            let places = request.prompt.iter().skip(image.at as usize).take(count as usize);
            let fit = places.filter(|token| u64::from(**token) == vision.image_token).count();
            if at < free || fit as u64 != count {
                return refused(format!(
                    "the image at {at} of request `{name}` needs {count} tokens {} of its own in \
                     the prompt",
                    vision.image_token
                ));
            }
            free = at + count;
        }
        Ok(())
    }
}
