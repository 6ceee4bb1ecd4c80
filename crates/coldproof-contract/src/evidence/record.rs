//! A whole run: header and events, as lines of JSON with a closing seal.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use super::{Event, Header, SCHEMA};

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
    /// Another schema, a malformed line, a missing or wrong seal.
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
        let header = parse(first, 1)?;
        let events = lines
            .iter()
            .enumerate()
            .skip(1)
            .map(|(index, line)| parse(line, index + 1))
            .collect::<Result<_, _>>()?;
        Ok(Self { header, events })
    }
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
