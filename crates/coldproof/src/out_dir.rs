//! The folder of one run: an old verdict goes first, everything is written beside its name and
//! renamed, the verdict last.

use std::io::{BufWriter, Write};

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_contract::evidence::Record;

use crate::error::Failure;

/// What a run's folder may hold.
const OURS: [&str; 3] = ["verdict.json", "junit.xml", "evidence.jsonl"];
const PARTIAL: &str = ".partial";

/// The folder of one run.
#[derive(Clone, Debug)]
pub(crate) struct OutDir {
    folder: Utf8PathBuf,
}

impl OutDir {
    /// Takes a folder: makes it, or refuses one that holds anything else; removes an old verdict.
    ///
    /// # Errors
    /// It is not ours, or cannot be written.
    pub(crate) fn open(folder: &Utf8Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::output(folder.as_str(), &error);
        fs_err::create_dir_all(folder).map_err(failed)?;
        for entry in fs_err::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !OURS.contains(&name.strip_suffix(PARTIAL).unwrap_or(&name)) {
                return Err(Failure::new(
                    "output",
                    folder.as_str(),
                    format!("`{folder}` holds `{name}`, so it is not a folder of ours"),
                    "choose a folder that is new, empty, or from an earlier run",
                ));
            }
        }
        let verdict = folder.join("verdict.json");
        match fs_err::remove_file(&verdict) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(Self { folder: folder.to_owned() }),
        }
    }

    /// Writes the evidence.
    ///
    /// # Errors
    /// It cannot be written; the partial file is removed.
    pub(crate) fn evidence(&self, record: &Record) -> Result<(), Failure> {
        self.write("evidence.jsonl", &mut |out| record.write(out))
    }

    /// Writes a text file.
    ///
    /// # Errors
    /// It cannot be written; the partial file is removed.
    pub(crate) fn text(&self, name: &str, text: &str) -> Result<(), Failure> {
        self.write(name, &mut |out| out.write_all(text.as_bytes()))
    }

    fn write(
        &self,
        name: &str,
        content: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        let path = self.folder.join(name);
        let partial = self.folder.join(format!("{name}{PARTIAL}"));
        let result = (|| {
            let mut out = BufWriter::new(fs_err::File::create(&partial)?);
            content(&mut out)?;
            let file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
            file.sync_all()?;
            fs_err::rename(&partial, &path)?;
            fs_err::File::open(&self.folder)?.sync_all()
        })();
        result.map_err(|error| {
            // Nothing half-written stays; the error that matters is the first.
            let _ = fs_err::remove_file(&partial);
            Failure::output(path.as_str(), &error)
        })
    }
}
