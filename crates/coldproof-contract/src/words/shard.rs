//! What one rank stores of a slot, as an update in kernel format delivers it.

use std::fmt;
use std::str::FromStr;

use super::{Rank, SlotName};

/// What one rank of each replica stores of a slot. Written `RANK:SLOT`, such as
/// `tp1.pp1:model.norm.weight`; what no rank begins is none, whatever slots are called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotShard {
    rank: Rank,
    slot: SlotName,
}

/// A name that says of no rank that it is its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` names no rank of a replica and its slot; write `RANK:SLOT`, such as \
     `tp0:model.norm.weight` or, on the second pipeline stage, `tp0.pp1:model.norm.weight`"
)]
pub struct SlotShardError {
    /// The name.
    pub name: String,
}

impl SlotShard {
    /// The shard of a rank, which is that of the same rank in every replica.
    #[must_use]
    pub const fn new(rank: Rank, slot: SlotName) -> Self {
        Self { rank: rank.in_replica(), slot }
    }

    /// Its rank in the first replica.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether it is this rank's, in whichever replica.
    #[must_use]
    pub fn is_of(&self, rank: Rank) -> bool {
        self.rank == rank.in_replica()
    }

    /// Its slot.
    #[must_use]
    pub const fn slot(&self) -> &SlotName {
        &self.slot
    }
}

impl fmt::Display for SlotShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.rank, self.slot)
    }
}

impl FromStr for SlotShard {
    type Err = SlotShardError;

    fn from_str(name: &str) -> Result<Self, SlotShardError> {
        let parts = name.split_once(':').and_then(|(rank, slot)| Some((replica_rank(rank)?, slot)));
        let (rank, slot) = parts.ok_or_else(|| SlotShardError { name: name.to_owned() })?;
        Ok(Self { rank, slot: slot.into() })
    }
}

/// A rank of a replica, in the one spelling that it has.
fn replica_rank(text: &str) -> Option<Rank> {
    let mut rank = Rank::default();
    for part in text.split('.') {
        let (axis, number) = part.split_at(part.find(|c: char| c.is_ascii_digit())?);
        let number = number.parse().ok()?;
        match axis {
            "tp" => rank.tp = number,
            "pp" => rank.pp = number,
            "ep" => rank.ep = number,
            _ => return None,
        }
    }
    (rank.to_string() == text).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_one_spelling() {
        let rank = Rank { dp: 0, pp: 1, ep: 2, tp: 3 };
        let shard = SlotShard::new(Rank { dp: 4, ..rank }, "a.b/c:d".into());
        assert_eq!(shard.to_string(), "tp3.pp1.ep2:a.b/c:d");
        assert_eq!("tp3.pp1.ep2:a.b/c:d".parse(), Ok(shard.clone()));
        assert!(shard.is_of(Rank { dp: 9, ..rank }) && !shard.is_of(Rank { tp: 2, ..rank }));
        assert_eq!((shard.rank(), shard.slot().0.as_str()), (rank, "a.b/c:d"));
        assert_eq!("tp0:w".parse(), Ok(SlotShard::new(Rank::default(), "w".into())));
    }

    #[test]
    fn a_name_without_a_rank_of_a_replica_is_none() {
        let names = ["w", "", ":w", "tp:w", "tp-1:w", "tp+1:w", "tp01:w", "tp0.pp0:w", "pp1:w"];
        let more = ["tp0.dp1:w", "tp0.ep1.pp1:w", "tp0.tp0:w", "xp1:w", "tp4294967296:w", "tp٣:w"];
        for name in names.into_iter().chain(more) {
            let error = name.parse::<SlotShard>().expect_err(name);
            assert!(error.to_string().contains("`RANK:SLOT`"), "{error}");
        }
    }
}
