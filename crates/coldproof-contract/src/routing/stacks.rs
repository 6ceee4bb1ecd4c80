//! Stacks of experts: which of the model's a rank has, and at which place each.

use super::rules::{Cut, Placed, replaced};
use super::{Piece, PlacementError};
use crate::words::{ExpertPlace, Fragment, Span};

/// More experts than any layer has: each is a piece of its own.
const EXPERTS_MAX: u64 = 1 << 16;

impl Cut<'_> {
    /// Puts an expert's pieces behind a leading axis of experts.
    pub(super) fn stack(
        &self,
        expert: u64,
        experts: u64,
        pieces: Vec<Piece>,
        shape: Vec<u64>,
    ) -> Placed {
        self.axes(2)?;
        if expert >= experts {
            return Err(self.misfit(format!("expert {expert} is not among {experts}")));
        }
        let stack = self.experts_each(experts)?;
        let stacked = std::iter::once(stack).chain(shape).collect();
        let Some(place) = self.place_of(expert, experts)? else {
            return Ok((Vec::new(), stacked));
        };
        let at = Span::new(place, place + 1);
        let behind = |piece: Piece| {
            let spans = std::iter::once(at).chain(piece.slot_fragment.0).collect();
            Piece { slot_fragment: Fragment(spans), ..piece }
        };
        Ok((pieces.into_iter().map(behind).collect(), stacked))
    }

    /// Experts in the stack of a rank: as many on each.
    fn experts_each(&self, experts: u64) -> Result<u64, PlacementError> {
        let parts = self.expert_parts;
        if experts > EXPERTS_MAX {
            return Err(self.misfit(format!("it has more than {EXPERTS_MAX} experts")));
        }
        if experts.is_multiple_of(parts) {
            return Ok(experts / parts);
        }
        let source_name = self.rule.source.clone();
        Err(PlacementError::Uneven { source_name, axis: 0, extent: experts, parts })
    }

    /// The place of an expert in this rank's stack, if it is here.
    fn place_of(&self, expert: u64, experts: u64) -> Result<Option<u64>, PlacementError> {
        let each = self.experts_each(experts)?;
        let at = match self.placed {
            None => ExpertPlace::consecutive(expert, each),
            Some(placed) => {
                let own = usize::try_from(expert).ok().and_then(|expert| placed.get(expert));
                let own = own.filter(|own| placed.len() as u64 == experts && own.place < each);
                *own.ok_or_else(|| self.misfit("its experts were placed otherwise"))?
            }
        };
        Ok((u64::from(at.ep) == self.expert_part).then_some(at.place))
    }

    /// Of pieces of all experts, those of this rank's: a piece for each, where ranks share them.
    pub(super) fn own_experts(&self, (pieces, shape): (Vec<Piece>, Vec<u64>)) -> Placed {
        let experts = self.extent(0)?;
        let shape = replaced(&shape, 0, self.experts_each(experts)?);
        if self.expert_parts == 1 && self.placed.is_none() {
            return Ok((pieces, shape));
        }
        let mut own = Vec::new();
        for expert in 0..experts {
            let Some(place) = self.place_of(expert, experts)? else { continue };
            let (from, to) = (Span::new(expert, expert + 1), Span::new(place, place + 1));
            own.extend(pieces.iter().map(|piece| Piece {
                source_fragment: piece.source_fragment.clone().with(0, from),
                slot_fragment: piece.slot_fragment.clone().with(0, to),
            }));
        }
        Ok((own, shape))
    }
}
