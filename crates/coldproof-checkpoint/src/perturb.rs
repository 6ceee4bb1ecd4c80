//! Checkpoints made from others, deterministically: every element moves, or one element by one ulp.
//!
//! An element moves by about a thousandth of its tensor's scale (the root of its mean square);
//! where that is lost in rounding, by one ulp. Finite elements stay finite; one that is not becomes
//! the largest finite of its sign. Names that share a storage keep one content.

use std::collections::BTreeMap;

use camino::Utf8Path;
use coldproof_contract::digest::content;
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::Dtype;
use half::{bf16, f16};

use crate::arch::TiedSource;
use crate::companions::copy_companions;
use crate::container::{Checkpoint, Layout, TensorRef, write_checkpoint};
use crate::dtype::{Format, for_each, load, neighbours, store};
use crate::error::{CheckpointError, Fault};
use crate::respell::assemble;
use crate::ties::content_name;

/// How far an element moves, as a part of its tensor's scale, times 0.5 to 1.5.
const RELATIVE_STEP: f64 = 1e-3;

/// One element that moved by one ulp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UlpMove {
    /// The tensor.
    pub tensor: String,
    /// The element, row-major.
    pub element: u64,
    /// Its bits before.
    pub before: u64,
    /// Its bits after.
    pub after: u64,
}

/// A checkpoint and the rules that its sources follow.
type Side<'a> = (&'a Checkpoint, &'a [SourceRule]);

/// Writes B: every element of `from`, moved. `out` must not exist or be empty. An alias of `ties`
/// gets its target's bytes.
///
/// # Errors
/// A file that cannot be read or written, or a `from` that changed meanwhile.
pub fn perturb(
    from: &Checkpoint,
    ties: &[TiedSource],
    out: &Utf8Path,
    seed: u64,
) -> Result<(), CheckpointError> {
    write_moved(from, ties, out, |tensor| moved(tensor, tensor.read()?, None, seed))?;
    from.verify_unchanged()
}

/// Writes P in the spelling of `b`: every element of `b`, moved so that it differs from the same
/// element of both `a` and `b`. The two may be spelled differently, each as its rules say, and an
/// alias of `ties` may be in one of them alone.
///
/// # Errors
/// As [`perturb`]; two checkpoints that do not fill the same slots; a tensor of BOOL.
pub fn perturb_apart(
    a: Side<'_>,
    b: Side<'_>,
    ties: &[TiedSource],
    out: &Utf8Path,
    seed: u64,
) -> Result<(), CheckpointError> {
    expect_same_content(a, b, ties)?;
    expect_same_content(b, a, ties)?;
    let rules = by_source(b.1);
    write_moved(b.0, ties, out, |tensor| {
        let twin = match (a.0.get(&tensor.name), rules.get(tensor.name.as_str())) {
            (Some(same), _) => Some(same.read()?),
            (None, Some(rule)) => Some(assemble(a.0, a.1, rule)?),
            // What has neither was refused, or takes the content of its target.
            (None, None) => None,
        };
        moved(tensor, tensor.read()?, twin.as_deref(), seed)
    })?;
    a.0.verify_unchanged()?;
    b.0.verify_unchanged()
}

/// Writes `from` again with one element of one tensor moved by one ulp, and says which. Takes a
/// finite element that is not zero, where there is one. An alias of `ties` follows its target.
///
/// # Errors
/// As [`perturb`]; a checkpoint without elements.
pub fn perturb_ulp(
    from: &Checkpoint,
    ties: &[TiedSource],
    out: &Utf8Path,
    seed: u64,
) -> Result<UlpMove, CheckpointError> {
    let own = |tensor: &&TensorRef| content_name(from, ties, &tensor.name) == tensor.name;
    let movable: Vec<&TensorRef> =
        from.tensors().values().filter(|tensor| tensor.bytes > 0).filter(own).collect();
    let count = movable.len() as u64;
    if count == 0 {
        return Err(CheckpointError::file(from.directory(), Fault::NothingToChange));
    }
    let random = Stream::new(seed, "ulp");
    // The remainder is below the number of tensors.
    let chosen = movable[(random.at(0) % count) as usize];
    let start = random.at(1) % chosen.elements();
    let bytes = chosen.read()?;
    let width = chosen.dtype.bytes() as usize;
    let at = |element: u64| {
        let first = element as usize * width;
        load(&bytes[first..first + width])
    };
    let is_usual = |bits: u64| {
        Format::of(chosen.dtype)
            .is_none_or(|format| format.is_finite(bits) && format.magnitude(bits) != 0)
    };
    let element = (0..chosen.elements())
        .map(|step| (start + step) % chosen.elements())
        .find(|&element| is_usual(at(element)))
        .unwrap_or(start);
    let before = at(element);
    let away = random.at(2) & 1 == 0;
    let after = neighbours(chosen.dtype, before, away).first().copied().unwrap_or(before);
    write_moved(from, ties, out, |tensor| {
        let mut bytes = tensor.read()?;
        if tensor.name == chosen.name
            && let Some(slot) = bytes.chunks_exact_mut(width).nth(element as usize)
        {
            store(after, slot);
        }
        Ok(bytes)
    })?;
    from.verify_unchanged()?;
    Ok(UlpMove { tensor: chosen.name.clone(), element, before, after })
}

/// The bytes of a tensor with every element moved. With `twin`, each also differs from the same
/// element of `twin`.
fn moved(
    tensor: &TensorRef,
    mut bytes: Vec<u8>,
    twin: Option<&[u8]>,
    seed: u64,
) -> Result<Vec<u8>, CheckpointError> {
    let dtype = tensor.dtype;
    if dtype == Dtype::Bool && twin.is_some() {
        let what = "differ from two checkpoints in every element";
        return Err(tensor.fault(Fault::DtypeUnfit { dtype, what }));
    }
    let width = dtype.bytes() as usize;
    let step = RELATIVE_STEP * scale(dtype, &bytes);
    let random = Stream::new(seed, &tensor.name);
    let format = Format::of(dtype);
    let same = |a: u64, b: u64| format.map_or(a == b, |format| format.same_value(a, b));
    for_each(dtype, &mut bytes, |index, bits| {
        let other = twin.and_then(|twin| twin.chunks_exact(width).nth(index as usize)).map(load);
        let is_new = |candidate: u64| {
            !same(candidate, bits) && other.is_none_or(|other| !same(candidate, other))
        };
        let draw = random.at(index);
        // 53 bits to [0.5, 1.5), one bit to the sign.
        let size = 0.5 + (draw >> 11) as f64 / (1_u64 << 53) as f64;
        let sign = if draw & 1 == 0 { 1.0 } else { -1.0 };
        let leap = float(dtype, bits).and_then(|value| pattern(dtype, value + sign * size * step));
        if let Some(candidate) = leap
            && is_new(candidate)
        {
            return candidate;
        }
        let near = neighbours(dtype, bits, draw & 1 == 0);
        // Of three other values, at most one is the twin's.
        near.into_iter().find(|&candidate| is_new(candidate)).unwrap_or(bits)
    });
    Ok(bytes)
}

/// The root of the mean square of the finite elements, summed in order; 1 where all are zero.
fn scale(dtype: Dtype, bytes: &[u8]) -> f64 {
    let (mut sum, mut count) = (0.0, 0_u64);
    for element in bytes.chunks_exact(dtype.bytes() as usize) {
        if let Some(value) = float(dtype, load(element)) {
            sum += value * value;
            count += 1;
        }
    }
    let mean = sum / count.max(1) as f64;
    if mean > 0.0 && mean.is_finite() { libm::sqrt(mean) } else { 1.0 }
}

/// The value of a finite element of 16 bits or more.
fn float(dtype: Dtype, bits: u64) -> Option<f64> {
    let value = match dtype {
        Dtype::F16 => f64::from(f16::from_bits(bits as u16)),
        Dtype::Bf16 => f64::from(bf16::from_bits(bits as u16)),
        Dtype::F32 => f64::from(f32::from_bits(bits as u32)),
        Dtype::F64 => f64::from_bits(bits),
        _ => return None,
    };
    value.is_finite().then_some(value)
}

/// The nearest pattern, if it is finite.
fn pattern(dtype: Dtype, value: f64) -> Option<u64> {
    let bits = match dtype {
        Dtype::F16 => u64::from(f16::from_f64(value).to_bits()),
        Dtype::Bf16 => u64::from(bf16::from_f64(value).to_bits()),
        Dtype::F32 => u64::from((value as f32).to_bits()),
        Dtype::F64 => value.to_bits(),
        _ => return None,
    };
    Format::of(dtype).filter(|format| format.is_finite(bits)).map(|_| bits)
}

/// Every tensor of `here` must have its elements in `there`: under its name, in another spelling of
/// its slot, or, for an alias, under its target's name.
fn expect_same_content(
    here: Side<'_>,
    there: Side<'_>,
    ties: &[TiedSource],
) -> Result<(), CheckpointError> {
    let rules = by_source(here.1);
    for tensor in here.0.tensors().values() {
        let what = match (there.0.get(&tensor.name), rules.get(tensor.name.as_str())) {
            (Some(other), _) if (other.dtype, &other.shape) == (tensor.dtype, &tensor.shape) => {
                continue;
            }
            (Some(other), _) => {
                format!("{} {:?} and {} {:?}", tensor.dtype, tensor.shape, other.dtype, other.shape)
            }
            (None, Some(rule)) if fills(there, rule) => continue,
            (None, None) if content_name(here.0, ties, &tensor.name) != tensor.name => continue,
            (None, _) => format!("`{}` does not hold it", there.0.directory()),
        };
        return Err(tensor.fault(Fault::PairDiffers { what }));
    }
    Ok(())
}

fn by_source(rules: &[SourceRule]) -> BTreeMap<&str, &SourceRule> {
    rules.iter().map(|rule| (rule.source.as_str(), rule)).collect()
}

/// Whether sources of this checkpoint fill the whole slot of `rule`.
fn fills(there: Side<'_>, rule: &SourceRule) -> bool {
    let mut sources = there.1.iter().filter(|other| other.slot == rule.slot).peekable();
    sources.peek().is_some() && sources.all(|other| there.0.get(&other.source).is_some())
}

/// Writes a checkpoint with the files of `from` and other bytes, and its companions. An alias gets
/// what `bytes` makes of its target.
fn write_moved(
    from: &Checkpoint,
    ties: &[TiedSource],
    out: &Utf8Path,
    mut bytes: impl FnMut(&TensorRef) -> Result<Vec<u8>, CheckpointError>,
) -> Result<(), CheckpointError> {
    write_checkpoint(out, &Layout::like(from), |spec| {
        match from.get(content_name(from, ties, &spec.name)) {
            Some(tensor) => bytes(tensor),
            // The layout was made from the same checkpoint.
            None => Ok(Vec::new()),
        }
    })?;
    copy_companions(from.directory(), out)
}

/// A random word for each index, by seed and name (SplitMix64).
#[derive(Clone, Copy)]
struct Stream {
    start: u64,
}

impl Stream {
    fn new(seed: u64, name: &str) -> Self {
        let name = content(name.as_bytes()).0 as u64;
        Self { start: finish(seed) ^ name }
    }

    fn at(self, index: u64) -> u64 {
        finish(self.start.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

const fn finish(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
