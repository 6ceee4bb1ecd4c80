//! The lanes' side: an engine in another process, killed when it misses a deadline.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use camino::Utf8Path;
use coldproof_checkpoint::TensorRef;
use coldproof_contract::evidence::{Fact, LaunchFact, NodeFact};
use coldproof_contract::words::{Address, ByteRange, ExpertPlacement, Rank, TransactionId};

use super::{Answer, Request};
use crate::engine::{
    Capabilities, Engine, EngineError, GenerateRequest, Output, Probe, PromisedAdapter, ReadBack,
    ReadBackRequest, Reply, StartSpec, WakeTag,
};

/// How much longer than the engine's own deadline the client waits for its answer.
const GRACE: Duration = Duration::from_secs(5);

/// An engine in another process.
#[derive(Debug)]
pub struct ProcessEngine {
    child: Child,
    /// Lines for its stdin. A thread writes them: a child that does not read must not hold us up.
    requests: Option<Sender<Vec<u8>>>,
    answers: Receiver<std::io::Result<String>>,
    deadline: Duration,
    ended: Option<EngineError>,
}

/// A process that was started for an engine and was not told anything yet.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    requests: Sender<Vec<u8>>,
    answers: Receiver<std::io::Result<String>>,
}

impl Spawned {
    /// Starts `command`. What it prints to stderr is the user's.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn new(mut command: Command) -> Reply<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let died = |text: String| EngineError::Died { text, kernel: None, address: None };
        let mut child = command
            .spawn()
            .map_err(|error| died(format!("its process could not be started: {error}")))?;
        let mut stdin = child.stdin.take().ok_or_else(|| died("it has no stdin".to_owned()))?;
        let (requests, lines) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            // A child that is gone is noticed by its missing answer.
            for line in lines {
                if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        let stdout = child.stdout.take().ok_or_else(|| died("it has no stdout".to_owned()))?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            while let Some(line) = whole_line(&mut stdout) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, requests, answers })
    }

    /// Ends a process that no engine was asked of.
    pub fn end(mut self) {
        // A process that is gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next line; none at the end. A line that the end cuts off was its sender's last act, and no
/// answer.
fn whole_line(from: &mut impl BufRead) -> Option<std::io::Result<String>> {
    let mut line = String::new();
    match from.read_line(&mut line) {
        Ok(_) => line.ends_with('\n').then_some(Ok(line)),
        Err(error) => Some(Err(error)),
    }
}

impl ProcessEngine {
    /// Starts `command` and initialises the engine in it.
    ///
    /// # Errors
    /// The process cannot be started, or its engine refuses.
    pub fn start(command: Command, spec: &StartSpec) -> Reply<Self> {
        Self::initialize(Spawned::new(command)?, spec)
    }

    /// Initialises the engine in a process.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn initialize(spawned: Spawned, spec: &StartSpec) -> Reply<Self> {
        let Spawned { child, requests, answers } = spawned;
        let deadline = Duration::from_millis(spec.deadline_ms);
        let requests = Some(requests);
        let mut engine = Self { child, requests, answers, deadline, ended: None };
        engine.done(&Request::Initialize { spec: spec.clone() })?;
        Ok(engine)
    }

    fn ask(&mut self, request: &Request) -> Reply<Answer> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        match self.exchange(request) {
            Ok(Answer::Failed { error }) => {
                if error.is_end() {
                    self.end(error.clone());
                }
                Err(error)
            }
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.end(error.clone());
                Err(error)
            }
        }
    }

    fn exchange(&mut self, request: &Request) -> Reply<Answer> {
        let died = |text: String| EngineError::Died { text, kernel: None, address: None };
        let mut line = serde_json::to_vec(request)
            .map_err(|error| died(format!("a request could not be written: {error}")))?;
        line.push(b'\n');
        // Where the writer has gone, the answer does not come either.
        let _ = self.requests.as_ref().map(|requests| requests.send(line));
        match self.answers.recv_timeout(self.deadline + GRACE) {
            Ok(Ok(line)) => serde_json::from_str(&line)
                .map_err(|error| died(format!("its answer is not of the protocol: {error}"))),
            Ok(Err(error)) => Err(died(format!("its answer could not be read: {error}"))),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                Err(died(format!("its process ended ({status})")))
            }
            Err(RecvTimeoutError::Timeout) => Err(EngineError::Timeout {
                deadline_ms: u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX),
                kernel: None,
                address: None,
            }),
        }
    }

    /// Ends the process; its answers are no longer waited for.
    fn end(&mut self, error: EngineError) {
        self.ended = Some(error);
        self.requests = None;
        // A process that is gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn done(&mut self, request: &Request) -> Reply<()> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn transaction(&mut self, request: &Request) -> Reply<TransactionId> {
        match self.ask(request)? {
            Answer::Transaction { id } => Ok(id),
            other => Err(self.unexpected(&other)),
        }
    }

    fn facts(&mut self, request: &Request) -> Reply<Vec<(Rank, Fact)>> {
        match self.ask(request)? {
            Answer::Facts { facts } => Ok(facts),
            other => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&mut self, answer: &Answer) -> EngineError {
        let text = format!("its answer does not belong to the request: {answer:.80?}");
        let error = EngineError::Died { text, kernel: None, address: None };
        self.end(error.clone());
        error
    }
}

impl Drop for ProcessEngine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Engine for ProcessEngine {
    fn capabilities(&mut self) -> Reply<Capabilities> {
        match self.ask(&Request::Capabilities)? {
            Answer::Capabilities { capabilities } => Ok(capabilities),
            other => Err(self.unexpected(&other)),
        }
    }

    fn set_deadline(&mut self, deadline: Duration) -> Reply<()> {
        self.deadline = deadline;
        let ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        self.done(&Request::Deadline { ms })
    }

    fn load(&mut self, tensors: &[TensorRef]) -> Reply<()> {
        self.done(&Request::Load { tensors: tensors.to_vec() })
    }

    fn capture(&mut self) -> Reply<()> {
        self.done(&Request::Capture)
    }

    fn generate(&mut self, request: &GenerateRequest) -> Reply<Output> {
        match self.ask(&Request::Generate { request: request.clone() })? {
            Answer::Output(output) => Ok(output.into()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn generate_batch(&mut self, requests: &[GenerateRequest]) -> Reply<Vec<Output>> {
        match self.ask(&Request::GenerateBatch { requests: requests.to_vec() })? {
            Answer::Outputs { outputs } if outputs.len() == requests.len() => {
                Ok(outputs.into_iter().map(Into::into).collect())
            }
            other => Err(self.unexpected(&other)),
        }
    }

    fn pause(&mut self) -> Reply<()> {
        self.done(&Request::Pause)
    }

    fn sleep(&mut self, level: u8) -> Reply<()> {
        self.done(&Request::Sleep { level })
    }

    fn wake(&mut self, tag: WakeTag) -> Reply<()> {
        self.done(&Request::Wake { tag })
    }

    fn begin(&mut self, required: &[String]) -> Reply<TransactionId> {
        self.transaction(&Request::Begin { required: required.to_vec() })
    }

    fn begin_kernel(&mut self, required: &[String]) -> Reply<TransactionId> {
        self.transaction(&Request::BeginKernel { required: required.to_vec() })
    }

    fn begin_partial(&mut self, required: &[String], preserved: &[String]) -> Reply<TransactionId> {
        let (required, preserved) = (required.to_vec(), preserved.to_vec());
        self.transaction(&Request::BeginPartial { required, preserved })
    }

    fn begin_with_adapters(
        &mut self,
        required: &[String],
        preserved: &[String],
        adapters: &[PromisedAdapter],
    ) -> Reply<TransactionId> {
        let (required, preserved) = (required.to_vec(), preserved.to_vec());
        let adapters = adapters.to_vec();
        self.transaction(&Request::BeginWithAdapters { required, preserved, adapters })
    }

    fn apply_adapter(&mut self, name: &str) -> Reply<()> {
        self.done(&Request::ApplyAdapter { name: name.to_owned() })
    }

    fn apply(&mut self, bucket: &[TensorRef]) -> Reply<()> {
        self.done(&Request::Apply { bucket: bucket.to_vec() })
    }

    fn finish(&mut self) -> Reply<()> {
        self.done(&Request::Finish)
    }

    fn commit(&mut self) -> Reply<()> {
        self.done(&Request::Commit)
    }

    fn abort(&mut self) -> Reply<()> {
        self.done(&Request::Abort)
    }

    fn invalidate(&mut self) -> Reply<()> {
        self.done(&Request::Invalidate)
    }

    fn resume(&mut self) -> Reply<()> {
        self.done(&Request::Resume)
    }

    fn load_adapter(&mut self, name: &str, folder: &Utf8Path) -> Reply<()> {
        self.done(&Request::LoadAdapter { name: name.to_owned(), folder: folder.to_owned() })
    }

    fn place_experts(&mut self, placement: &ExpertPlacement) -> Reply<()> {
        self.done(&Request::PlaceExperts { placement: placement.clone() })
    }

    fn claims(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        self.facts(&Request::Claims)
    }

    fn drain_claims(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        self.facts(&Request::DrainClaims)
    }

    fn shutdown(&mut self) {
        if self.ended.is_none() {
            // An engine that does not answer is killed when this is dropped.
            let _ = self.done(&Request::Shutdown);
        }
    }
}

impl Probe for ProcessEngine {
    fn allocator_log(&mut self) -> Reply<Vec<(Rank, Fact)>> {
        self.facts(&Request::AllocatorLog)
    }

    fn graph_nodes(&mut self) -> Reply<Vec<(Rank, NodeFact)>> {
        match self.ask(&Request::Census)? {
            Answer::Nodes { nodes } => Ok(nodes),
            other => Err(self.unexpected(&other)),
        }
    }

    fn launches(&mut self) -> Reply<Vec<(Rank, LaunchFact)>> {
        match self.ask(&Request::Launches)? {
            Answer::Launches { launches } => Ok(launches),
            other => Err(self.unexpected(&other)),
        }
    }

    fn read(&mut self, rank: Rank, range: ByteRange) -> Reply<Vec<u8>> {
        match self.ask(&Request::Read { rank, range })? {
            Answer::Bytes { bytes } if bytes.len() as u64 == range.bytes => Ok(bytes),
            other => Err(self.unexpected(&other)),
        }
    }

    fn write(&mut self, rank: Rank, address: Address, bytes: &[u8]) -> Reply<()> {
        self.done(&Request::Write { rank, address, bytes: bytes.to_vec() })
    }

    fn pressure(&mut self) -> Reply<()> {
        self.done(&Request::Pressure)
    }

    fn release_pressure(&mut self) -> Reply<()> {
        self.done(&Request::ReleasePressure)
    }

    fn read_back(&mut self, rank: Rank, requests: &[ReadBackRequest]) -> Reply<Vec<ReadBack>> {
        match self.ask(&Request::Digest { rank, requests: requests.to_vec() })? {
            Answer::ReadBacks { read_backs } => Ok(read_backs),
            other => Err(self.unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::documented;

    /// An engine that answers its first request so, then reads on and is killed.
    fn answering(answer: &str, then: &str) -> Reply<ProcessEngine> {
        let mut command = Command::new("sh");
        let script = format!("read line; printf '{answer}'; {then} kill -KILL $$");
        command.args(["-c", &script]);
        ProcessEngine::start(command, &documented::spec())
    }

    fn killed() -> EngineError {
        let text = "its process ended (signal: 9 (SIGKILL))".to_owned();
        EngineError::Died { text, kernel: None, address: None }
    }

    #[test]
    fn an_engine_that_dies_within_an_answer_has_died() {
        assert_eq!(answering(r#"{"answer":"do"#, "").unwrap_err(), killed());
    }

    #[test]
    fn an_answer_of_another_length_is_no_answer() {
        let outputs = r#"{"answer":"done"}\n{"answer":"outputs","outputs":[]}\n"#;
        let mut engine = answering(outputs, "read line;").unwrap();
        let asked = [documented::request()];
        assert!(engine.generate_batch(&asked).unwrap_err().to_string().contains("belong"));
        let bytes = r#"{"answer":"done"}\n{"answer":"bytes","bytes":[1]}\n"#;
        let mut engine = answering(bytes, "read line;").unwrap();
        let range = ByteRange { address: Address(16), bytes: 2 };
        assert!(engine.read(Rank::default(), range).unwrap_err().to_string().contains("belong"));
        let mut engine = answering(bytes, "read line;").unwrap();
        let range = ByteRange { address: Address(16), bytes: 1 };
        assert_eq!(engine.read(Rank::default(), range), Ok(vec![1]));
    }

    #[test]
    fn an_engine_that_dies_after_an_answer_gave_it() {
        let mut engine = answering(r#"{"answer":"done"}\n"#, "read line;").unwrap();
        assert_eq!(engine.pause().unwrap_err(), killed());
        assert_eq!(engine.pause().unwrap_err(), killed(), "it stays dead");
    }
}
