//! Perturbed checkpoints: every element moves, deterministically, or exactly one by one ulp.

use coldproof_checkpoint::arch::{Catalogue, ModelConfig, SpellingName};
use coldproof_checkpoint::{
    Checkpoint, Layout, TensorSpec, perturb, perturb_apart, perturb_ulp, respell, rules_in,
    rules_of, ties_of, write_checkpoint,
};
use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::Dtype;
use half::bf16;

use crate::support::{Scratch, all_fixtures, bytes_of, fixtures, spec, write};

/// Elements of two checkpoints that are equal in every bit.
fn equal_elements(a: &Checkpoint, b: &Checkpoint) -> u64 {
    assert_eq!(a.tensors().len(), b.tensors().len());
    let mut equal = 0;
    for tensor in a.tensors().values() {
        let width = tensor.dtype.bytes() as usize;
        let (ours, theirs) = (tensor.read().unwrap(), b.get(&tensor.name).unwrap().read().unwrap());
        assert_eq!(ours.len(), theirs.len());
        let pairs = ours.chunks(width).zip(theirs.chunks(width));
        equal += pairs.filter(|(a, b)| a == b).count() as u64;
    }
    equal
}

#[test]
fn every_element_moves_a_little_and_stays_finite() {
    for (_, directory) in all_fixtures() {
        let a = Checkpoint::open(&directory).unwrap();
        let scratch = Scratch::new();
        let out = scratch.path().join("B");
        perturb(&a, &[], &out, 7).unwrap();
        let b = Checkpoint::open(&out).unwrap();
        assert_eq!(equal_elements(&a, &b), 0);
        assert!(a.files().keys().eq(b.files().keys()));
        for name in ["config.json", "generation_config.json"] {
            let read = |at: &Checkpoint| std::fs::read(at.directory().join(name)).unwrap();
            assert_eq!(read(&a), read(&b));
        }
        for tensor in a.tensors().values() {
            let values = |checkpoint: &Checkpoint| -> Vec<f64> {
                let bytes = checkpoint.get(&tensor.name).unwrap().read().unwrap();
                let (pairs, _) = bytes.as_chunks::<2>();
                pairs.iter().map(|&pair| f64::from(bf16::from_le_bytes(pair))).collect()
            };
            let (old, new) = (values(&a), values(&b));
            let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
            let moved = norm(&mut old.iter().zip(&new).map(|(a, b)| a - b));
            let relative = moved / norm(&mut old.iter().copied());
            assert!((5e-4..1e-2).contains(&relative), "{}: {relative}", tensor.name);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let a = Checkpoint::open(&fixtures().join("llama/A")).unwrap();
    let scratch = Scratch::new();
    let made = |name: &str, seed| {
        let out = scratch.path().join(name);
        perturb(&a, &[], &out, seed).unwrap();
        std::fs::read(out.join("model.safetensors")).unwrap()
    };
    let first = made("1", 1);
    assert_eq!(first, made("2", 1));
    assert_ne!(first, made("3", 2));
}

#[test]
fn odd_values_of_every_dtype_move_and_end_finite() {
    let floats = [0.0, -0.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-45];
    let f32s: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    let zeros = spec("zeros", Dtype::Bf16, &[40]);
    let every = |name: &str, dtype| (spec(name, dtype, &[256]), (0..=255).collect::<Vec<u8>>());
    let tensors = [
        (spec("floats", Dtype::F32, &[8]), f32s),
        (zeros, vec![0; 80]),
        every("e4m3", Dtype::F8E4M3),
        every("e5m2", Dtype::F8E5M2),
        every("e8m0", Dtype::F8E8M0),
        every("i8", Dtype::I8),
        (spec("flags", Dtype::Bool, &[2]), vec![0, 1]),
        (spec("empty", Dtype::Bf16, &[0]), vec![]),
    ];
    let scratch = Scratch::new();
    let a = write(&scratch.path().join("A"), &tensors);
    perturb(&a, &[], &scratch.path().join("B"), 3).unwrap();
    let b = Checkpoint::open(&scratch.path().join("B")).unwrap();
    assert_eq!(equal_elements(&a, &b), 0);
    let read = |name: &str| b.get(name).unwrap().read().unwrap();
    let floats = read("floats");
    let (floats, _) = floats.as_chunks::<4>();
    assert!(floats.iter().all(|&bytes| f32::from_le_bytes(bytes).is_finite()));
    assert!(
        read("zeros")
            .as_chunks::<2>()
            .0
            .iter()
            .all(|&bits| bf16::from_le_bytes(bits).to_f32() != 0.0)
    );
    assert!(read("e4m3").iter().all(|bits| bits & 0x7f != 0x7f));
    assert!(read("e8m0").iter().all(|&bits| bits != 0xff));
    assert_eq!(read("flags"), [1, 0]);
}

#[test]
fn a_third_checkpoint_differs_from_both() {
    let open = |side: &str| Checkpoint::open(&fixtures().join("qwen3_moe").join(side)).unwrap();
    let (a, b) = (open("A"), open("B"));
    let scratch = Scratch::new();
    let out = scratch.path().join("P");
    perturb_apart((&a, &[]), (&b, &[]), &[], &out, 5).unwrap();
    let p = Checkpoint::open(&out).unwrap();
    assert_eq!((equal_elements(&a, &p), equal_elements(&b, &p)), (0, 0));
    // Even from neighbours of B, where a single step would land on A.
    let tensor = spec("w", Dtype::Bf16, &[512]);
    let low: Vec<u8> = (0..512_u16).flat_map(|i| (0x3f80 + i).to_le_bytes()).collect();
    for step in [1_i16, -1] {
        let near = (0..512_u16).flat_map(|i| (0x3f80 + i).wrapping_add_signed(step).to_le_bytes());
        let scratch = Scratch::new();
        let b = write(&scratch.path().join("B"), &[(tensor.clone(), low.clone())]);
        let a = write(&scratch.path().join("A"), &[(tensor.clone(), near.collect())]);
        perturb_apart((&a, &[]), (&b, &[]), &[], &scratch.path().join("P"), 5).unwrap();
        let p = Checkpoint::open(&scratch.path().join("P")).unwrap();
        assert_eq!((equal_elements(&a, &p), equal_elements(&b, &p)), (0, 0));
    }
}

fn catalogue(of: &Checkpoint) -> Catalogue {
    Catalogue::of(&ModelConfig::read(of.directory()).unwrap())
}

fn rules(of: &Checkpoint) -> Vec<SourceRule> {
    rules_of(&catalogue(of), of)
}

/// The usual rules; those of all experts, or of the first layer's alone, fused.
fn spelled(catalogue: &Catalogue) -> [Vec<SourceRule>; 3] {
    let usual: Vec<SourceRule> = catalogue.usual_rules().cloned().collect();
    let fused = rules_in(catalogue, SpellingName::Fused).unwrap();
    let first = |rule: &&SourceRule| rule.slot.0.starts_with("model.layers.0.mlp.experts");
    let half = usual.iter().filter(|rule| !first(rule)).chain(fused.iter().filter(first));
    let half = half.cloned().collect();
    [usual, fused, half]
}

#[test]
fn a_third_checkpoint_differs_from_both_whatever_their_spellings() {
    let original = Checkpoint::open(&fixtures().join("qwen3_moe/B")).unwrap();
    let spelled = spelled(&catalogue(&original));
    let scratch = Scratch::new();
    let made = |from: &Checkpoint, rules: &[SourceRule], name: &str| {
        let out = scratch.path().join(name);
        respell(from, &self::rules(from), rules, &out).unwrap();
        Checkpoint::open(&out).unwrap()
    };
    for (i, of_b) in spelled.iter().enumerate() {
        let b = made(&original, of_b, &format!("{i}-B"));
        // With the same seed, P would be this very checkpoint if A were not looked at.
        let near = scratch.path().join(format!("{i}-near"));
        perturb(&b, &[], &near, 5).unwrap();
        let near = Checkpoint::open(&near).unwrap();
        for (j, of_a) in spelled.iter().enumerate() {
            let a = made(&near, of_a, &format!("{i}-{j}-A"));
            let out = scratch.path().join(format!("{i}-{j}-P"));
            perturb_apart((&a, of_a), (&b, of_b), &[], &out, 5).unwrap();
            let p = Checkpoint::open(&out).unwrap();
            assert!(p.tensors().keys().eq(b.tensors().keys()));
            assert_eq!((equal_elements(&near, &p), equal_elements(&b, &p)), (0, 0), "{i} {j}");
        }
    }
}

#[test]
fn a_spelling_that_lacks_one_expert_is_no_pair() {
    let b = Checkpoint::open(&fixtures().join("qwen3_moe/B")).unwrap();
    let [usual, fused, _] = spelled(&catalogue(&b));
    let scratch = Scratch::new();
    let whole = scratch.path().join("fused");
    respell(&b, &usual, &fused, &whole).unwrap();
    let whole = Checkpoint::open(&whole).unwrap();
    let gone = "model.layers.0.mlp.experts.1.up_proj.weight";
    let specs = b.tensors().values().map(TensorSpec::from).filter(|spec| spec.name != gone);
    let lacking = scratch.path().join("lacking");
    write_checkpoint(&lacking, &Layout::single(specs.collect()), |spec| {
        b.get(&spec.name).unwrap().read()
    })
    .unwrap();
    let lacking = Checkpoint::open(&lacking).unwrap();
    for (n, (one, other)) in
        [((&lacking, &usual), (&whole, &fused)), ((&whole, &fused), (&lacking, &usual))]
            .into_iter()
            .enumerate()
    {
        let out = scratch.path().join(n.to_string());
        let error = perturb_apart((one.0, one.1), (other.0, other.1), &[], &out, 5).unwrap_err();
        let object = "model.layers.0.mlp.experts.gate_up_proj";
        assert_eq!((error.code(), error.object()), ("pair-differs", object));
        assert!(!out.exists());
    }
}

#[test]
fn two_models_are_no_pair() {
    let open = |name: &str| Checkpoint::open(&fixtures().join(name)).unwrap();
    let (a, b) = (open("llama/A"), open("llama_tied/B"));
    let scratch = Scratch::new();
    let out = scratch.path().join("P");
    let error =
        perturb_apart((&a, &rules(&a)), (&b, &rules(&b)), &ties_of(&b), &out, 5).unwrap_err();
    assert_eq!((error.code(), error.object()), ("pair-differs", "lm_head.weight"));
}

#[test]
fn an_ulp_moves_exactly_one_element_and_names_it() {
    let a = Checkpoint::open(&fixtures().join("qwen3/A")).unwrap();
    let total: u64 = a.tensors().values().map(|tensor| tensor.elements()).sum();
    let scratch = Scratch::new();
    for seed in 0..8 {
        let out = scratch.path().join(seed.to_string());
        let step = perturb_ulp(&a, &[], &out, seed).unwrap();
        let b = Checkpoint::open(&out).unwrap();
        assert_eq!(equal_elements(&a, &b), total - 1, "seed {seed}");
        let bits = |checkpoint: &Checkpoint| {
            let bytes = checkpoint.get(&step.tensor).unwrap().read().unwrap();
            u64::from(u16::from_le_bytes(bytes.as_chunks::<2>().0[step.element as usize]))
        };
        assert_eq!((bits(&a), bits(&b)), (step.before, step.after));
        assert_eq!(step.before.abs_diff(step.after), 1);
    }
}

#[test]
fn nothing_can_move_in_a_checkpoint_without_elements() {
    let scratch = Scratch::new();
    let empty = spec("empty", Dtype::Bf16, &[0]);
    let bytes = bytes_of(&empty);
    let a = write(&scratch.path().join("A"), &[(empty, bytes)]);
    let error = perturb_ulp(&a, &[], &scratch.path().join("B"), 1).unwrap_err();
    assert_eq!(error.code(), "nothing-to-change");
}
