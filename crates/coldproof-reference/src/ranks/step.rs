//! One forward on one rank: eager, captured, or replayed; of the model or of what drafts for it.

use std::sync::Arc;

use coldproof_contract::evidence::{NodeFact, RequestStage};
use coldproof_contract::words::Address;

use super::{Failure, Worker};
use crate::caches::Pixels;
use crate::device::Device;
use crate::graph::Graph;
use crate::kernels::Tables;
use crate::layers::{Batch, Forward, Placed};
use crate::models::{Decoder, Dims, Drafter, Outputs};

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
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Whether logits of the last row alone are wanted.
    pub(crate) last_row_alone: bool,
    /// The adapter of all of them.
    pub(crate) adapter: Option<String>,
    /// Images of the rows.
    pub(crate) images: Vec<StepImage>,
    /// The model's hidden rows that drafts are computed from, one a row.
    pub(crate) hidden: Vec<Vec<f32>>,
}

/// What a forward computed, on the last pipeline stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Computed {
    /// Logits of all rows, or of the last one.
    pub(crate) logits: Vec<Vec<f32>>,
    /// Hidden rows, where drafts are computed from them.
    pub(crate) hidden: Vec<Vec<f32>>,
}

/// A captured graph with the places of its inputs and outputs.
#[derive(Debug)]
pub(crate) struct Captured {
    graph: Graph,
    batch: Batch,
    /// Of a draft.
    hidden: Option<Address>,
    /// On the last pipeline stage.
    outputs: Option<Outputs>,
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

    /// Launches every kernel. Nothing comes of a pipeline stage that is not the last.
    pub(crate) fn run_eager(&mut self, step: &Step) -> Result<Computed, Failure> {
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
        let mut forward = self.forward(None, rows, layout, step.adapter.as_deref())?;
        write_inputs(forward.device, &forward.batch, step)?;
        forward.placed = placed(&decoder, &forward, &step.images)?;
        let outputs = decoder.forward(&mut forward, step.last_row_alone)?;
        let wanted = if step.last_row_alone { 1 } else { rows };
        let found = computed(forward.device, forward.dims, outputs, (wanted, rows))?;
        forward.release(0)?;
        Ok(found)
    }

    /// Drafts the token after the last row of one sequence, by replay where the step has one row
    /// and `replayed` says so. Nothing comes of a rank that does not draft.
    pub(crate) fn draft(&mut self, step: &Step, replayed: bool) -> Result<Computed, Failure> {
        let decoder = Arc::clone(&self.decoder);
        let Some(drafter) = decoder.drafter() else { return Ok(Computed::default()) };
        self.device.set_request(&step.request);
        self.device.set_stage(Some(RequestStage::Draft));
        let replays = replayed && step.ids.len() == 1;
        let graph = replays.then(|| self.draft_graph.take()).flatten();
        let drafted = match graph {
            Some(graph) => {
                let replayed = self.replay_captured(&graph, step);
                self.draft_graph = Some(graph);
                replayed
            }
            None => self.draft_eagerly(drafter, step),
        };
        self.device.set_stage(None);
        drafted
    }

    fn draft_eagerly(&mut self, drafter: &Drafter, step: &Step) -> Result<Computed, Failure> {
        let (mut forward, hidden) = self.draft_forward(drafter, step.ids.len(), Tables::Shared)?;
        write_inputs(forward.device, &forward.batch, step)?;
        write_rows(forward.device, hidden, &step.hidden)?;
        let logits = drafter.forward(&mut forward, hidden.unwrap_or(Address(0)))?;
        let outputs = logits.map(|logits| Outputs { logits, hidden: None });
        let found = computed(forward.device, forward.dims, outputs, (1, 0))?;
        forward.release(0)?;
        Ok(found)
    }

    /// A pass of what drafts, with the place of the hidden rows that it reads.
    fn draft_forward<'a>(
        &'a mut self,
        drafter: &'a Drafter,
        rows: usize,
        layout: Tables,
    ) -> Result<(Forward<'a>, Option<Address>), Failure> {
        let mut forward = self.forward(drafter.dims(), rows, layout, None)?;
        let width = forward.dims.hidden as usize;
        let hidden = match drafter.reads_hidden() {
            true => Some(forward.buffer(rows, width, "input.hidden")?),
            false => None,
        };
        Ok((forward, hidden))
    }

    /// Records the graph `draft-1`, where this rank drafts.
    pub(crate) fn capture_draft(&mut self) -> Result<(), Failure> {
        let decoder = Arc::clone(&self.decoder);
        let Some(drafter) = decoder.drafter() else { return Ok(()) };
        self.device.begin_capture("draft-1")?;
        let (mut forward, hidden) = self.draft_forward(drafter, 1, Tables::PerRow)?;
        let recorded = drafter.forward(&mut forward, hidden.unwrap_or(Address(0)));
        let batch = forward.batch;
        let graph = self.device.end_capture()?;
        let outputs = recorded?.map(|logits| Outputs { logits, hidden: None });
        self.draft_graph = Some(Captured { graph, batch, hidden, outputs });
        Ok(())
    }

    /// Records a graph of `rows` rows, named `decode-{rows}`.
    pub(crate) fn capture(&mut self, rows: usize) -> Result<(), Failure> {
        self.device.begin_capture(&format!("decode-{rows}"))?;
        let decoder = Arc::clone(&self.decoder);
        let mut forward = self.forward(None, rows, Tables::PerRow, None)?;
        let recorded = decoder.forward(&mut forward, false);
        let batch = forward.batch;
        let graph = self.device.end_capture()?;
        let outputs = recorded?;
        self.graphs.push(Captured { graph, batch, hidden: None, outputs });
        Ok(())
    }

    /// Every captured graph.
    fn captured(&self) -> impl Iterator<Item = &Captured> {
        self.graphs.iter().chain(&self.draft_graph)
    }

    /// Every node of every captured graph, as it is now.
    pub(crate) fn census(&self) -> Vec<NodeFact> {
        self.captured().flat_map(|captured| captured.graph.census()).collect()
    }

    /// Replays the smallest graph that holds the step's rows.
    pub(crate) fn replay(&mut self, step: &Step) -> Result<Computed, Failure> {
        self.device.set_request(&step.request);
        let rows = step.ids.len();
        let graphs = std::mem::take(&mut self.graphs);
        let fitting = graphs.iter().filter(|captured| captured.rows() >= rows);
        let computed = match fitting.min_by_key(|captured| captured.rows()) {
            Some(captured) => self.replay_captured(captured, step),
            None => Err(Failure::Refused(format!("no captured graph has {rows} rows"))),
        };
        self.graphs = graphs;
        computed
    }

    fn replay_captured(&mut self, captured: &Captured, step: &Step) -> Result<Computed, Failure> {
        let rows = step.ids.len();
        write_inputs(&mut self.device, &captured.batch, &padded(step, captured.batch))?;
        write_rows(&mut self.device, captured.hidden, &step.hidden)?;
        self.device.replay(&captured.graph)?;
        computed(&self.device, &self.dims, captured.outputs, (rows, rows))
    }

    /// Replays a graph on whatever its inputs hold, in whatever state the engine is.
    pub(crate) fn replay_as_is(&mut self, name: &str) -> Result<(), Failure> {
        self.device.set_request("probe");
        let unknown = || Failure::Refused(format!("no graph `{name}` was captured"));
        let named = self.graphs.iter().chain(&self.draft_graph);
        let named = named.into_iter().find(|captured| captured.graph.name == name);
        Ok(self.device.replay(&named.ok_or_else(unknown)?.graph)?)
    }

    /// Computes the rows of an image that nothing has.
    fn encode(&mut self, image: &StepImage) -> Result<(), Failure> {
        let Some(pixels) = &image.pixels else { return Ok(()) };
        let decoder = Arc::clone(&self.decoder);
        let Some(vision) = decoder.vision() else { return Ok(()) };
        let mut forward = self.pass(None, 0, Tables::Shared, None)?;
        let address = forward.buffer(pixels.len(), 1, "input.pixels")?;
        forward.device.write(address, bytemuck::cast_slice(pixels))?;
        vision.encode(&mut forward, address, image.entry)?;
        forward.release(0)
    }

    /// A pass that has no inputs yet, through a model of these dimensions or of this rank's own.
    fn pass<'a>(
        &'a mut self,
        dims: Option<&'a Dims>,
        rows: usize,
        layout: Tables,
        adapter: Option<&str>,
    ) -> Result<Forward<'a>, Failure> {
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
            dims: dims.unwrap_or(&self.dims),
            shard: self.shard,
            kv: self.kv,
            batch,
            adapter: adapter.map(|name| self.adapters.in_use(name)).transpose()?,
            placed: Vec::new(),
            taken: Vec::new(),
        })
    }

    fn forward<'a>(
        &'a mut self,
        dims: Option<&'a Dims>,
        rows: usize,
        layout: Tables,
        adapter: Option<&str>,
    ) -> Result<Forward<'a>, Failure> {
        let max_blocks = self.max_blocks();
        let mut forward = self.pass(dims, rows, layout, adapter)?;
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

/// Writes F32 rows where a graph or a pass reads some.
fn write_rows(device: &mut Device, at: Option<Address>, rows: &[Vec<f32>]) -> Result<(), Failure> {
    let Some(at) = at else { return Ok(()) };
    Ok(device.write(at, bytemuck::cast_slice(&rows.concat()))?)
}

/// Reads rows of logits, and of hidden rows where there are some.
fn computed(
    device: &Device,
    dims: &Dims,
    outputs: Option<Outputs>,
    (logit_rows, hidden_rows): (usize, usize),
) -> Result<Computed, Failure> {
    let Some(Outputs { logits, hidden }) = outputs else { return Ok(Computed::default()) };
    let read = |at: Address, rows: usize, width: u64| -> Result<Vec<Vec<f32>>, Failure> {
        let width = width as usize;
        let values = device.view::<f32>(at, rows * width)?;
        Ok(values.chunks_exact(width).map(<[f32]>::to_vec).collect())
    };
    Ok(Computed {
        logits: read(logits, logit_rows, dims.vocabulary)?,
        hidden: hidden.map_or(Ok(Vec::new()), |at| read(at, hidden_rows, dims.hidden))?,
    })
}
