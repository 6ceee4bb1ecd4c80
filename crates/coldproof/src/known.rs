//! The list of known findings: a TOML file that a CI keeps beside its runs.
//!
//! ```toml
//! [[known]]
//! engine = "vllm"
//! versions = ">=0.30, <0.33"        # a version range as Python packages write it
//! models = ["qwen3_moe", "mixtral"] # `model_type` of the configuration; absent: every model
//! code = "finalised-never"
//! object = "model.layers.*"         # `*` stands for any text
//! link = "https://HOST/ISSUE"
//! expires = "2027-03-01"            # the first day on which it is no longer accepted
//! ```

use std::str::FromStr;

use camino::Utf8Path;
use coldproof_contract::verdict::{FindingCode, Listed, Note, Verdict, accept};
use jiff::civil::Date;
use pep440_rs::{Version, VersionSpecifiers};
use serde::Deserialize;

use crate::error::Failure;

const HINT: &str = "each entry has engine, versions, code, object, link and expires; \
                    `coldproof prove --help` shows one";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    known: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    engine: String,
    versions: String,
    models: Option<Vec<String>>,
    code: String,
    object: String,
    link: String,
    expires: String,
}

/// A list that was read and checked.
#[derive(Debug)]
pub(crate) struct Known {
    entries: Vec<(Entry, Checked)>,
}

#[derive(Debug)]
struct Checked {
    versions: VersionSpecifiers,
    code: FindingCode,
    expires: Date,
}

impl Known {
    /// Reads and checks a list.
    ///
    /// # Errors
    /// The file cannot be read, is no such list, or has a code, range or date that is none.
    pub(crate) fn read(path: &Utf8Path) -> Result<Self, Failure> {
        let bad = |message: String| Failure::new("known", path.as_str(), message, HINT);
        let text = fs_err::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        let file: File = toml::from_str(&text)
            .map_err(|error| bad(format!("`{path}`: {}", one_line(&error))))?;
        let entries = file.known.into_iter().map(|entry| {
            let checked = entry.check().map_err(|what| bad(format!("`{path}`: {what}")))?;
            Ok((entry, checked))
        });
        Ok(Self { entries: entries.collect::<Result<_, Failure>>()? })
    }

    /// Holds a verdict against the entries for its engine, version and model that have not expired.
    pub(crate) fn apply(&self, verdict: &mut Verdict, today: Date) {
        let version = Version::from_str(&verdict.engine.version).ok();
        let model = verdict.environment.get("model").cloned();
        let mut listed = Vec::new();
        for (entry, checked) in &self.entries {
            let versions = &checked.versions;
            let same_version = version.as_ref().is_some_and(|version| versions.contains(version));
            let same_model = entry
                .models
                .as_ref()
                .is_none_or(|models| model.as_ref().is_some_and(|model| models.contains(model)));
            if entry.engine != verdict.engine.kind || !same_version || !same_model {
                continue;
            }
            if checked.expires <= today {
                let text = format!(
                    "the entry {} {} expired on {}; mend it or renew it ({})",
                    entry.code, entry.object, checked.expires, entry.link
                );
                verdict.notes.push(Note { kind: "known".to_owned(), text });
                continue;
            }
            listed.push(Listed {
                code: checked.code,
                object: entry.object.clone(),
                link: entry.link.clone(),
            });
        }
        accept(verdict, &listed);
    }
}

impl Entry {
    fn check(&self) -> Result<Checked, String> {
        let code = FindingCode::ALL.iter().find(|code| code.name() == self.code);
        let code = code.ok_or_else(|| format!("`{}` is no finding code", self.code))?;
        let versions = VersionSpecifiers::from_str(&self.versions)
            .map_err(|_| format!("`{}` is no version range", self.versions))?;
        let expires = Date::from_str(&self.expires)
            .map_err(|_| format!("`{}` is no date; write 2027-03-01", self.expires))?;
        Ok(Checked { versions, code: *code, expires })
    }
}

fn one_line(error: &toml::de::Error) -> String {
    error.message().lines().next().unwrap_or_default().to_owned()
}

/// The day on which this runs.
#[must_use]
pub(crate) fn today() -> Date {
    jiff::ZonedDateTime::now().date()
}
