//! Where a run's engines come from: the embedded one, or an adapter in a process of its own.

use std::cell::RefCell;
use std::ffi::OsString;
use std::process::Command;

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
                ahead: RefCell::new(None),
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
    ahead: RefCell<Option<Spawned>>,
}

impl Adapter {
    fn spawn(&self) -> Reply<Spawned> {
        let mut command = Command::new(&self.python);
        command.args(["-m", "coldproof.vllm", "--via", &self.via, "--options", &self.options]);
        Spawned::new(command)
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if let Some(spawned) = self.ahead.take() {
            spawned.end();
        }
    }
}

impl EngineFactory for Adapter {
    fn start(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        let spawned = match self.ahead.take() {
            Some(spawned) => spawned,
            None => self.spawn()?,
        };
        // Where the next one cannot be started, the next arm says so.
        *self.ahead.borrow_mut() = self.spawn().ok();
        Ok(Box::new(ProcessEngine::initialize(spawned, spec)?))
    }

    fn start_cold(&self, spec: &StartSpec) -> Reply<Box<dyn EngineUnderTest>> {
        self.start(spec)
    }
}
