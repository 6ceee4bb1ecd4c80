//! Interruption: made checkpoints are removed, and the exit code is 130.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};

/// The folder to remove.
static SCRATCH: Mutex<Option<Utf8PathBuf>> = Mutex::new(None);

/// Whether the handler is at work.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Waits for the end where the run was interrupted: a run whose files are being removed fails, and
/// that failure is nobody's news.
pub(crate) fn hold() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Sees to it that an interrupted run leaves nothing in the temporary folder.
pub(crate) fn remove_on_interrupt(folder: &Utf8Path) {
    *SCRATCH.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.to_owned());
    // A second run in one process finds the handler there already.
    let _ = ctrlc::set_handler(|| {
        INTERRUPTED.store(true, Ordering::SeqCst);
        if let Some(folder) = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The run is over either way; what cannot be removed is the system's to clean.
            let _ = fs_err::remove_dir_all(folder);
        }
        exit();
    });
}

#[expect(clippy::exit, reason = "the handler runs beside the run that it ends")]
fn exit() -> ! {
    std::process::exit(130)
}
