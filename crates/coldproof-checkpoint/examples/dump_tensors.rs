//! Prints every tensor of checkpoints as the reader sees it: directory, name, dtype, shape and the
//! BLAKE3 of its bytes, tab separated, by name. `testdata/verify_safetensors.py` compares this with
//! Python's reader.

use std::io::Write;

use camino::Utf8PathBuf;
use coldproof_checkpoint::Checkpoint;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for directory in std::env::args().skip(1).map(Utf8PathBuf::from) {
        let checkpoint = Checkpoint::open(&directory)?;
        for tensor in checkpoint.tensors().values() {
            let hash = blake3::hash(&tensor.read()?);
            let shape = serde_json::to_string(&tensor.shape)?;
            writeln!(out, "{directory}\t{}\t{}\t{shape}\t{hash}", tensor.name, tensor.dtype)?;
        }
        checkpoint.verify_unchanged()?;
    }
    Ok(())
}
