//! Names of one storage: what is made from a checkpoint gives them one content, and a checkpoint
//! that gives them two is found.

use coldproof_checkpoint::arch::{Catalogue, ModelConfig, TiedSource};
use coldproof_checkpoint::{
    Accounting, Checkpoint, Layout, RedundantAlias, SentinelPlan, TensorSpec, perturb,
    perturb_apart, perturb_ulp, redundant_differs, rules_of, ties_of, with_alias, write_checkpoint,
};
use coldproof_contract::words::Dtype;

use crate::support::{Scratch, bytes_of, fixtures, spec, write};

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&fixtures().join(name)).unwrap()
}

/// A tied fixture whose head is there as well, equal to its embedding.
fn with_head(scratch: &Scratch, side: &str) -> Checkpoint {
    let out = scratch.path().join(format!("{side}-head"));
    with_alias(&open(&format!("llama_tied/{side}")), HEAD, EMBEDDING, &out).unwrap();
    Checkpoint::open(&out).unwrap()
}

fn bytes(of: &Checkpoint, name: &str) -> Vec<u8> {
    of.get(name).unwrap().read().unwrap()
}

/// Whether head and embedding hold the same bytes.
fn together(of: &Checkpoint) -> bool {
    bytes(of, HEAD) == bytes(of, EMBEDDING)
}

/// Whether some element of the embedding is as it was.
fn some_equal(one: &Checkpoint, other: &Checkpoint) -> bool {
    let (one, other) = (bytes(one, EMBEDDING), bytes(other, EMBEDDING));
    one.chunks(2).zip(other.chunks(2)).any(|(a, b)| a == b)
}

#[test]
fn ties_are_those_of_the_configuration_beside_the_weights() {
    let tied = ties_of(&open("llama_tied/A"));
    assert_eq!((tied[0].source.as_str(), tied[0].target.as_str()), (HEAD, EMBEDDING));
    assert!(ties_of(&open("llama/A")).is_empty());
    let scratch = Scratch::new();
    let tensor = spec("a", Dtype::U8, &[4]);
    let checkpoint = write(&scratch.path().join("A"), &[(tensor.clone(), bytes_of(&tensor))]);
    assert!(ties_of(&checkpoint).is_empty());
    scratch.put("A/config.json", br#"{"model_type": "gpt2", "tie_word_embeddings": true}"#);
    assert!(ties_of(&checkpoint).is_empty());
}

#[test]
fn a_redundant_head_moves_with_the_embedding() {
    let scratch = Scratch::new();
    let from = with_head(&scratch, "A");
    let made = |name: &str, ties: &[TiedSource]| {
        let out = scratch.path().join(name);
        perturb(&from, ties, &out, 3).unwrap();
        Checkpoint::open(&out).unwrap()
    };
    let tied = made("tied", &ties_of(&from));
    assert!(together(&tied) && !some_equal(&from, &tied));
    // Where nothing is tied, each name moves on its own.
    assert!(!together(&made("apart", &[])));
}

#[test]
fn a_tie_of_another_shape_is_none() {
    let scratch = Scratch::new();
    let (head, embedding) = (spec(HEAD, Dtype::F32, &[3]), spec(EMBEDDING, Dtype::F32, &[4]));
    let tensors = [head, embedding].map(|spec| (spec.clone(), bytes_of(&spec)));
    let from = write(&scratch.path().join("A"), &tensors);
    perturb(&from, &tie(Dtype::F32, 4), &scratch.path().join("B"), 3).unwrap();
    let b = Checkpoint::open(&scratch.path().join("B")).unwrap();
    assert_ne!(bytes(&b, HEAD), bytes(&from, HEAD));
}

/// The head tied to the embedding.
fn tie(dtype: Dtype, elements: u64) -> [TiedSource; 1] {
    let (source, target) = (HEAD.to_owned(), EMBEDDING.to_owned());
    [TiedSource { source, target, dtype, shape: vec![elements] }]
}

#[test]
fn an_ulp_of_the_embedding_is_one_of_the_head_too() {
    let scratch = Scratch::new();
    let content: Vec<u8> = (0..9_u16).flat_map(|i| (0x3f80 + i).to_le_bytes()).collect();
    let tensors = [HEAD, EMBEDDING].map(|name| (spec(name, Dtype::Bf16, &[9]), content.clone()));
    let from = write(&scratch.path().join("A"), &tensors);
    for seed in 0..8 {
        let made = |name: &str, ties: &[TiedSource]| {
            let out = scratch.path().join(format!("{seed}-{name}"));
            let moved = perturb_ulp(&from, ties, &out, seed).unwrap();
            (moved, Checkpoint::open(&out).unwrap())
        };
        let (moved, tied) = made("tied", &tie(Dtype::Bf16, 9));
        assert_eq!(moved.tensor, EMBEDDING);
        assert!(together(&tied) && bytes(&tied, HEAD) != content);
        assert!(!together(&made("apart", &[]).1));
    }
}

#[test]
fn a_head_in_one_of_the_pair_alone_makes_no_difference() {
    let scratch = Scratch::new();
    let (a, b) = (open("llama_tied/A"), open("llama_tied/B"));
    let (head_a, head_b) = (with_head(&scratch, "A"), with_head(&scratch, "B"));
    let catalogue = Catalogue::of(&ModelConfig::read(b.directory()).unwrap());
    let rules = rules_of(&catalogue, &b);
    for (n, (a, b)) in
        [(&a, &head_b), (&head_a, &b), (&head_a, &head_b), (&a, &b)].into_iter().enumerate()
    {
        let out = scratch.path().join(n.to_string());
        perturb_apart((a, &rules), (b, &rules), &catalogue.tied, &out, 5).unwrap();
        let p = Checkpoint::open(&out).unwrap();
        assert!(p.tensors().keys().eq(b.tensors().keys()));
        assert!(!some_equal(a, &p) && !some_equal(b, &p));
        assert!(p.get(HEAD).is_none() || together(&p));
    }
    // Without ties, the head is a tensor that the other lacks.
    let out = scratch.path().join("P");
    let error = perturb_apart((&a, &rules), (&head_b, &rules), &[], &out, 5).unwrap_err();
    assert_eq!((error.code(), error.object()), ("pair-differs", HEAD));
}

#[test]
fn sentinels_of_a_redundant_head_are_the_embeddings() {
    let scratch = Scratch::new();
    let from = with_head(&scratch, "A");
    let plan = SentinelPlan::of(&from).unwrap();
    let written = |name: &str, ties: &[TiedSource]| {
        let out = scratch.path().join(name);
        plan.write(&from, ties, &out).unwrap();
        (0..plan.digits())
            .map(|digit| Checkpoint::open(&out.join(digit.to_string())).unwrap())
            .collect::<Vec<_>>()
    };
    let loads: Vec<Vec<u8>> = written("tied", &ties_of(&from))
        .iter()
        .map(|load| {
            assert!(together(load));
            bytes(load, HEAD)
        })
        .collect();
    let embedding = plan.index_of(EMBEDDING).unwrap();
    let origins = plan.decode_slot(Dtype::Bf16, &loads);
    assert!((0..).zip(origins).all(|(element, origin)| {
        origin.is_some_and(|o| (o.source, o.element) == (embedding, element))
    }));
    assert!(written("apart", &[]).iter().any(|load| !together(load)));
}

#[test]
fn a_redundant_head_of_other_content_is_found() {
    let scratch = Scratch::new();
    let from = with_head(&scratch, "A");
    let catalogue = Catalogue::of(&ModelConfig::read(from.directory()).unwrap());
    let found = |checkpoint: &Checkpoint| {
        let accounting = Accounting::of(&catalogue, checkpoint.tensors().values());
        assert!(accounting.is_clean());
        redundant_differs(checkpoint, &accounting).unwrap()
    };
    assert_eq!(found(&from), []);
    assert_eq!(found(&open("llama_tied/A")), []);
    let specs: Vec<TensorSpec> = from.tensors().values().map(TensorSpec::from).collect();
    let out = scratch.path().join("other");
    write_checkpoint(&out, &Layout::single(specs), |spec| {
        let mut bytes = from.get(&spec.name).unwrap().read()?;
        if spec.name == HEAD {
            bytes[7] ^= 1;
        }
        Ok(bytes)
    })
    .unwrap();
    let alias = RedundantAlias { source: HEAD.to_owned(), target: EMBEDDING.to_owned() };
    assert_eq!(found(&Checkpoint::open(&out).unwrap()), [alias]);
}

/// Longer than one read.
#[test]
fn the_last_byte_of_a_long_head_is_compared() {
    let scratch = Scratch::new();
    let alias = RedundantAlias { source: HEAD.to_owned(), target: EMBEDDING.to_owned() };
    let accounting = Accounting { redundant_alias: vec![alias.clone()], ..Accounting::default() };
    let length = 600_001_usize;
    for last in [0, 1] {
        let mut head = vec![0; length];
        head[length - 1] = last;
        let spec = |name: &str| spec(name, Dtype::U8, &[length as u64]);
        let tensors = [(spec(HEAD), head), (spec(EMBEDDING), vec![0; length])];
        let checkpoint = write(&scratch.path().join(last.to_string()), &tensors);
        let expected = if last == 0 { vec![] } else { vec![alias.clone()] };
        assert_eq!(redundant_differs(&checkpoint, &accounting).unwrap(), expected);
    }
}
