//! Sentinel checkpoints: values that together say where they came from.
//!
//! Every element of every source has an identity, counted from 1 over all sources by name. Each of
//! the plan's checkpoints carries one digit of it, as a small integer that the dtype holds exactly;
//! the last carries a check digit. An engine that loads all of them, one after another, shows for
//! each element of each slot the digits of its origin; memory that was never written shows a value
//! that is no digit, or digits that do not check.

use camino::Utf8Path;
use coldproof_contract::words::Dtype;

use crate::arch::TiedSource;
use crate::companions::copy_companions;
use crate::container::{Checkpoint, Layout, TensorSpec, bytes_of, prepare, write_checkpoint};
use crate::dtype::{Format, for_each, load};
use crate::error::{CheckpointError, Fault};
use crate::ties::content_name;

/// Where an element came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Index of the source in [`SentinelPlan::sources`].
    pub source: usize,
    /// The element of the source, row-major.
    pub element: u64,
}

/// Identities of all elements, and how they are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelPlan {
    sources: Vec<TensorSpec>,
    /// The identity of each source's first element; ascending.
    firsts: Vec<u64>,
    /// One past the last identity.
    end: u64,
    /// Values of a digit.
    base: u64,
    /// Checkpoints, the check digit's included.
    digits: usize,
}

impl SentinelPlan {
    /// The plan for the sources of a checkpoint.
    ///
    /// # Errors
    /// More elements than identities, or no elements at all.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        let specs = checkpoint.tensors().values().map(TensorSpec::from).collect();
        Self::new(specs).map_err(|fault| CheckpointError::file(checkpoint.directory(), fault))
    }

    /// The plan for these sources, whatever their order.
    ///
    /// # Errors
    /// More elements than identities, or no elements at all.
    pub fn new(mut sources: Vec<TensorSpec>) -> Result<Self, Fault> {
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        let base = sources.iter().map(|source| digit_values(source.dtype)).min().unwrap_or(256);
        let mut firsts = Vec::with_capacity(sources.len());
        let mut end = 1_u64;
        for source in &sources {
            firsts.push(end);
            end = bytes_of(source.dtype, &source.shape)
                .and_then(|bytes| end.checked_add(bytes / source.dtype.bytes()))
                .ok_or(Fault::TooManyElements)?;
        }
        if end == 1 {
            return Err(Fault::NothingToChange);
        }
        let digits = (end - 1).ilog(base) as usize + 2;
        Ok(Self { sources, firsts, end, base, digits })
    }

    /// How many checkpoints there are.
    #[must_use]
    pub const fn digits(&self) -> usize {
        self.digits
    }

    /// Values of a digit: 256, or what the narrowest dtype of the sources holds.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The sources, by name.
    #[must_use]
    pub fn sources(&self) -> &[TensorSpec] {
        &self.sources
    }

    /// The identity of a source's first element.
    #[must_use]
    pub fn base_of(&self, source: usize) -> Option<u64> {
        self.firsts.get(source).copied()
    }

    /// The index of a source.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.sources.binary_search_by(|source| source.name.as_str().cmp(name)).ok()
    }

    /// The bytes of a source in checkpoint number `digit`; nothing where there is no such source or
    /// checkpoint.
    #[must_use]
    pub fn tensor(&self, source: usize, digit: usize) -> Option<Vec<u8>> {
        let (spec, first) = (self.sources.get(source)?, self.base_of(source)?);
        if digit >= self.digits {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(bytes_of(spec.dtype, &spec.shape)?).ok()?];
        for_each(spec.dtype, &mut bytes, |element, _| {
            pattern(spec.dtype, self.digit(first + element, digit))
        });
        Some(bytes)
    }

    /// The origin that digits stand for, one of each checkpoint in order; nothing for digits that
    /// no element has.
    #[must_use]
    pub fn decode(&self, digits: &[u8]) -> Option<Origin> {
        let (&check, payload) = digits.split_last()?;
        if digits.len() != self.digits {
            return None;
        }
        let identity = payload.iter().rev().try_fold(0_u64, |identity, &digit| {
            identity.checked_mul(self.base)?.checked_add(u64::from(digit))
        })?;
        let known = (1..self.end).contains(&identity) && self.check(identity) == u64::from(check);
        // Equal firsts are those of empty sources before the one that has the element.
        let source = self.firsts.partition_point(|&first| first <= identity).checked_sub(1)?;
        known.then(|| Origin { source, element: identity - self.firsts[source] })
    }

    /// The origins of a slot's elements: `loads` holds the slot's bytes after each checkpoint was
    /// loaded, in order, all in one element order.
    #[must_use]
    pub fn decode_slot<B: AsRef<[u8]>>(&self, dtype: Dtype, loads: &[B]) -> Vec<Option<Origin>> {
        let width = dtype.bytes() as usize;
        let mut columns: Vec<_> =
            loads.iter().map(|load| load.as_ref().chunks_exact(width)).collect();
        let count = columns.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let mut digits = Vec::with_capacity(loads.len());
        let mut one = || {
            digits.clear();
            for column in &mut columns {
                digits.push(column.next().and_then(|element| digit_of(dtype, element)));
            }
            let known: Option<Vec<u8>> = digits.iter().copied().collect();
            known.and_then(|digits| self.decode(&digits))
        };
        (0..count).map(|_| one()).collect()
    }

    /// Writes the checkpoints to `out/0`, `out/1`, …, each with the files of `from`. An alias of
    /// `ties` carries its target's digits, since both fill one storage; its own identities are in
    /// no checkpoint.
    ///
    /// # Errors
    /// A file that cannot be read or written, or an `out` that holds something.
    pub fn write(
        &self,
        from: &Checkpoint,
        ties: &[TiedSource],
        out: &Utf8Path,
    ) -> Result<(), CheckpointError> {
        // Digits left from another plan would decode to nothing, or worse.
        prepare(out)?;
        for digit in 0..self.digits {
            let directory = out.join(digit.to_string());
            write_checkpoint(&directory, &Layout::like(from), |spec| {
                let source = self.index_of(content_name(from, ties, &spec.name));
                source.and_then(|source| self.tensor(source, digit)).ok_or_else(|| {
                    let what = "the plan has no such source".to_owned();
                    let fault = Fault::PairDiffers { what };
                    CheckpointError::tensor(from.directory(), &spec.name, fault)
                })
            })?;
            copy_companions(from.directory(), &directory)?;
        }
        Ok(())
    }

    fn digit(&self, identity: u64, digit: usize) -> u64 {
        if digit + 1 == self.digits {
            return self.check(identity);
        }
        // At most 63 digits, and the power does not exceed the largest identity.
        identity / self.base.pow(digit as u32) % self.base
    }

    /// The check digit: a hash, so that shifted, torn and constant digits rarely check.
    const fn check(&self, identity: u64) -> u64 {
        let mut word = identity.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (word ^ (word >> 32)) % self.base
    }
}

/// How many integers from 0 on the dtype holds exactly, at most 256.
const fn digit_values(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::Bool => 2,
        Dtype::I8 => 128,
        Dtype::F8E5M2 => 8,
        Dtype::F8E4M3 => 16,
        // Powers of two: the exponent itself, without the pattern that is no number.
        Dtype::F8E8M0 => 255,
        _ => 256,
    }
}

/// The pattern of a digit.
const fn pattern(dtype: Dtype, digit: u64) -> u64 {
    match (dtype, Format::of(dtype)) {
        (Dtype::F8E8M0, _) | (_, None) => digit,
        (_, Some(format)) => format.integer(digit),
    }
}

/// The digit that an element is, by its exact bits; negative zero is none.
#[must_use]
pub fn digit_of(dtype: Dtype, element: &[u8]) -> Option<u8> {
    let bits = load(element);
    let digit = match (dtype, Format::of(dtype)) {
        (Dtype::F8E8M0, _) | (_, None) => bits,
        (_, Some(_)) if bits == 0 => 0,
        (_, Some(format)) => {
            let exponent = (bits >> format.mantissa).checked_sub(format.bias)?;
            if exponent > 7 {
                return None;
            }
            let fraction = bits & ((1 << format.mantissa) - 1);
            (1 << exponent) | (fraction << exponent >> format.mantissa)
        }
    };
    let exact = digit < digit_values(dtype) && pattern(dtype, digit) == bits;
    u8::try_from(digit).ok().filter(|_| exact)
}
