//! An image of a request: its identity, and its preparation.

use coldproof_checkpoint::arch::{Processor, Vision};

use crate::engine::Image;

/// The identity of an image: its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ImageId([u8; 32]);

impl ImageId {
    /// Of these pixels.
    pub(crate) fn of(pixels: &[u8]) -> Self {
        Self(*blake3::hash(pixels).as_bytes())
    }

    /// Its bytes.
    pub(crate) const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// What stands at one position of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// A token.
    Token(u32),
    /// A row of an image, whatever token stands in its place.
    Row(ImageId, u32),
}

/// What stands at the positions of these tokens, the first of a request with these images.
pub(crate) fn symbols(tokens: &[u32], images: &[Image], vision: Option<&Vision>) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = tokens.iter().map(|&token| Symbol::Token(token)).collect();
    let rows = vision.map_or(0, |vision| vision.image_tokens() as usize);
    for image in images {
        let id = ImageId::of(&image.pixels);
        let placed = symbols.iter_mut().skip(image.at as usize).take(rows);
        for (row, symbol) in (0..).zip(placed) {
            *symbol = Symbol::Row(id, row);
        }
    }
    symbols
}

/// The pixels of an image as the tower takes them.
pub(crate) fn prepared(pixels: &[u8], processor: &Processor) -> Vec<f32> {
    let channels = processor.mean.iter().zip(&processor.std);
    let area = pixels.len() / processor.mean.len().max(1);
    let values = pixels.chunks(area.max(1)).zip(channels).flat_map(|(channel, (mean, std))| {
        channel.iter().map(move |value| (f32::from(*value) * processor.rescale - mean) / std)
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_has_its_mean_and_its_scale() {
        let processor = Processor { rescale: 0.5, mean: vec![1.0, 0.0], std: vec![2.0, 4.0] };
        assert_eq!(prepared(&[2, 6, 8, 0], &processor), [0.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn two_images_are_told_apart_and_a_placeholder_is_not() {
        assert_eq!(ImageId::of(&[1, 2]), ImageId::of(&[1, 2]));
        assert_ne!(ImageId::of(&[1, 2]), ImageId::of(&[2, 1]));
    }
}
