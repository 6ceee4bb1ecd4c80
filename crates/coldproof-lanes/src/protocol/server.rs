//! The engine's side: reads requests, asks the engine, writes answers.

use std::io::{BufRead, Write};
use std::time::Duration;

use super::{Answer, Request};
use crate::engine::{EngineError, EngineUnderTest, Reply, StartSpec};

/// Starts the engine when `initialize` arrives.
pub type Starter<'s> = dyn Fn(&StartSpec) -> Reply<Box<dyn EngineUnderTest>> + 's;

/// Serves until `shutdown` or the end of input.
///
/// # Errors
/// Input cannot be read or output cannot be written.
pub fn serve(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    start: &Starter<'_>,
) -> std::io::Result<()> {
    let mut engine: Option<Box<dyn EngineUnderTest>> = None;
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            break;
        }
        let request: Result<Request, _> = serde_json::from_str(&line);
        let last = matches!(request, Ok(Request::Shutdown));
        let answer = match request {
            Ok(request) => answer(request, &mut engine, start),
            Err(error) => refuse(&format!("not a request of the engine protocol: {error}")),
        };
        serde_json::to_writer(&mut *output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
        if last {
            break;
        }
    }
    if let Some(mut engine) = engine {
        engine.shutdown();
    }
    Ok(())
}

fn refuse(text: &str) -> Answer {
    Answer::Failed { error: EngineError::Refused { text: text.to_owned() } }
}

fn answer(
    request: Request,
    engine: &mut Option<Box<dyn EngineUnderTest>>,
    start: &Starter<'_>,
) -> Answer {
    if let Request::Initialize { spec } = &request {
        return match start(spec) {
            Ok(started) => {
                *engine = Some(started);
                Answer::Done
            }
            Err(error) => Answer::Failed { error },
        };
    }
    let Some(engine) = engine else { return refuse("`initialize` comes first") };
    dispatch(request, engine.as_mut()).unwrap_or_else(|error| Answer::Failed { error })
}

fn dispatch(request: Request, engine: &mut dyn EngineUnderTest) -> Reply<Answer> {
    let done = |()| Answer::Done;
    match request {
        Request::Initialize { .. } => Ok(refuse("`initialize` comes once")),
        Request::Capabilities => {
            engine.capabilities().map(|capabilities| Answer::Capabilities { capabilities })
        }
        Request::Deadline { ms } => engine.set_deadline(Duration::from_millis(ms)).map(done),
        Request::Load { tensors } => engine.load(&tensors).map(done),
        Request::Capture => engine.capture().map(done),
        Request::Generate { request } => {
            engine.generate(&request).map(|output| Answer::Output(output.into()))
        }
        Request::GenerateBatch { requests } => {
            let outputs = engine.generate_batch(&requests)?.into_iter().map(Into::into);
            Ok(Answer::Outputs { outputs: outputs.collect() })
        }
        Request::Pause => engine.pause().map(done),
        Request::Sleep { level } => engine.sleep(level).map(done),
        Request::Wake { tag } => engine.wake(tag).map(done),
        Request::Begin { required } => engine.begin(&required).map(|id| Answer::Transaction { id }),
        Request::BeginPartial { required, preserved } => {
            let begun = engine.begin_partial(&required, &preserved);
            begun.map(|id| Answer::Transaction { id })
        }
        Request::BeginKernel { required } => {
            engine.begin_kernel(&required).map(|id| Answer::Transaction { id })
        }
        Request::BeginWithAdapters { required, preserved, adapters } => {
            let begun = engine.begin_with_adapters(&required, &preserved, &adapters);
            begun.map(|id| Answer::Transaction { id })
        }
        Request::ApplyAdapter { name } => engine.apply_adapter(&name).map(done),
        Request::Apply { bucket } => engine.apply(&bucket).map(done),
        Request::Finish => engine.finish().map(done),
        Request::Commit => engine.commit().map(done),
        Request::Abort => engine.abort().map(done),
        Request::Invalidate => engine.invalidate().map(done),
        Request::Resume => engine.resume().map(done),
        Request::LoadAdapter { name, folder } => engine.load_adapter(&name, &folder).map(done),
        Request::PlaceExperts { placement } => engine.place_experts(&placement).map(done),
        Request::Claims => engine.claims().map(|facts| Answer::Facts { facts }),
        Request::DrainClaims => engine.drain_claims().map(|facts| Answer::Facts { facts }),
        Request::Shutdown => {
            engine.shutdown();
            Ok(Answer::Done)
        }
        probe => observe(probe, engine),
    }
}

fn observe(request: Request, engine: &mut dyn EngineUnderTest) -> Reply<Answer> {
    match request {
        Request::AllocatorLog => engine.allocator_log().map(|facts| Answer::Facts { facts }),
        Request::Census => engine.graph_nodes().map(|nodes| Answer::Nodes { nodes }),
        Request::Launches => engine.launches().map(|launches| Answer::Launches { launches }),
        Request::Read { rank, range } => {
            engine.read(rank, range).map(|bytes| Answer::Bytes { bytes })
        }
        Request::Write { rank, address, bytes } => {
            engine.write(rank, address, &bytes).map(|()| Answer::Done)
        }
        Request::Pressure => engine.pressure().map(|()| Answer::Done),
        Request::ReleasePressure => engine.release_pressure().map(|()| Answer::Done),
        Request::Digest { rank, requests } => {
            engine.read_back(rank, &requests).map(|read_backs| Answer::ReadBacks { read_backs })
        }
        _ => Ok(refuse("not a command")),
    }
}
