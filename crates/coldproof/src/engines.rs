//! Where a run's engines come from: the embedded one, or an adapter in a process of its own.

use std::ffi::OsString;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use camino::Utf8PathBuf;
use coldproof_lanes::adapters::Reference;
use coldproof_lanes::engine::{EngineError, EngineUnderTest, Reply, StartSpec};
use coldproof_lanes::factory::EngineFactory;
use coldproof_lanes::protocol::{ProcessEngine, Spawned};

use crate::settings::EngineSettings;

/// How this program is started again; nothing stands for the running executable.
pub(crate) type OwnCommand = Option<Vec<OsString>>;

/// The factory of one run.
#[must_use]
pub(crate) fn factory(settings: &EngineSettings, own: OwnCommand) -> Box<dyn EngineFactory> {
    match settings {
        EngineSettings::Reference { faults, lying } => {
            Box::new(Embedded { faults: faults.clone(), lying: *lying, own })
        }
        EngineSettings::Vllm { python, via, options } => {
            let python = python.clone().unwrap_or_else(|| own_python(own.as_deref()));
            Box::new(Adapter {
                python,
                via: via.clone(),
                options: options.clone(),
                ahead: Mutex::new(None),
            })
        }
    }
}

/// The interpreter that runs this program, where one does.
fn own_python(own: Option<&[OsString]>) -> Utf8PathBuf {
    let own = own.and_then(|own| own.first()).and_then(|python| python.to_str());
    Utf8PathBuf::from(own.unwrap_or("python3"))
}

/// The one under test in this process, the cold one in its own.
struct Embedded {
    faults: Vec<String>,
    lying: bool,
    own: OwnCommand,
}

impl Embedded {
    /// This program, to be started again.
    fn own(&self) -> Reply<Command> {
        if let Some([program, arguments @ ..]) = self.own.as_deref() {
            let mut command = Command::new(program);
            command.args(arguments);
            return Ok(command);
        }
        let own = std::env::current_exe().map_err(|error| EngineError::Died {
            text: format!("this program cannot find itself to start a cold engine: {error}"),
            kernel: None,
            address: None,
        })?;
        Ok(Command::new(own))
    }
}

impl EngineFactory for Embedded {
    /// Each rank is a thread.
    fn together(&self, ranks: u32) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cores / usize::try_from(ranks.max(1)).unwrap_or(cores)
    }

    fn start(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let spec = StartSpec { faults: self.faults.clone(), lying: self.lying, ..spec.clone() };
        Ok(Box::new(Reference::start(&spec)?))
    }

    fn start_cold(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let mut command = self.own()?;
        command.arg("agent");
        Ok(Box::new(ProcessEngine::start(command, spec)?))
    }
}

/// Every engine in a process of its own. One is started ahead of its arm: an engine's imports take
/// longer than its load.
struct Adapter {
    python: Utf8PathBuf,
    via: String,
    options: String,
    ahead: Mutex<Option<Spawned>>,
}

impl Adapter {
    fn spawn(&self) -> Reply<Spawned> {
        let mut command = Command::new(&self.python);
        command.args(["-m", "coldproof.vllm", "--via", &self.via, "--options", &self.options]);
        Spawned::new(command)
    }

    /// The one that was started ahead; `next` is in its place from then on.
    fn exchange(&self, next: Option<Spawned>) -> Option<Spawned> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *ahead, next)
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if let Some(spawned) = self.exchange(None) {
            spawned.end();
        }
    }
}

impl EngineFactory for Adapter {
    fn start(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let spawned = match self.exchange(None) {
            Some(spawned) => spawned,
            None => self.spawn()?,
        };
        // Where the next one cannot be started, the next arm says so.
        self.exchange(self.spawn().ok());
        Ok(Box::new(ProcessEngine::initialize(spawned, spec)?))
    }

    fn start_cold(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        self.start(spec)
    }
}
