//! Starting programs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// `cargo` in the checkout, by the cargo that started this task.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    command
}

/// Runs to the end; a failure names the program and its arguments.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let text = spoken(command);
    eprintln!("$ {text}");
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    if status.success() { Ok(()) } else { bail!("`{text}` failed ({status})") }
}

/// As [`run`], ended after `limit`. Returns the time that it took.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<Duration> {
    let text = spoken(command);
    eprintln!("$ {text}");
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start `{text}`"))?;
    loop {
        if let Some(status) = child.try_wait().with_context(|| format!("`{text}` is lost"))? {
            if status.success() {
                return Ok(begin.elapsed());
            }
            bail!("`{text}` failed ({status})");
        }
        if begin.elapsed() > limit {
            // A process that is gone already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
            bail!("`{text}` was ended after {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What it prints to stdout; nothing where it fails or is not there.
pub(crate) fn output(command: &mut Command) -> Option<Vec<u8>> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// The command as it would be typed; the program without its folder.
fn spoken(command: &Command) -> String {
    let path = Path::new(command.get_program());
    let program = path.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
