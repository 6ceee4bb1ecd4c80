//! `coldproof agent`: the embedded engine over the engine protocol, for a cold load in a process of
//! its own.

use coldproof_lanes::adapters::Reference;
use coldproof_lanes::engine::EngineUnderTest;
use coldproof_lanes::protocol::serve;

use crate::error::Failure;
use crate::exit::Exit;

pub(super) fn run() -> Result<Exit, Failure> {
    let start = |spec: &_| {
        Reference::start(spec).map(|engine| Box::new(engine) as Box<dyn EngineUnderTest>)
    };
    let mut input = std::io::stdin().lock();
    let mut output = std::io::stdout().lock();
    serve(&mut input, &mut output, &start).map_err(|error| {
        Failure::new(
            "protocol",
            "stdin",
            format!("the engine protocol broke off: {error}"),
            "this command is for coldproof itself; docs/adapters.md has the protocol",
        )
    })?;
    Ok(Exit::Proven)
}
