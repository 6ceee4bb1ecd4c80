//! One forward on one rank: eager, captured, or replayed.

use std::sync::Arc;

use coldproof_contract::evidence::{NodeFact, RequestStage};
use coldproof_contract::words::Address;

use super::{Failure, Worker};
use crate::caches::Pixels;
use crate::device::Device;
use crate::graph::Graph;
use crate::kernels::Tables;
use crate::layers::{Batch, Forward, Placed};
use crate::models::Decoder;

/// Bytes of an F32.
const WORD_BYTES: u64 = 4;
/// The position of a row that is padding.
const PADDING_POSITION: i32 = -1;

/// An image whose rows a prefill places.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepImage {
    /// Its prepared pixels, where the encoder must compute its rows.
    pub(crate) pixels: Option<Pixels>,
    /// Where its rows lie in the encoder's cache.
    pub(crate) entry: u32,
    /// The first of them that is placed.
    pub(crate) first: usize,
    /// The first row of the batch that they take.
    pub(crate) row: usize,
    /// How many are placed.
    pub(crate) rows: usize,
}

/// What a forward computes on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// The request that it runs for.
    pub(crate) request: String,
    /// Token ids, one a row.
    pub(crate) ids: Vec<i32>,
    /// Positions, one a row.
    pub(crate) positions: Vec<i32>,
    /// Block tables: one a row, or one for all rows.
    pub(crate) tables: Vec<Vec<i32>>,
    /// Whether all rows are of one sequence.
    pub(crate) one_sequence: bool,
    /// The adapter of all of them.
    pub(crate) adapter: Option<String>,
    /// Images of the rows.
    pub(crate) images: Vec<StepImage>,
}

/// A captured graph with the places of its inputs and outputs.
#[derive(Debug)]
pub(crate) struct Captured {
    graph: Graph,
    batch: Batch,
    /// On the last pipeline stage.
    logits: Option<Address>,
}

impl Captured {
    /// Rows that it computes.
    pub(crate) const fn rows(&self) -> usize {
        self.batch.rows
    }
}

impl Worker {
    /// Entries of a block table.
    fn max_blocks(&self) -> usize {
        self.dims.max_positions.div_ceil(self.kv.block_size).min(self.kv.blocks) as usize
    }

    /// Launches every kernel. Logits of all rows, or of the last one where the rows are one
    /// sequence; none on a pipeline stage that is not the last.
    pub(crate) fn run_eager(&mut self, step: &Step) -> Result<Vec<Vec<f32>>, Failure> {
        self.device.set_request(&step.request);
        for image in &step.images {
            self.device.set_stage(Some(RequestStage::Encoder));
            let encoded = self.encode(image);
            self.device.set_stage(None);
            encoded?;
        }
        let rows = step.ids.len();
        let layout = if step.one_sequence { Tables::Shared } else { Tables::PerRow };
        let decoder = Arc::clone(&self.decoder);
        let mut forward = self.forward(rows, layout, step.adapter.as_deref())?;
        write_inputs(forward.device, &forward.batch, step)?;
        forward.placed = placed(&decoder, &forward, &step.images)?;
        let logits = decoder.forward(&mut forward, step.one_sequence)?;
        let wanted = if step.one_sequence { 1 } else { rows };
        let found = read_logits(&forward, logits, wanted)?;
        forward.release(0)?;
        Ok(found)
    }

    /// Records a graph of `rows` rows, named `decode-{rows}`.
    pub(crate) fn capture(&mut self, rows: usize) -> Result<(), Failure> {
        self.device.begin_capture(&format!("decode-{rows}"))?;
        let decoder = Arc::clone(&self.decoder);
        let mut forward = self.forward(rows, Tables::PerRow, None)?;
        let recorded = decoder.forward(&mut forward, false);
        let batch = forward.batch;
        let graph = self.device.end_capture()?;
        let logits = recorded?;
        self.graphs.push(Captured { graph, batch, logits });
        Ok(())
    }

    /// Every node of every captured graph, as it is now.
    pub(crate) fn census(&self) -> Vec<NodeFact> {
        self.graphs.iter().flat_map(|captured| captured.graph.census()).collect()
    }

    /// Replays the smallest graph that holds the step's rows.
    pub(crate) fn replay(&mut self, step: &Step) -> Result<Vec<Vec<f32>>, Failure> {
        self.device.set_request(&step.request);
        let rows = step.ids.len();
        let fitting = self.graphs.iter().filter(|captured| captured.rows() >= rows);
        let Some(captured) = fitting.min_by_key(|captured| captured.rows()) else {
            return Err(Failure::Refused(format!("no captured graph has {rows} rows")));
        };
        write_inputs(&mut self.device, &captured.batch, &padded(step, captured.batch))?;
        self.device.replay(&captured.graph)?;
        let width = self.dims.vocabulary as usize;
        let Some(logits) = captured.logits else { return Ok(Vec::new()) };
        let logits = self.device.view::<f32>(logits, rows * width)?;
        Ok(logits.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// Replays a graph on whatever its inputs hold, in whatever state the engine is.
    pub(crate) fn replay_as_is(&mut self, name: &str) -> Result<(), Failure> {
        self.device.set_request("probe");
        let unknown = || Failure::Refused(format!("no graph `{name}` was captured"));
        let named = self.graphs.iter().find(|captured| captured.graph.name == name);
        Ok(self.device.replay(&named.ok_or_else(unknown)?.graph)?)
    }

    /// Computes the rows of an image that nothing has.
    fn encode(&mut self, image: &StepImage) -> Result<(), Failure> {
        let Some(pixels) = &image.pixels else { return Ok(()) };
        let decoder = Arc::clone(&self.decoder);
        let Some(vision) = decoder.vision() else { return Ok(()) };
        let mut forward = self.pass(0, Tables::Shared, None)?;
        let address = forward.buffer(pixels.len(), 1, "input.pixels")?;
        forward.device.write(address, bytemuck::cast_slice(pixels))?;
        vision.encode(&mut forward, address, image.entry)?;
        forward.release(0)
    }

    /// A pass that has no inputs yet.
    fn pass(
        &mut self,
        rows: usize,
        layout: Tables,
        adapter: Option<&str>,
    ) -> Result<Forward<'_>, Failure> {
        let max_blocks = self.max_blocks();
        let batch = Batch {
            rows,
            ids: Address(0),
            positions: Address(0),
            tables: Address(0),
            layout,
            max_blocks,
        };
        Ok(Forward {
            device: &mut self.device,
            slots: &self.slots,
            dims: &self.dims,
            shard: self.shard,
            kv: self.kv,
            batch,
            adapter: adapter.map(|name| self.adapters.in_use(name)).transpose()?,
            placed: Vec::new(),
            taken: Vec::new(),
        })
    }

    fn forward(
        &mut self,
        rows: usize,
        layout: Tables,
        adapter: Option<&str>,
    ) -> Result<Forward<'_>, Failure> {
        let max_blocks = self.max_blocks();
        let mut forward = self.pass(rows, layout, adapter)?;
        forward.batch.ids = forward.buffer(rows, 1, "input.ids")?;
        forward.batch.positions = forward.buffer(rows, 1, "input.positions")?;
        let tables = if layout == Tables::Shared { 1 } else { rows };
        forward.batch.tables = forward.buffer(tables, max_blocks, "input.block_tables")?;
        Ok(forward)
    }
}

/// Where the rows of a step's images lie.
fn placed(
    decoder: &Decoder,
    forward: &Forward<'_>,
    images: &[StepImage],
) -> Result<Vec<Placed>, Failure> {
    let Some(vision) = decoder.vision() else { return Ok(Vec::new()) };
    let width = forward.dims.hidden * WORD_BYTES;
    let one = |image: &StepImage| {
        let source = vision.entry(forward, image.entry)?.plus(image.first as u64 * width);
        Ok(Placed { source, row: image.row, rows: image.rows })
    };
    images.iter().map(one).collect()
}

/// The same step with padding rows up to a graph's rows.
fn padded(step: &Step, batch: Batch) -> Step {
    let mut padded = step.clone();
    padded.ids.resize(batch.rows, 0);
    padded.positions.resize(batch.rows, PADDING_POSITION);
    padded.tables.resize(batch.rows, Vec::new());
    padded
}

fn write_inputs(device: &mut Device, batch: &Batch, step: &Step) -> Result<(), Failure> {
    device.write(batch.ids, bytemuck::cast_slice(&step.ids))?;
    device.write(batch.positions, bytemuck::cast_slice(&step.positions))?;
    let mut tables = Vec::with_capacity(step.tables.len() * batch.max_blocks);
    for table in &step.tables {
        let end = tables.len() + batch.max_blocks;
        tables.extend(table.iter().take(batch.max_blocks));
        tables.resize(end, 0);
    }
    Ok(device.write(batch.tables, bytemuck::cast_slice(&tables))?)
}

fn read_logits(
    forward: &Forward<'_>,
    logits: Option<Address>,
    rows: usize,
) -> Result<Vec<Vec<f32>>, Failure> {
    let Some(logits) = logits else { return Ok(Vec::new()) };
    let width = forward.dims.vocabulary as usize;
    let values = forward.device.view::<f32>(logits, rows * width)?;
    Ok(values.chunks_exact(width).map(<[f32]>::to_vec).collect())
}
