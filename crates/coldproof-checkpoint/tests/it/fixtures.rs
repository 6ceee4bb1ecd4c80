//! The committed checkpoints open, account cleanly, and read as the format's own crate reads them.

use coldproof_checkpoint::arch::{Catalogue, ModelConfig};
use coldproof_checkpoint::{Accounting, Checkpoint};
use safetensors::SafeTensors;

use crate::support::all_fixtures;

#[test]
fn every_fixture_opens_and_accounts_cleanly() {
    for (family, directory) in all_fixtures() {
        let checkpoint = Checkpoint::open(&directory).unwrap();
        let config = ModelConfig::read(&directory).unwrap();
        let catalogue = Catalogue::of(&config);
        let accounting = Accounting::of(&catalogue, checkpoint.tensors().values());
        assert!(accounting.is_clean(), "{directory}: {accounting:?}");
        assert_eq!(accounting.matched.len(), checkpoint.tensors().len(), "{directory}");
        assert!(accounting.redundant_alias.is_empty());
        assert_eq!(config.tied, ["gemma3", "gemma3_global", "llama_tied"].contains(&family));
        let model_type = match family {
            "deepseek_v3_mtp" | "deepseek_v3_yarn" => "deepseek_v3",
            "gemma3" | "gemma3_global" => "gemma3_text",
            "llama_tied" => "llama",
            other => other,
        };
        assert_eq!(config.family.model_type(), model_type);
        checkpoint.verify_unchanged().unwrap();
    }
}

#[test]
fn every_fixture_reads_as_the_reference_crate_reads_it() {
    for (_, directory) in all_fixtures() {
        let checkpoint = Checkpoint::open(&directory).unwrap();
        let mut seen = 0;
        for name in checkpoint.files().keys() {
            let whole = std::fs::read(directory.join(name)).unwrap();
            let theirs = SafeTensors::deserialize(&whole).unwrap();
            for (name, view) in theirs.tensors() {
                let ours = checkpoint.get(&name).unwrap();
                let shape: Vec<u64> = view.shape().iter().map(|&extent| extent as u64).collect();
                assert_eq!(ours.shape, shape);
                assert_eq!(ours.dtype.name(), view.dtype().to_string());
                assert_eq!(ours.read().unwrap(), view.data(), "{name}");
                seen += 1;
            }
        }
        assert_eq!(seen, checkpoint.tensors().len());
    }
}

#[test]
fn a_range_is_a_part_of_the_whole_and_nothing_beyond() {
    let (_, directory) = all_fixtures().swap_remove(0);
    let checkpoint = Checkpoint::open(&directory).unwrap();
    let tensor = checkpoint.get("model.norm.weight").unwrap();
    let whole = tensor.read().unwrap();
    let reader = tensor.open().unwrap();
    let mut part = [0; 10];
    reader.read_range(7, &mut part).unwrap();
    assert_eq!(part, whole[7..17]);
    let error = reader.read_range(tensor.bytes - 9, &mut part).unwrap_err();
    assert_eq!((error.code(), error.object()), ("range", "model.norm.weight"));
}
