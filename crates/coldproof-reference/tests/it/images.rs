//! Images: the same rows at every topology, caches by content, and what is no image of the model.

use std::collections::BTreeMap;

use coldproof_contract::evidence::{CacheFact, Fact, RequestStage};
use coldproof_contract::words::Generation;
use coldproof_reference::engine::{Engine, GenerateRequest, Image, Mode};
use coldproof_reference::faults::{FaultId, Variant};

use crate::fixtures::{
    Bits, IMAGE_TOKEN, addresses, bits, config, image, loaded, request, rows, tensors, update,
    update_paused, with_fault, with_image,
};

const MODEL: &str = "llava";

fn engine() -> Engine {
    loaded(config(MODEL, 1), MODEL, "A")
}

fn shown(mode: Mode) -> GenerateRequest {
    with_image(request(mode))
}

fn answer(engine: &mut Engine, request: &GenerateRequest) -> Bits {
    bits(&engine.generate(request).unwrap().rows)
}

/// What the engine says of its caches, by name. Hits are those since it was last asked.
fn caches(engine: &mut Engine) -> BTreeMap<String, CacheFact> {
    let facts = engine.claims().unwrap().into_iter();
    let caches = facts.filter_map(|(_, fact)| match fact {
        Fact::Cache(cache) => Some((cache.cache.clone(), cache)),
        _ => None,
    });
    caches.collect()
}

#[test]
fn a_request_with_an_image_has_the_same_bits_at_every_topology_and_mode() {
    let alone = answer(&mut engine(), &shown(Mode::Eager));
    let other = GenerateRequest { images: vec![image(1, 5)], ..shown(Mode::Eager) };
    assert_ne!(answer(&mut engine(), &other), alone, "the image is read");
    for tp in [1, 2, 4] {
        let mut engine = loaded(config(MODEL, tp), MODEL, "A");
        engine.capture().unwrap();
        for mode in [Mode::Eager, Mode::Graph] {
            assert_eq!(answer(&mut engine, &shown(mode)), alone, "tp {tp} {mode:?}");
        }
    }
}

#[test]
fn a_tower_that_the_ranks_divide_is_cut_and_has_the_bits_of_one_that_is_not() {
    // The weights of three heads of 32 are those of four of 24.
    let four = |tp| {
        let mut config = config(MODEL, tp);
        config.model.vision.as_mut().unwrap().heads = 4;
        config
    };
    let bytes = |engine: &mut Engine| {
        let name = "vision_tower.vision_model.encoder.layers.0.self_attn.qkv_proj.weight";
        let slots = crate::fixtures::slots(engine);
        slots.iter().find(|(_, slot)| slot.slot.0 == name).unwrap().1.logical_shape.clone()
    };
    let mut one = loaded(four(1), MODEL, "A");
    let alone = answer(&mut one, &shown(Mode::Eager));
    assert_ne!(alone, answer(&mut engine(), &shown(Mode::Eager)));
    for (tp, heads) in [(2, 2), (4, 1)] {
        let mut engine = loaded(four(tp), MODEL, "A");
        assert_eq!(bytes(&mut engine), [3 * heads * 24, 96], "tp {tp}");
        assert_eq!(answer(&mut engine, &shown(Mode::Eager)), alone, "tp {tp}");
    }
    let mut whole = loaded(config(MODEL, 2), MODEL, "A");
    assert_eq!(bytes(&mut whole), [3 * 96, 96], "three heads on two ranks");
}

#[test]
fn the_second_request_with_an_image_runs_no_encoder() {
    let mut engine = engine();
    let cached = GenerateRequest { use_encoder_cache: true, ..shown(Mode::Eager) };
    let plain = answer(&mut engine, &shown(Mode::Eager));
    let uncached = rows(&mut engine);
    assert!(
        uncached[&Some(RequestStage::Encoder)] > 0 && uncached[&Some(RequestStage::Processor)] > 0
    );
    answer(&mut engine, &shown(Mode::Eager));
    assert_eq!(rows(&mut engine), uncached, "a request that takes nothing leaves nothing");
    assert_eq!(answer(&mut engine, &cached), plain);
    assert_eq!(rows(&mut engine), uncached);
    assert_eq!(answer(&mut engine, &cached), plain);
    let again = rows(&mut engine);
    assert_eq!(again.keys().collect::<Vec<_>>(), [&None], "no stage but the model");
    assert_eq!(again[&None], uncached[&None], "the model computed every row");
    let other = GenerateRequest { images: vec![image(1, 5)], ..cached };
    answer(&mut engine, &other);
    assert_eq!(rows(&mut engine), uncached, "another image is another entry");
    let caches = caches(&mut engine);
    let (encoder, processor) = (&caches["encoder"], &caches["processor"]);
    assert_eq!((encoder.entries, encoder.hits), (2, 1));
    assert_eq!((processor.entries, processor.hits), (2, 1));
    assert!(processor.version.is_some());
}

#[test]
fn an_update_empties_the_encoders_cache_and_leaves_the_processors() {
    let cached = GenerateRequest { use_encoder_cache: true, ..shown(Mode::Eager) };
    let cold = answer(&mut loaded(config(MODEL, 1), MODEL, "B"), &cached);
    for (variant, stale) in
        [(None, false), (Some(Variant::Twin), false), (Some(Variant::Faulty), true)]
    {
        let base = config(MODEL, 1);
        let base = variant.map_or(base.clone(), |v| with_fault(base, FaultId::F7_03, v));
        let mut engine = loaded(base, MODEL, "A");
        answer(&mut engine, &cached);
        rows(&mut engine);
        update(&mut engine, &tensors(MODEL, "B")).unwrap();
        let encoder = &caches(&mut engine)["encoder"];
        assert_eq!((encoder.generation, encoder.entries), (Generation(2), u64::from(stale)));
        assert_eq!(answer(&mut engine, &cached) != cold, stale, "{variant:?}");
        let rows = rows(&mut engine);
        assert_eq!(rows.contains_key(&Some(RequestStage::Encoder)), !stale, "{variant:?}");
        assert!(
            !rows.contains_key(&Some(RequestStage::Processor)),
            "{variant:?}: no weight made it"
        );
    }
}

#[test]
fn what_slept_is_computed_again() {
    let mut engine = engine();
    let cached = GenerateRequest { use_encoder_cache: true, ..shown(Mode::Eager) };
    let plain = answer(&mut engine, &cached);
    engine.pause().unwrap();
    engine.sleep(1).unwrap();
    engine.wake("weights").unwrap();
    engine.wake("kv_cache").unwrap();
    engine.resume().unwrap();
    rows(&mut engine);
    assert_eq!(answer(&mut engine, &cached), plain);
    assert!(rows(&mut engine).contains_key(&Some(RequestStage::Encoder)));
}

#[test]
fn two_images_behind_the_same_tokens_share_no_keys_and_values() {
    let mut engine = engine();
    let prefixed = |first: usize| GenerateRequest {
        use_prefix_cache: true,
        images: vec![image(1, first)],
        ..shown(Mode::Eager)
    };
    let plain = |first: usize| GenerateRequest { use_prefix_cache: false, ..prefixed(first) };
    let (one, other) = (answer(&mut engine, &plain(3)), answer(&mut engine, &plain(4)));
    assert_ne!(one, other);
    rows(&mut engine);
    assert_eq!(answer(&mut engine, &prefixed(3)), one);
    let full = rows(&mut engine)[&None];
    assert_eq!(answer(&mut engine, &prefixed(4)), other);
    assert_eq!(rows(&mut engine)[&None], full, "no block of the first image was taken");
    assert_eq!(answer(&mut engine, &prefixed(3)), one);
    let again = rows(&mut engine);
    assert!(again[&None] < full);
    assert!(!again.contains_key(&Some(RequestStage::Encoder)), "two blocks hold all of the image");
}

#[test]
fn a_prefix_that_ends_within_an_image_leaves_the_rest_of_its_rows() {
    let mut engine = engine();
    // One block is known of this prompt: its first token and fifteen rows of the image.
    let mut short = GenerateRequest { use_prefix_cache: true, ..shown(Mode::Eager) };
    short.prompt.truncate(20);
    let plain = GenerateRequest { use_prefix_cache: false, ..short.clone() };
    let plain = answer(&mut engine, &plain);
    assert_eq!(answer(&mut engine, &short), plain);
    rows(&mut engine);
    assert_eq!(answer(&mut engine, &short), plain);
    let again = rows(&mut engine);
    assert!(again.contains_key(&Some(RequestStage::Encoder)), "its last row is not in the block");
}

#[test]
fn requests_of_a_batch_have_their_own_images() {
    let mut engine = engine();
    let mut requests = [shown(Mode::Eager), request(Mode::Eager), shown(Mode::Eager)];
    for (index, request) in requests.iter_mut().enumerate() {
        request.name = format!("r{index}");
    }
    requests[2].images = vec![image(1, 9)];
    let alone = requests.each_ref().map(|request| answer(&mut engine, request));
    let together = engine.generate_batch(&requests).unwrap();
    let together: Vec<Bits> = together.iter().map(|output| bits(&output.rows)).collect();
    assert_eq!(together, alone);
}

#[test]
fn the_encoders_cache_stays_where_it_is() {
    let mut engine = engine();
    let before = addresses(&mut engine);
    update(&mut engine, &tensors(MODEL, "B")).unwrap();
    assert_eq!(addresses(&mut engine), before);
    assert!(before.keys().any(|(_, name)| name == "vision_tower/encoder_cache"));
}

#[test]
fn either_spelling_is_loaded_and_both_are_not() {
    let nested = |name: &str| match name.strip_prefix("language_model.") {
        Some(text) => match text.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => text.to_owned(),
        },
        None => format!("model.{name}"),
    };
    let spelled = |label: &str| {
        let mut tensors = tensors(MODEL, label);
        tensors.iter_mut().for_each(|tensor| tensor.name = nested(&tensor.name));
        tensors
    };
    let plain = answer(&mut loaded(config(MODEL, 1), MODEL, "B"), &shown(Mode::Eager));
    let mut engine = engine();
    update(&mut engine, &spelled("B")).unwrap();
    assert_eq!(answer(&mut engine, &shown(Mode::Eager)), plain);
    let both = [tensors(MODEL, "B"), spelled("B")].concat();
    engine.pause().unwrap();
    let error = update_paused(&mut engine, &both).unwrap_err().to_string();
    assert!(error.contains("send one spelling of each source"), "{error}");
}

#[test]
fn what_is_no_image_of_the_model_is_refused() {
    let mut engine = engine();
    let with = |images: Vec<Image>| GenerateRequest { images, ..shown(Mode::Eager) };
    let cut = Image { pixels: vec![0; 3071], ..image(1, 0) };
    let turned = Image { shape: [32, 32, 3], ..image(1, 0) };
    let cases = [
        (with(vec![cut]), "is 3071 bytes of shape [3, 32, 32]"),
        (with(vec![turned]), "of shape [32, 32, 3]; this model takes [3, 32, 32]"),
        (with(vec![image(0, 0)]), "the image at 0 of request `fixed` needs 16 tokens 330"),
        (with(vec![image(40, 0)]), "the image at 40"),
        (with(vec![image(1, 0), image(1, 1)]), "the image at 1"),
    ];
    for (request, part) in cases {
        let error = engine.generate(&request).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let mut many = GenerateRequest { use_encoder_cache: true, ..request(Mode::Eager) };
    many.prompt = vec![IMAGE_TOKEN; 144];
    many.images = (0..9).map(|index| image(16 * index, index as usize)).collect();
    let error = engine.generate(&many).unwrap_err().to_string();
    assert!(error.contains("holds 8 images and none is free"), "{error}");
    let plain = answer(&mut engine, &shown(Mode::Eager));
    many.images.pop();
    engine.generate(&many).unwrap();
    assert_eq!(answer(&mut engine, &shown(Mode::Eager)), plain, "what was held was given back");
    let mut llama = loaded(config("llama", 1), "llama", "A");
    assert!(llama.generate(&shown(Mode::Eager)).unwrap_err().to_string().contains("takes none"));
}
