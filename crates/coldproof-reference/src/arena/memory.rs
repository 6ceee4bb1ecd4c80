//! The bytes behind a region: segments that are backed while the region is mapped.

use super::Pattern;

/// One run of backed addresses. Offsets count from the region's first byte.
#[derive(Debug)]
struct Segment {
    offset: u64,
    bytes: u64,
    /// 8-byte words, so that any 512-byte aligned offset casts to every element type; empty
    /// while the region is unmapped.
    words: Vec<u64>,
}

/// An offset that no memory backs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unbacked {
    pub(super) offset: u64,
}

/// The memory of one region.
#[derive(Debug)]
pub(super) struct Memory {
    base: u64,
    mapped: bool,
    segments: Vec<Segment>,
}

impl Memory {
    pub(super) const fn new(base: u64) -> Self {
        Self { base, mapped: true, segments: Vec::new() }
    }

    pub(super) const fn mapped(&self) -> bool {
        self.mapped
    }

    /// Backs a further segment. Segments arrive in ascending order.
    pub(super) fn grow(&mut self, offset: u64, bytes: u64, poison: Pattern) {
        let words = poisoned(self.base + offset, bytes, poison);
        self.segments.push(Segment { offset, bytes, words });
    }

    /// Gives all memory back; the segments keep their addresses.
    pub(super) fn unmap(&mut self) {
        self.mapped = false;
        for segment in &mut self.segments {
            segment.words = Vec::new();
        }
    }

    /// Backs every segment with fresh memory.
    pub(super) fn map(&mut self, poison: Pattern) {
        self.mapped = true;
        for segment in &mut self.segments {
            segment.words = poisoned(self.base + segment.offset, segment.bytes, poison);
        }
    }

    /// No bytes can be read anywhere, as a copy of none can be made anywhere.
    pub(super) fn bytes(&self, offset: u64, bytes: u64) -> Result<&[u8], Unbacked> {
        if bytes == 0 {
            return Ok(&[]);
        }
        let (index, range) = self.locate(offset, bytes)?;
        let all: &[u8] = bytemuck::cast_slice(&self.segments[index].words);
        Ok(&all[range])
    }

    pub(super) fn bytes_mut(&mut self, offset: u64, bytes: u64) -> Result<&mut [u8], Unbacked> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        let (index, range) = self.locate(offset, bytes)?;
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.segments[index].words);
        Ok(&mut all[range])
    }

    /// Fills a range that the allocator knows (whole granules).
    pub(super) fn fill(&mut self, offset: u64, bytes: u64, pattern: Pattern) {
        let base = self.base;
        if let Ok((index, range)) = self.locate(offset, bytes) {
            let words = &mut self.segments[index].words[range.start / 8..range.end / 8];
            pattern.fill(base + offset, words);
        }
    }

    /// The segment that holds the range, and the range within it; else the first offset that is
    /// not backed. The range returned is always within the segment's words.
    fn locate(&self, offset: u64, bytes: u64) -> Result<(usize, std::ops::Range<usize>), Unbacked> {
        let above = self.segments.partition_point(|segment| segment.offset <= offset);
        let index = above.checked_sub(1).ok_or(Unbacked { offset })?;
        let segment = &self.segments[index];
        let backed = (segment.words.len() as u64) * 8;
        let start = offset - segment.offset;
        if start >= backed {
            return Err(Unbacked { offset });
        }
        if bytes > backed - start {
            return Err(Unbacked { offset: segment.offset + backed });
        }
        Ok((index, start as usize..(start + bytes) as usize))
    }
}

fn poisoned(address: u64, bytes: u64, poison: Pattern) -> Vec<u64> {
    let mut words = vec![0; (bytes / 8) as usize];
    poison.fill(address, &mut words);
    words
}
