//! Some tensors of one checkpoint and all others of another: what a partial update makes up.

use camino::Utf8Path;

use crate::companions::copy_companions;
use crate::container::{Checkpoint, Layout, write_checkpoint};
use crate::error::{CheckpointError, Fault};

/// Writes the tensors of `to`, those for which `is_new` says no with the bytes of `from`.
///
/// # Errors
/// A file that cannot be read or written, a tensor that `from` has not, or a checkpoint that
/// changed meanwhile.
pub fn mix(
    from: &Checkpoint,
    to: &Checkpoint,
    is_new: impl Fn(&str) -> bool,
    out: &Utf8Path,
) -> Result<(), CheckpointError> {
    write_checkpoint(out, &Layout::like(to), |spec| {
        let of = if is_new(&spec.name) { to } else { from };
        let absent = || Fault::PairDiffers { what: "one of the two has it alone".to_owned() };
        let lost = || CheckpointError::tensor(of.directory(), &spec.name, absent());
        of.get(&spec.name).ok_or_else(lost)?.read()
    })?;
    copy_companions(to.directory(), out)?;
    from.verify_unchanged()?;
    to.verify_unchanged()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::TensorSpec;
    use coldproof_contract::words::Dtype;

    fn checkpoint(folder: &Utf8Path, fill: u8) -> Checkpoint {
        let spec =
            |name: &str| TensorSpec { name: name.to_owned(), dtype: Dtype::Bf16, shape: vec![2] };
        let layout = Layout::single(vec![spec("a"), spec("b")]);
        write_checkpoint(folder, &layout, |_| Ok(vec![fill; 4])).unwrap();
        Checkpoint::open(folder).unwrap()
    }

    #[test]
    fn each_tensor_has_the_bytes_of_one_of_the_two() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let (from, to) = (checkpoint(&folder.join("A"), 1), checkpoint(&folder.join("B"), 2));
        mix(&from, &to, |name| name == "b", &folder.join("M")).unwrap();
        let mixed = Checkpoint::open(&folder.join("M")).unwrap();
        let bytes = |name: &str| mixed.get(name).unwrap().read().unwrap();
        assert_eq!((bytes("a"), bytes("b")), (vec![1; 4], vec![2; 4]));
    }
}
