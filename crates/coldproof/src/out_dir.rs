//! The folder of one run: what an earlier run said goes first, its evidence when there is new. All
//! files are written beside their names before one is renamed, the verdict last.

use std::io::{BufWriter, Write};

use camino::{Utf8Path, Utf8PathBuf};

use crate::error::Failure;

/// The verdict, for programs.
pub(crate) const VERDICT: &str = "verdict.json";
/// The verdict, as test reports have it.
pub(crate) const JUNIT: &str = "junit.xml";
/// What the verdict was made of.
pub(crate) const EVIDENCE: &str = "evidence.jsonl";
/// What a run's folder may hold.
const OURS: [&str; 3] = [VERDICT, JUNIT, EVIDENCE];
const PARTIAL: &str = ".partial";

/// Writes the content of one file.
pub(crate) type Content<'c> = &'c dyn Fn(&mut dyn Write) -> std::io::Result<()>;

/// The folder of one run.
#[derive(Clone, Debug)]
pub(crate) struct OutDir {
    folder: Utf8PathBuf,
}

impl OutDir {
    /// Takes a folder: makes it, or refuses one that holds anything else; removes what an earlier
    /// run said, verdict and report. A run that ends early must not leave a pass of another run.
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
        for said in [VERDICT, JUNIT] {
            match fs_err::remove_file(folder.join(said)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failed(error));
                }
                _ => {}
            }
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// Writes all files beside their names, then gives them their names in this order. Where one
    /// cannot be written, none is replaced.
    ///
    /// # Errors
    /// One cannot be written; the partial files are removed.
    pub(crate) fn put(&self, files: &[(&str, Content<'_>)]) -> Result<(), Failure> {
        let written = files.iter().try_for_each(|(name, content)| {
            self.write(name, content).map_err(|error| self.failed(name, &error))
        });
        let put = written.and_then(|()| {
            files.iter().try_for_each(|(name, _)| {
                let renamed = fs_err::rename(self.partial(name), self.folder.join(name));
                renamed.map_err(|error| self.failed(name, &error))
            })
        });
        match put {
            Ok(()) => fs_err::File::open(&self.folder)
                .and_then(|folder| folder.sync_all())
                .map_err(|error| Failure::output(self.folder.as_str(), &error)),
            Err(failure) => {
                // Nothing half-written stays; the error that matters is the first.
                for (name, _) in files {
                    let _ = fs_err::remove_file(self.partial(name));
                }
                Err(failure)
            }
        }
    }

    fn partial(&self, name: &str) -> Utf8PathBuf {
        self.folder.join(format!("{name}{PARTIAL}"))
    }

    fn write(&self, name: &str, content: Content<'_>) -> std::io::Result<()> {
        let mut out = BufWriter::new(fs_err::File::create(self.partial(name))?);
        content(&mut out)?;
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
    }

    fn failed(&self, name: &str, error: &std::io::Error) -> Failure {
        let path = self.folder.join(name);
        Failure {
            hint: "free space or choose another folder; evidence of an earlier run is unchanged, \
                   and `coldproof check` judges it again"
                .to_owned(),
            ..Failure::output(path.as_str(), error)
        }
    }
}
