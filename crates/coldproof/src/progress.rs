//! Progress on a terminal; nothing elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use coldproof_lanes::recorder::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// One line that says what is going on.
#[derive(Debug)]
pub(crate) struct Spinner {
    bar: ProgressBar,
}

impl Spinner {
    /// Shown only where stderr is a terminal.
    #[must_use]
    pub(crate) fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    /// Says what is going on outside the lanes.
    pub(crate) fn say(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Spinner {
    fn step(&self, arm: &str, step: &str) {
        self.bar.set_message(format!("{arm}: {step}"));
    }

    fn note(&self, text: &str) {
        let text = text.to_owned();
        self.bar.suspend(|| anstream::eprintln!("{text}"));
    }
}
