//! A whole run: header and events, as lines of JSON with a closing seal.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use super::{Event, Header, SCHEMA};
use crate::words::{Rank, Topology};

/// A recorded run.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What the run was.
    pub header: Header,
    /// What happened, sorted by (arm, step, rank, seq).
    pub events: Vec<Event>,
}

/// The last line of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seal {
    events: u64,
    blake3: String,
}

/// A file that is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Reading failed.
    #[error("cannot read the evidence: {0}")]
    Read(#[from] std::io::Error),
    /// Nothing in it.
    #[error("the evidence is empty")]
    Empty,
    /// Another format.
    #[error("the evidence has schema `{found}`; this version reads `{SCHEMA}`")]
    Schema {
        /// What it says.
        found: String,
    },
    /// A line that cannot be read.
    #[error("line {line} of the evidence is malformed: {reason}")]
    Malformed {
        /// From 1.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// An event that stands after one that it must precede.
    #[error("line {line} of the evidence is out of order; record the run again")]
    Order {
        /// From 1.
        line: usize,
    },
    /// An event of an arm that the header does not name, or names twice.
    #[error("line {line} of the evidence is of arm `{arm}`, which the header does not name once")]
    Arm {
        /// From 1.
        line: usize,
        /// The arm.
        arm: String,
    },
    /// An event of a rank that its arm does not have.
    #[error("line {line} of the evidence is of rank {rank}, which arm `{arm}` does not have")]
    Rank {
        /// From 1.
        line: usize,
        /// The arm.
        arm: String,
        /// The rank.
        rank: Rank,
    },
    /// No closing line, or a wrong one.
    #[error("the evidence is not sealed or was changed: {reason}; record the run again")]
    Seal {
        /// What does not fit.
        reason: String,
    },
}

impl Record {
    /// Writes header, events and seal.
    ///
    /// # Errors
    /// Whatever the writer says.
    pub fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut hasher = blake3::Hasher::new();
        let mut line = |bytes: Vec<u8>, hash: bool| -> std::io::Result<()> {
            if hash {
                hasher.update(&bytes);
                hasher.update(b"\n");
            }
            out.write_all(&bytes)?;
            out.write_all(b"\n")
        };
        line(serde_json::to_vec(&self.header)?, true)?;
        for event in &self.events {
            line(serde_json::to_vec(event)?, true)?;
        }
        let seal = Seal {
            events: self.events.len() as u64,
            blake3: hasher.finalize().to_hex().to_string(),
        };
        out.write_all(&serde_json::to_vec(&seal)?)?;
        out.write_all(b"\n")
    }

    /// Reads what [`Record::write`] wrote.
    ///
    /// # Errors
    /// Another schema, a malformed line, a missing or wrong seal, a topology that is none, events
    /// that are out of order or of no rank of their arm.
    pub fn read(input: &mut dyn BufRead) -> Result<Self, RecordError> {
        let mut hasher = blake3::Hasher::new();
        let mut lines: Vec<String> = Vec::new();
        for line in input.lines() {
            lines.push(line?);
        }
        let seal_line = lines.pop().ok_or(RecordError::Empty)?;
        let first = lines
            .first()
            .ok_or_else(|| RecordError::Seal { reason: "there is no closing line".to_owned() })?;
        let schema: Schema = parse(first, 1)?;
        if schema.schema != SCHEMA {
            return Err(RecordError::Schema { found: schema.schema });
        }
        let seal: Seal = serde_json::from_str(&seal_line)
            .map_err(|_| RecordError::Seal { reason: "there is no closing line".to_owned() })?;
        for line in &lines {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
        if seal.events != lines.len() as u64 - 1 {
            let reason = format!("{} events where {} are sealed", lines.len() - 1, seal.events);
            return Err(RecordError::Seal { reason });
        }
        if seal.blake3 != hasher.finalize().to_hex().as_str() {
            return Err(RecordError::Seal { reason: "its BLAKE3 differs".to_owned() });
        }
        let header: Header = parse(first, 1)?;
        check_topologies(&header)?;
        let events = lines
            .iter()
            .enumerate()
            .skip(1)
            .map(|(index, line)| parse(line, index + 1))
            .collect::<Result<Vec<Event>, _>>()?;
        check_order(&header, &events)?;
        Ok(Self { header, events })
    }
}

/// The most ranks of a topology.
const RANKS_MAX: u32 = 1 << 16;

fn check_topologies(header: &Header) -> Result<(), RecordError> {
    let arms = header.arms.iter().map(|arm| arm.topology);
    for topology in arms.chain([header.engine.topology]) {
        let Topology { tp, pp, ep, dp } = topology;
        let size = [pp, ep, dp].into_iter().try_fold(tp, u32::checked_mul);
        if size.is_none_or(|size| size == 0 || size > RANKS_MAX) {
            let reason = format!("a topology has from 1 to {RANKS_MAX} ranks, not {topology:?}");
            return Err(RecordError::Malformed { line: 1, reason });
        }
    }
    Ok(())
}

/// Checks read the allocator's log in the order in which it stands.
fn check_order(header: &Header, events: &[Event]) -> Result<(), RecordError> {
    let mut order: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, arm) in header.arms.iter().enumerate() {
        if order.insert(&arm.arm, index).is_some() {
            return Err(RecordError::Arm { line: 1, arm: arm.arm.clone() });
        }
    }
    let mut before = None;
    for (line, event) in (2..).zip(events) {
        let Some(arm) = order.get(event.arm.as_str()) else {
            return Err(RecordError::Arm { line, arm: event.arm.clone() });
        };
        let topology = header.arms.get(*arm).map(|arm| arm.topology);
        if !topology.is_some_and(|topology| topology.contains(event.rank)) {
            return Err(RecordError::Rank { line, arm: event.arm.clone(), rank: event.rank });
        }
        let place = Some((*arm, event.step, event.rank, event.seq));
        if before >= place {
            return Err(RecordError::Order { line });
        }
        before = place;
    }
    Ok(())
}

/// Only the schema of a header, so that another version is named before it is misread.
#[derive(Deserialize)]
struct Schema {
    schema: String,
}

fn parse<'a, T: Deserialize<'a>>(line: &'a str, number: usize) -> Result<T, RecordError> {
    serde_json::from_str(line)
        .map_err(|e| RecordError::Malformed { line: number, reason: e.to_string() })
}
