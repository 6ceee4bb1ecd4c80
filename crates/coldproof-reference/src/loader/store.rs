//! Reading and writing a slot's bytes in its storage.

use coldproof_contract::words::{Address, Fragment, Packing};

use super::layout::{convert, runs};
use super::{Layout, Matrix, Move};
use crate::device::Device;
use crate::ranks::Failure;
use crate::slots::{SlotId, SlotSpec, Slots};

/// The innermost matrices of a slot. A vector is a matrix of one row.
pub(crate) fn matrix_of(spec: &SlotSpec) -> Matrix {
    let columns = spec.shape.last().copied().unwrap_or(1);
    let rows = spec.shape.iter().rev().nth(1).copied().unwrap_or(1);
    Matrix { rows: rows as usize, columns: columns as usize, element: spec.dtype.bytes() as usize }
}

/// How a slot's bytes lie now. Permuted columns are no layout that can be written through.
pub(crate) fn layout_of(slots: &Slots, id: SlotId) -> Layout {
    let slot = &slots[id];
    match slot.spec.packing {
        Packing::Panels { width } if slot.runtime => Layout::Panels(width as usize),
        _ => Layout::Plain,
    }
}

/// All bytes of a slot, in storage order.
pub(crate) fn read_slot(device: &Device, slots: &Slots, id: SlotId) -> Result<Vec<u8>, Failure> {
    let address = slots.address(id)?;
    Ok(device.read(address, slots[id].spec.bytes())?.to_vec())
}

/// Rewrites a slot in place from one order of storage to another.
pub(crate) fn convert_slot(
    device: &mut Device,
    slots: &Slots,
    id: SlotId,
    from: &Layout,
    to: &Layout,
) -> Result<(), Failure> {
    let bytes = read_slot(device, slots, id)?;
    let converted = convert(&bytes, matrix_of(&slots[id].spec), from, to);
    Ok(device.write(slots.address(id)?, &converted)?)
}

/// Writes pieces of a source of `shape` with these `bytes` into a slot whose storage is in
/// `layout`.
pub(crate) fn write_moves(
    device: &mut Device,
    slots: &Slots,
    id: SlotId,
    layout: &Layout,
    moves: &[Move],
    source: (&[u64], &[u8]),
) -> Result<(), Failure> {
    let spec = &slots[id].spec;
    let base = slots.address(id)?;
    for step in moves {
        write_move(device, spec, base, layout, step, source)?;
    }
    Ok(())
}

fn write_move(
    device: &mut Device,
    spec: &SlotSpec,
    base: Address,
    layout: &Layout,
    step: &Move,
    (shape, bytes): (&[u64], &[u8]),
) -> Result<(), Failure> {
    let matrix = matrix_of(spec);
    let source_columns = columns(shape, &step.source);
    let slot_columns = columns(&spec.shape, &step.slot);
    let mut pending = Pending::default();
    for (from, to) in rows(&step.source, shape).into_iter().zip(rows(&step.slot, &spec.shape)) {
        let source_row = (from * source_columns.extent + source_columns.start) * matrix.element;
        let (plane, row) = (to / matrix.rows, to % matrix.rows);
        let range = slot_columns.start..slot_columns.end;
        for (at, run) in runs(layout, matrix, row, range) {
            let skipped = run.start - slot_columns.start;
            let first = source_row + skipped * matrix.element;
            let target = base.plus((plane * matrix.bytes() + at) as u64);
            pending.push(device, bytes, target, first, run.len() * matrix.element)?;
        }
    }
    pending.flush(device, bytes)
}

/// The part of the innermost axis that a fragment takes.
struct Columns {
    extent: usize,
    start: usize,
    end: usize,
}

fn columns(shape: &[u64], fragment: &Fragment) -> Columns {
    let extent = shape.last().copied().unwrap_or(1) as usize;
    let span = fragment.0.last();
    Columns {
        extent,
        start: span.map_or(0, |span| span.start as usize),
        end: span.map_or(1, |span| span.end as usize),
    }
}

/// Indices of a fragment's innermost rows among all rows of its tensor, in row-major order.
fn rows(fragment: &Fragment, shape: &[u64]) -> Vec<usize> {
    let mut rows = vec![0];
    let leading = shape.len().saturating_sub(1);
    for (span, &extent) in fragment.0.iter().zip(shape).take(leading) {
        rows = rows
            .into_iter()
            .flat_map(|row| (span.start..span.end).map(move |i| row * extent as usize + i as usize))
            .collect();
    }
    rows
}

/// Runs that follow one another in the source and in the storage are one write.
#[derive(Default)]
struct Pending {
    target: Address,
    first: usize,
    length: usize,
}

impl Pending {
    fn push(
        &mut self,
        device: &mut Device,
        bytes: &[u8],
        target: Address,
        first: usize,
        length: usize,
    ) -> Result<(), Failure> {
        let follows = self.target.plus(self.length as u64) == target;
        if self.length > 0 && follows && self.first + self.length == first {
            self.length += length;
            return Ok(());
        }
        self.flush(device, bytes)?;
        *self = Self { target, first, length };
        Ok(())
    }

    fn flush(&self, device: &mut Device, bytes: &[u8]) -> Result<(), Failure> {
        if self.length > 0 {
            device.write(self.target, &bytes[self.first..self.first + self.length])?;
        }
        Ok(())
    }
}
