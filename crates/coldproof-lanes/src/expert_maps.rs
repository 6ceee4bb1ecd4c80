//! Maps of experts, read from the slots that ranks say the forward reads. This is checker code: it
//! takes the name of the slot from the engine and what it says from memory.

use coldproof_contract::evidence::{ExpertMapFact, ExpertPlacementFact, Fact};
use coldproof_contract::words::{ByteRange, Dtype, Rank};

use crate::engine::{EngineError, EngineUnderTest, Reply};
use crate::session::Slots;

/// Reads the map of every layer whose experts are stated. One that is not registered as I32, or
/// cannot be read, leaves no fact.
///
/// # Errors
/// The engine is gone.
pub(crate) fn read(
    engine: &mut dyn EngineUnderTest,
    claims: &[(Rank, Fact)],
    slots: &Slots,
) -> Reply<Vec<(Rank, ExpertMapFact)>> {
    let mut maps = Vec::new();
    for (rank, fact) in claims {
        let Fact::ExpertPlacement(ExpertPlacementFact { layer, map, .. }) = fact else { continue };
        let slot = slots.get(&(*rank, map.clone()));
        let print = slot.and_then(|slot| slot.fingerprint.as_ref());
        let Some(print) = print.filter(|print| print.dtype == Dtype::I32) else { continue };
        let range = ByteRange { address: print.address, bytes: print.bytes() };
        match engine.read(*rank, range) {
            Ok(bytes) => {
                let (layer, map) = (layer.clone(), map.clone());
                maps.push((*rank, ExpertMapFact { layer, map, places: places(&bytes) }));
            }
            Err(EngineError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(maps)
}

/// Little-endian I32; a negative one is no place.
fn places(bytes: &[u8]) -> Vec<Option<u64>> {
    let words = bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    words.map(|word| u64::try_from(word).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::places;

    #[test]
    fn a_negative_word_is_an_expert_elsewhere() {
        let bytes: Vec<u8> = [2_i32, -1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(places(&bytes), [Some(2), None, Some(0)]);
    }
}
