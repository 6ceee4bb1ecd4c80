//! Fixed tokens for every arm of a run.

use crate::engine::{DecodeMode, GenerateRequest, Image};

/// Tokens of the main request's prompt.
const PROMPT: u32 = 16;
/// Tokens that are decoded one by one after it.
const FORCED: u32 = 8;
/// Tokens of the longest prompt of a batch.
const ROW_PROMPT: u32 = 6;
/// Tokens that a batch decodes.
const ROW_FORCED: u32 = 4;
/// Tokens of the cache request: several blocks of any usual size.
const CACHED: u32 = 70;

/// The requests of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// The longest sequence.
    pub positions_max: u32,
    /// Decoded tokens of one positive control.
    pub control: u32,
    /// What an image of this model is, where it takes some and they fit.
    pub image: Option<ImageShape>,
}

/// What the images of a model have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Channels, rows, columns.
    pub shape: [u32; 3],
    /// Positions of a prompt that an image takes.
    pub rows: u32,
    /// The token that stands at each of them.
    pub token: u32,
}

impl ImageShape {
    /// Positions that a prompt with an image has beside it, with all that is decoded after it.
    pub const BESIDE: u32 = 64;

    /// An image behind the first token of a prompt; another `number` is another image.
    fn image(self, number: usize) -> Image {
        let count: usize = self.shape.iter().map(|&extent| extent as usize).product();
        let pixels = (0..count).map(|index| ((37 * number + 11 * index) % 251) as u8);
        Image { at: 1, shape: self.shape, pixels: pixels.collect() }
    }
}

impl Requests {
    fn tokens(self, first: u32, count: u32) -> Vec<u32> {
        let room = self.vocabulary.saturating_sub(1).max(1);
        // An image's token that is followed by no image would be another request.
        let image = self.image.map(|image| image.token);
        let text = |token: u32| if Some(token) == image { token - 1 } else { token };
        (first..first + count).map(|i| text((7 * i + 3) % room)).collect()
    }

    /// A request with an image behind the first token of another prompt, where the model takes
    /// images.
    fn with_image(self, name: &str, number: usize, of: GenerateRequest) -> Option<GenerateRequest> {
        let shape = self.image?;
        let mut prompt = self.tokens(2_000, 1 + PROMPT);
        prompt.splice(1..1, std::iter::repeat_n(shape.token, shape.rows as usize));
        let (name, images) = (name.to_owned(), vec![shape.image(number)]);
        Some(GenerateRequest { name, prompt, images, ..of })
    }

    /// The main request behind an image, which no cache serves.
    #[must_use]
    pub fn seen(self, mode: DecodeMode) -> Option<GenerateRequest> {
        self.with_image("image", 1, self.main(mode))
    }

    /// Requests of the caches lane: one that the prefix cache may serve; for a model that takes
    /// images one that the encoder's caches alone may serve, and two that the prefix cache alone
    /// may serve, of the same tokens and of two images.
    #[must_use]
    pub fn cached(self, images: bool) -> Vec<GenerateRequest> {
        let text = self.cache();
        let mut requests = vec![text.clone()];
        if images {
            let encoder = GenerateRequest {
                use_prefix_cache: false,
                use_encoder_cache: true,
                ..text.clone()
            };
            requests.extend(self.with_image("cache-image", 2, encoder));
            requests.extend(self.with_image("cache-prefix", 3, text.clone()));
            requests.extend(self.with_image("cache-other-image", 4, text));
        }
        requests
    }

    /// The main request: teacher-forced logits and a few greedy tokens.
    #[must_use]
    pub fn main(self, mode: DecodeMode) -> GenerateRequest {
        let prompt = PROMPT.min(self.positions_max / 4).max(1);
        let forced = FORCED.min(self.positions_max / 4);
        GenerateRequest {
            name: "main".to_owned(),
            prompt: self.tokens(0, prompt),
            forced: self.tokens(prompt, forced),
            greedy: 4.min(self.positions_max / 4),
            mode,
            use_prefix_cache: false,
            adapter: None,
            images: Vec::new(),
            use_encoder_cache: false,
            replica: 0,
        }
    }

    /// Requests of one batch: other tokens in each, and prompts of other lengths, so that no two
    /// rows of a decode step are at one position.
    #[must_use]
    pub fn rows(self, batch: u32, mode: DecodeMode) -> Vec<GenerateRequest> {
        let forced = ROW_FORCED.min(self.positions_max / 4);
        let row = |index: u32| {
            let prompt = ROW_PROMPT.saturating_sub(index).min(self.positions_max / 4).max(1);
            let first = 100 * (index + 1);
            GenerateRequest {
                name: format!("row-{index}"),
                prompt: self.tokens(first, prompt),
                forced: self.tokens(first + prompt, forced),
                greedy: 0,
                mode,
                use_prefix_cache: false,
                adapter: None,
                images: Vec::new(),
                use_encoder_cache: false,
                replica: 0,
            }
        };
        (0..batch).map(row).collect()
    }

    /// The cache request: a long prompt that the prefix cache may serve.
    #[must_use]
    pub fn cache(self) -> GenerateRequest {
        let prompt = CACHED.min(self.positions_max.saturating_sub(2)).max(1);
        GenerateRequest {
            name: "cache".to_owned(),
            prompt: self.tokens(1_000, prompt),
            forced: self.tokens(1_000 + prompt, 1),
            greedy: 0,
            mode: DecodeMode::Eager,
            use_prefix_cache: true,
            adapter: None,
            images: Vec::new(),
            use_encoder_cache: false,
            replica: 0,
        }
    }

    /// A request of the same length that begins with other tokens.
    #[must_use]
    pub fn kept(self) -> GenerateRequest {
        let text = self.cache();
        let prompt = self.tokens(1_001, text.prompt.len() as u32);
        GenerateRequest { name: "kept".to_owned(), prompt, ..text }
    }

    /// Tokens of either.
    #[must_use]
    pub fn cached_tokens(self) -> u32 {
        let text = self.cache();
        (text.prompt.len() + text.forced.len()) as u32
    }

    /// The cache request with an adapter, or on the base model beside one.
    #[must_use]
    pub fn adapted(self, adapter: Option<&str>) -> GenerateRequest {
        let name = if adapter.is_some() { "adapted" } else { "unadapted" };
        let adapter = adapter.map(str::to_owned);
        GenerateRequest { name: name.to_owned(), adapter, ..self.cache() }
    }

    /// The positive control: almost everything is computed by replays, where there are any.
    #[must_use]
    pub fn control(self, mode: DecodeMode, images: bool) -> GenerateRequest {
        let text = GenerateRequest {
            name: "control".to_owned(),
            prompt: self.tokens(0, 1),
            forced: self.tokens(1, self.control.min(self.positions_max / 2)),
            greedy: 0,
            mode,
            use_prefix_cache: false,
            adapter: None,
            images: Vec::new(),
            use_encoder_cache: false,
            replica: 0,
        };
        let seen = || self.with_image("control", 1, text.clone());
        images.then(seen).flatten().unwrap_or(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_batch_have_other_tokens_at_other_positions() {
        let rows = Requests { vocabulary: 331, positions_max: 256, control: 1, image: None }
            .rows(4, DecodeMode::Graph);
        for (index, row) in rows.iter().enumerate() {
            for other in &rows[..index] {
                assert_ne!(row.name, other.name);
                assert_ne!(row.prompt.len(), other.prompt.len());
                assert!(row.forced.iter().zip(&other.forced).all(|(one, two)| one != two));
            }
        }
        assert!(rows.iter().all(|row| row.forced.len() == rows[0].forced.len()));
    }

    #[test]
    fn a_request_with_an_image_has_its_tokens_and_fits_beside_it() {
        let image = ImageShape { shape: [3, 4, 4], rows: 16, token: 10 };
        let positions_max = 16 + ImageShape::BESIDE;
        let all = Requests { vocabulary: 12, positions_max, control: 23, image: Some(image) };
        let mut requests = all.cached(true);
        assert!(requests.remove(0).images.is_empty());
        requests.extend(all.seen(DecodeMode::Eager));
        requests.push(all.control(DecodeMode::Graph, true));
        for request in &requests {
            let held = request.prompt.iter().filter(|token| **token == 10).count();
            assert_eq!((held, request.images.len(), request.images[0].at), (16, 1, 1));
            assert_eq!(request.images[0].pixels.len(), 48);
            assert!(request.forced.iter().all(|token| *token != 10));
            let tokens = request.prompt.len() + request.forced.len() + request.greedy as usize;
            assert!(tokens as u32 <= positions_max, "{}: {tokens}", request.name);
        }
        let [_, prefix, other] = &requests[..3] else { panic!("three that are cached") };
        assert_eq!(prefix.prompt, other.prompt);
        assert_ne!(prefix.images, other.images);
        assert_eq!(all.cached(false).len(), 1);
        assert!(all.control(DecodeMode::Graph, false).images.is_empty());
        let none = Requests { image: None, ..all };
        assert_eq!((none.seen(DecodeMode::Eager), none.cached(true).len()), (None, 1));
    }

    #[test]
    fn rows_fit_the_smallest_model() {
        let rows = Requests { vocabulary: 2, positions_max: 4, control: 1, image: None }
            .rows(4, DecodeMode::Graph);
        assert!(rows.iter().all(|row| row.prompt.len() + row.forced.len() <= 4));
    }
}
