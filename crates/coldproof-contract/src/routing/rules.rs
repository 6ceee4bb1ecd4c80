//! Where every element of a source belongs, on every rank.

use serde::{Deserialize, Serialize};

use super::{PlacementError, Stage, factor};
use crate::words::{
    Dtype, ExpertPlace, ExpertPlacement, Factor, Fragment, Rank, SlotName, Span, Topology,
};

/// Which part of a fused qkv projection a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadRole {
    /// Query heads.
    Q,
    /// Key heads.
    K,
    /// Value heads.
    V,
}

/// Which half of a fused gate-and-up projection a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// Gate, the first half.
    Gate,
    /// Up, the second half.
    Up,
}

/// How a source is cut over tensor-parallel ranks and fused into its slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Sharding {
    /// All of it on every rank.
    Replicated,
    /// All of it on one rank of each replica: what that rank stores of a slot.
    OneRank {
        /// The rank in the first replica.
        rank: Rank,
    },
    /// All of it on every rank, from row `first` on of a slot that stacks several sources.
    Stacked {
        /// Its first row in the slot.
        first: u64,
        /// Rows of the slot.
        rows: u64,
    },
    /// Output rows cut into equal parts (column-parallel layer): the first axis.
    Column,
    /// Input columns cut into equal parts (row-parallel layer): the last axis.
    Row,
    /// Rows of the vocabulary, padded to a multiple of `multiple` x tp, cut into equal parts.
    Vocabulary {
        /// Rows are padded to a multiple of this for each rank.
        multiple: u64,
    },
    /// Rows of one part of a fused qkv slot, cut by heads. With fewer kv heads than ranks, a kv
    /// head is replicated on consecutive ranks.
    Heads {
        /// Which part.
        role: HeadRole,
        /// Query heads of the model.
        heads: u64,
        /// Key-value heads of the model.
        kv_heads: u64,
        /// Rows of a head.
        head_dim: u64,
    },
    /// One half of a fused gate-and-up slot, rows cut into equal parts.
    GateUp {
        /// Which half.
        half: Half,
    },
    /// One expert's half of a stacked `[experts, 2 x rows, columns]` slot.
    ExpertGateUp {
        /// Which expert.
        expert: u64,
        /// Experts of the model.
        experts: u64,
        /// Which half.
        half: Half,
    },
    /// One expert of a stacked `[experts, rows, columns]` slot, columns cut into equal parts.
    ExpertRow {
        /// Which expert.
        expert: u64,
        /// Experts of the model.
        experts: u64,
    },
    /// A fused source `[experts, 2 x rows, columns]`: gate rows, then up rows, of every expert.
    FusedExpertsGateUp,
    /// A fused source `[experts, rows, columns]` whose last axis is cut.
    FusedExpertsRow,
    /// A fused source `[experts, inputs, outputs]` whose middle axis is cut.
    FusedExpertsInputs,
    /// A fused source `[experts, ..]` of which every tensor-parallel rank holds its experts whole.
    FusedExperts,
    /// As `cut` where the ranks divide these heads, else all of it on every rank: an encoder that
    /// cannot be cut is run whole by each.
    Encoder {
        /// Heads of the encoder.
        heads: u64,
        /// How it is cut.
        cut: Box<Sharding>,
    },
    /// Rows of several sections one after another, as in the source so in the slot, each cut by
    /// itself.
    Sections {
        /// The sections, in order; together they are all rows.
        sections: Vec<Section>,
    },
    /// One factor of an adapter of a module: A has the columns that a rank holds of the module's
    /// weight, B the rows, and a stack of experts one of each for every expert of the rank. What
    /// the adapter has no factors for holds zero.
    Factor {
        /// Which.
        factor: Factor,
        /// Rows and columns of the module's weight.
        weight: [u64; 2],
        /// How that weight is cut.
        of: Box<Sharding>,
    },
}

/// Rows of one section of a projection that does several things at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Section {
    /// Rows of the source.
    pub rows: u64,
    /// Equal parts that are never cut themselves: heads, or groups of heads. A single one is on
    /// every rank.
    pub units: u64,
}

/// Where the catalogue expects a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRule {
    /// The checkpoint tensor.
    pub source: String,
    /// Element type in the checkpoint.
    pub dtype: Dtype,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// The slot it belongs to.
    pub slot: SlotName,
    /// How it is cut and fused.
    pub sharding: Sharding,
    /// Which pipeline stages hold it.
    #[serde(default, skip_serializing_if = "Stage::is_everywhere")]
    pub stage: Stage,
}

/// One piece: these elements of the source are those logical elements of the slot, both row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Elements of the source.
    pub source_fragment: Fragment,
    /// Logical elements of the slot. May have one more axis (the expert) than the source.
    pub slot_fragment: Fragment,
}

impl Piece {
    /// Elements that are consecutive in a row of the source and in one of the slot, in slot order,
    /// as (first element of the source, first element of the slot, elements). Nothing where a
    /// fragment is beyond its shape.
    #[must_use]
    pub fn runs(&self, source_shape: &[u64], slot_shape: &[u64]) -> Vec<(u64, u64, u64)> {
        let mut rows = Vec::new();
        self.source_fragment.for_each_row(source_shape, |start, length| rows.push((start, length)));
        let mut rows = rows.into_iter();
        let mut open = rows.next();
        let mut runs = Vec::new();
        self.slot_fragment.for_each_row(slot_shape, |mut slot, mut left| {
            while let (Some((element, available)), true) = (open, left > 0) {
                let length = available.min(left);
                runs.push((element, slot, length));
                slot += length;
                left -= length;
                open = if available > length {
                    Some((element + length, available - length))
                } else {
                    rows.next()
                };
            }
        });
        runs
    }
}

impl SourceRule {
    /// The pieces of this source that belong on `rank`, in source order, and the logical shape of
    /// the slot there (padding included), with consecutive experts on each rank. A rank that holds
    /// none of the source has no pieces. Which ranks have the slot by this rule is not asked: see
    /// [`SourceRule::is_on`].
    ///
    /// # Errors
    /// A rank outside the topology, an axis that cannot be cut, or a shape that does not fit the
    /// rule.
    pub fn pieces(
        &self,
        topology: Topology,
        rank: Rank,
    ) -> Result<(Vec<Piece>, Vec<u64>), PlacementError> {
        self.pieces_of(topology, rank, None)
    }

    /// The same with experts as they were placed.
    pub(super) fn pieces_of(
        &self,
        topology: Topology,
        rank: Rank,
        experts: Option<&ExpertPlacement>,
    ) -> Result<(Vec<Piece>, Vec<u64>), PlacementError> {
        if !topology.contains(rank) {
            return Err(PlacementError::Rank { rank, topology });
        }
        let cut = Cut {
            rule: self,
            parts: u64::from(topology.tp),
            part: u64::from(rank.tp),
            expert_parts: u64::from(topology.ep),
            expert_part: u64::from(rank.ep),
            placed: experts.and_then(|experts| experts.layer(self.slot.owner())),
        };
        cut.check_size(&self.shape)?;
        let (pieces, shape) = cut.place()?;
        cut.check_size(&shape)?;
        Ok((pieces, shape))
    }

    /// Experts of the model, where the slot is a stack of some of them.
    #[must_use]
    pub fn experts(&self) -> Option<u64> {
        match self.sharding {
            Sharding::ExpertGateUp { experts, .. } | Sharding::ExpertRow { experts, .. } => {
                Some(experts)
            }
            _ => Some(self.fused_experts()).filter(|experts| *experts > 0),
        }
    }

    /// Experts that the source holds, where it holds all of a layer's.
    pub(super) fn fused_experts(&self) -> u64 {
        match self.sharding {
            Sharding::FusedExpertsGateUp
            | Sharding::FusedExpertsRow
            | Sharding::FusedExpertsInputs
            | Sharding::FusedExperts => self.shape.first().copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether a rank has the slot by this rule.
    #[must_use]
    pub fn is_on(&self, topology: Topology, rank: Rank) -> bool {
        self.own_rank().is_none_or(|own| own == rank.in_replica())
            && self.stage.is_on(rank.pp, topology.pp)
    }

    /// The one rank, in the first replica, that the source is for, if it is for one.
    #[must_use]
    pub const fn own_rank(&self) -> Option<Rank> {
        match self.sharding {
            Sharding::OneRank { rank } => Some(rank),
            _ => None,
        }
    }

    /// Whether the slot may hold elements that no source fills (they hold zero).
    #[must_use]
    pub const fn pads(&self) -> bool {
        matches!(self.sharding, Sharding::Vocabulary { .. } | Sharding::Factor { .. })
    }
}

/// One source, cut into `parts`, of which `part` is asked for.
#[derive(Clone, Copy)]
pub(super) struct Cut<'a> {
    pub(super) rule: &'a SourceRule,
    pub(super) parts: u64,
    pub(super) part: u64,
    /// The same for experts.
    pub(super) expert_parts: u64,
    pub(super) expert_part: u64,
    /// Where each expert is, where they are not consecutive.
    pub(super) placed: Option<&'a [ExpertPlace]>,
}

pub(super) type Placed = Result<(Vec<Piece>, Vec<u64>), PlacementError>;

impl Cut<'_> {
    fn shape(&self) -> &[u64] {
        &self.rule.shape
    }

    pub(super) fn place(&self) -> Placed {
        self.place_as(&self.rule.sharding)
    }

    fn place_as(&self, sharding: &Sharding) -> Placed {
        match *sharding {
            Sharding::Replicated | Sharding::OneRank { .. } => self.replicated(),
            Sharding::Stacked { first, rows } => self.stacked(first, rows),
            Sharding::Column => self.along(0),
            Sharding::Row => self.along(self.last_axis()?),
            Sharding::Encoder { heads, ref cut } => {
                let divides = heads.is_multiple_of(self.parts);
                let (parts, part) = if divides { (self.parts, self.part) } else { (1, 0) };
                Cut { parts, part, ..*self }.place_as(cut)
            }
            Sharding::Vocabulary { multiple } => self.vocabulary(multiple),
            Sharding::Heads { role, heads, kv_heads, head_dim } => {
                self.heads(role, heads, kv_heads, head_dim)
            }
            Sharding::GateUp { half } => self.gate_up(half),
            Sharding::ExpertGateUp { expert, experts, half } => {
                let (pieces, shape) = self.gate_up(half)?;
                self.stack(expert, experts, pieces, shape)
            }
            Sharding::ExpertRow { expert, experts } => {
                let (pieces, shape) = self.along(self.last_axis()?)?;
                self.stack(expert, experts, pieces, shape)
            }
            Sharding::FusedExpertsGateUp => self.own_experts(self.fused_gate_up()?),
            Sharding::FusedExpertsRow => self.own_experts(self.along(self.last_axis()?)?),
            Sharding::FusedExpertsInputs => {
                self.axes(3)?;
                self.own_experts(self.along(1)?)
            }
            Sharding::FusedExperts => self.own_experts(self.replicated()?),
            Sharding::Sections { ref sections } => self.sections(sections),
            Sharding::Factor { factor, weight, ref of } => factor::place(self, factor, weight, of),
        }
    }

    pub(super) fn misfit(&self, reason: impl Into<String>) -> PlacementError {
        PlacementError::Shape {
            source_name: self.rule.source.clone(),
            shape: self.rule.shape.clone(),
            reason: reason.into(),
        }
    }

    /// Refuses shapes whose element count could overflow, here or where boxes are measured.
    pub(super) fn check_size(&self, shape: &[u64]) -> Result<(), PlacementError> {
        const ELEMENTS_MAX: u64 = 1 << 48;
        let elements =
            shape.iter().try_fold(1_u64, |count, &extent| count.checked_mul(extent.max(1)));
        match elements {
            Some(elements) if elements <= ELEMENTS_MAX => Ok(()),
            _ => Err(self.misfit(format!("{shape:?} has more than {ELEMENTS_MAX} elements"))),
        }
    }

    pub(super) fn axes(&self, axes: usize) -> Result<(), PlacementError> {
        if self.shape().len() == axes {
            Ok(())
        } else {
            Err(self.misfit(format!("the rule is for {axes} axes")))
        }
    }

    pub(super) fn extent(&self, axis: usize) -> Result<u64, PlacementError> {
        let extent = self.shape().get(axis).copied();
        extent.ok_or_else(|| self.misfit(format!("the rule cuts axis {axis}")))
    }

    fn last_axis(&self) -> Result<usize, PlacementError> {
        let last = self.shape().len().checked_sub(1);
        last.ok_or_else(|| self.misfit("the rule cuts the last axis of a tensor, not a scalar"))
    }

    fn equal_part(&self, axis: usize, extent: u64) -> Result<u64, PlacementError> {
        if extent.is_multiple_of(self.parts) {
            return Ok(extent / self.parts);
        }
        Err(PlacementError::Uneven {
            source_name: self.rule.source.clone(),
            axis,
            extent,
            parts: self.parts,
        })
    }

    /// The part of this rank among equal parts of `extent`, beginning at `origin`.
    fn span(&self, origin: u64, per_part: u64) -> Span {
        Span::new(origin + self.part * per_part, origin + (self.part + 1) * per_part)
    }

    fn replicated(&self) -> Placed {
        let whole = Fragment::whole(self.shape());
        let piece = Piece { source_fragment: whole.clone(), slot_fragment: whole };
        Ok((vec![piece], self.shape().to_vec()))
    }

    fn stacked(&self, first: u64, rows: u64) -> Placed {
        let own = self.extent(0)?;
        if first.checked_add(own).is_none_or(|end| end > rows) {
            return Err(self.misfit(format!("from row {first} on it exceeds {rows} rows")));
        }
        let shape = replaced(self.shape(), 0, rows);
        Ok((vec![self.piece(0, Span::new(0, own), first, &shape)], shape))
    }

    fn along(&self, axis: usize) -> Placed {
        let per_part = self.equal_part(axis, self.extent(axis)?)?;
        let shape = replaced(self.shape(), axis, per_part);
        Ok((vec![self.piece(axis, self.span(0, per_part), 0, &shape)], shape))
    }

    /// One piece: `source` along `axis`, at `target` of the same axis of a slot of `slot_shape`.
    fn piece(&self, axis: usize, source: Span, target: u64, slot_shape: &[u64]) -> Piece {
        Piece {
            source_fragment: Fragment::whole(self.shape()).with(axis, source),
            slot_fragment: Fragment::whole(slot_shape)
                .with(axis, Span::new(target, target + source.len())),
        }
    }

    fn vocabulary(&self, multiple: u64) -> Placed {
        let rows = self.extent(0)?;
        let unit = multiple.checked_mul(self.parts).filter(|&unit| unit > 0);
        let padded = unit.and_then(|unit| rows.checked_next_multiple_of(unit));
        let padded = padded.ok_or_else(|| self.misfit(format!("it pads to {multiple} rows")))?;
        let per_part = padded / self.parts;
        let shape = replaced(self.shape(), 0, per_part);
        let held = self.span(0, per_part).intersect(Span::new(0, rows));
        let none = held.is_empty() && rows > 0;
        let pieces = if none { Vec::new() } else { vec![self.piece(0, held, 0, &shape)] };
        Ok((pieces, shape))
    }

    fn heads(&self, role: HeadRole, heads: u64, kv_heads: u64, head_dim: u64) -> Placed {
        let of_role = if role == HeadRole::Q { heads } else { kv_heads };
        if of_role.checked_mul(head_dim) != Some(self.extent(0)?) {
            return Err(self.misfit(format!("{of_role} heads of {head_dim} rows are needed")));
        }
        let local_q = self.equal_part(0, heads)?;
        let (local_kv, kv_part) = self.kv_part(kv_heads)?;
        let head_total = local_kv.checked_mul(2).and_then(|kv| kv.checked_add(local_q));
        let rows = head_total.and_then(|total| total.checked_mul(head_dim));
        let rows = rows.ok_or_else(|| self.misfit("its heads do not fit 64 bits"))?;
        let shape = replaced(self.shape(), 0, rows);
        let (first, count, target) = match role {
            HeadRole::Q => (self.part * local_q, local_q, 0),
            HeadRole::K => (kv_part * local_kv, local_kv, local_q),
            HeadRole::V => (kv_part * local_kv, local_kv, local_q + local_kv),
        };
        let source = Span::new(first * head_dim, (first + count) * head_dim);
        Ok((vec![self.piece(0, source, target * head_dim, &shape)], shape))
    }

    /// Key-value heads of a rank, and which of the distinct parts it holds.
    fn kv_part(&self, kv_heads: u64) -> Result<(u64, u64), PlacementError> {
        if kv_heads == 0 || kv_heads >= self.parts {
            return Ok((self.equal_part(0, kv_heads)?, self.part));
        }
        if self.parts.is_multiple_of(kv_heads) {
            return Ok((1, self.part / (self.parts / kv_heads)));
        }
        Err(PlacementError::Uneven {
            source_name: self.rule.source.clone(),
            axis: 0,
            extent: kv_heads,
            parts: self.parts,
        })
    }

    fn gate_up(&self, half: Half) -> Placed {
        let per_part = self.equal_part(0, self.extent(0)?)?;
        let shape = replaced(self.shape(), 0, 2 * per_part);
        let target = if half == Half::Gate { 0 } else { per_part };
        Ok((vec![self.piece(0, self.span(0, per_part), target, &shape)], shape))
    }

    /// The rank's rows of each section, one section after another.
    fn sections(&self, sections: &[Section]) -> Placed {
        let all = sections.iter().try_fold(0_u64, |all, section| all.checked_add(section.rows));
        if all != Some(self.extent(0)?) {
            return Err(self.misfit("its sections are not all of its rows"));
        }
        let mut spans = Vec::with_capacity(sections.len());
        let (mut first, mut target) = (0, 0);
        for section in sections {
            let span = self.section(section, first)?;
            spans.push((span, target));
            first += section.rows;
            target += span.len();
        }
        let shape = replaced(self.shape(), 0, target);
        let held = spans.into_iter().filter(|(span, _)| !span.is_empty());
        Ok((held.map(|(span, target)| self.piece(0, span, target, &shape)).collect(), shape))
    }

    /// The rank's rows of a section that begins at `first`.
    fn section(&self, section: &Section, first: u64) -> Result<Span, PlacementError> {
        let Section { rows, units } = *section;
        if units == 0 || !rows.is_multiple_of(units) {
            return Err(self.misfit(format!("{rows} rows are not {units} equal parts")));
        }
        if units == 1 {
            return Ok(Span::new(first, first + rows));
        }
        let own = self.equal_part(0, units)? * (rows / units);
        Ok(self.span(first, own))
    }

    fn fused_gate_up(&self) -> Placed {
        self.axes(3)?;
        let rows = self.extent(1)?;
        if !rows.is_multiple_of(2) {
            return Err(self.misfit("its rows are gate and up, an even number"));
        }
        let per_part = self.equal_part(1, rows / 2)?;
        let shape = replaced(self.shape(), 1, 2 * per_part);
        let gate = self.piece(1, self.span(0, per_part), 0, &shape);
        let up = self.piece(1, self.span(rows / 2, per_part), per_part, &shape);
        Ok((vec![gate, up], shape))
    }
}

pub(super) fn replaced(shape: &[u64], axis: usize, extent: u64) -> Vec<u64> {
    let mut shape = shape.to_vec();
    if let Some(slot) = shape.get_mut(axis) {
        *slot = extent;
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_a_row_of_either_side_ends() {
        // Columns 1..3 of a 2 x 4 source, as the four elements from 1 on of a flat slot of 6.
        let columns = vec![Span::new(0, 2), Span::new(1, 3)];
        let piece = Piece {
            source_fragment: Fragment(columns),
            slot_fragment: Fragment(vec![Span::new(1, 5)]),
        };
        assert_eq!(piece.runs(&[2, 4], &[6]), [(1, 1, 2), (5, 3, 2)]);
        let turned = Piece {
            source_fragment: piece.slot_fragment.clone(),
            slot_fragment: piece.source_fragment.clone(),
        };
        assert_eq!(turned.runs(&[6], &[2, 4]), [(1, 1, 2), (3, 5, 2)]);
        // One fragment is beyond its shape.
        assert_eq!(piece.runs(&[2, 4], &[4]), []);
        assert_eq!(piece.runs(&[2, 2], &[6]), []);
    }
}
