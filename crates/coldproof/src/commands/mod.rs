//! A file a command.

mod agent;
mod check;
mod digest;
mod explain;
mod faults;
mod keys;
mod perturb;
mod prove;
mod sentinel;

use std::ffi::OsString;

use clap::error::ErrorKind::MissingSubcommand;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command, FaultsAction, FaultsRunArgs, Format};
use crate::error::Failure;
use crate::exit::Exit;
use crate::{interrupt, output};

const NO_COMMAND: &str = "a command is missing";

/// Runs one command line and prints its result. `own_command` starts this program again, where that
/// is not the running executable.
pub(crate) fn run(args: &[OsString], own_command: Option<Vec<OsString>>) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(args, &error),
    };
    let command = match (&cli.explain, &cli.command) {
        (Some(code), _) => {
            return explain::run(code).unwrap_or_else(|failure| report(&failure, Format::Text));
        }
        (None, Some(command)) => command,
        (None, None) => return usage(args, &Cli::command().error(MissingSubcommand, NO_COMMAND)),
    };
    let format = format(command);
    let result = match command {
        Command::Prove(args) => prove::run(args, &own_command),
        Command::Check(args) => check::run(args),
        Command::Keys(args) => keys::run(args),
        Command::Digest(args) => digest::run(args),
        Command::Perturb(args) => perturb::run(args),
        Command::Sentinel(args) => sentinel::run(args),
        Command::Faults { action } => faults::run(action, &own_command),
        Command::Completions { shell } => completions(*shell),
        Command::Man => man(),
        Command::Agent => agent::run(),
    };
    interrupt::hold();
    result.unwrap_or_else(|failure| report(&failure, format))
}

const fn format(command: &Command) -> Format {
    match command {
        Command::Prove(args) => args.format,
        Command::Check(args) => args.format,
        Command::Keys(args) => args.format,
        Command::Digest(args) => args.format,
        Command::Perturb(args) => args.format,
        Command::Sentinel(args) => args.format,
        Command::Faults {
            action: FaultsAction::List { format } | FaultsAction::Run(FaultsRunArgs { format, .. }),
        } => *format,
        Command::Completions { .. } | Command::Man | Command::Agent => Format::Text,
    }
}

fn report(failure: &Failure, format: Format) -> Exit {
    if format == Format::Json {
        // The exit code says the same where stdout cannot be written.
        let _ = output::print(&format!("{}\n", failure.json()));
    }
    anstream::eprint!("{}", output::failure(failure));
    Exit::Usage
}

/// Help and version go to stdout and end well; the rest is bad usage.
fn usage(args: &[OsString], error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        let printed = output::print(&error.render().ansi().to_string());
        return printed.map_or(Exit::Usage, |()| Exit::Proven);
    }
    let json = args.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json")
        || args.iter().any(|arg| arg == "--format=json");
    if json {
        let text = error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
        let hint = "`coldproof --help` lists the commands";
        let failure = Failure::usage("arguments", words.join(" "), hint);
        let _ = output::print(&format!("{}\n", failure.json()));
    }
    anstream::eprint!("{}", error.render().ansi());
    Exit::Usage
}

fn completions(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "coldproof", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Proven)
}

fn man() -> Result<Exit, Failure> {
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(Cli::command()).render(&mut text);
    page.map_err(|error| Failure::output("the manual page", &error))?;
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Proven)
}
