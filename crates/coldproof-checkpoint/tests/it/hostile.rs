//! Every fault of a checkpoint has its own name and one clear line; its sound twin opens.

use std::os::unix::fs::MetadataExt;

use camino::Utf8Path;
use coldproof_checkpoint::Checkpoint;
use coldproof_checkpoint::arch::ModelConfig;

use crate::support::{Scratch, entry, file};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A sound file of one tensor of four bytes.
fn sound(name: &str) -> Vec<u8> {
    file(&format!("{{{}}}", entry(name, "BF16", "[2]", 0, 4)), 4)
}

/// The fault of a single file with this header and that many bytes of data.
fn header_fault(header: &str, data: usize) -> (&'static str, String) {
    let scratch = Scratch::new();
    scratch.put(SINGLE, &file(header, data)).fault()
}

fn expect(found: (&str, String), code: &str, message: &str) {
    assert_eq!((found.0, found.1.as_str()), (code, message));
}

#[test]
fn sound_files_open() {
    let scratch = Scratch::new();
    scratch.put(SINGLE, &sound("a")).put("config.json", b"{}");
    assert_eq!(Checkpoint::open(scratch.path()).unwrap().tensors().len(), 1);
    // Scalars, empty tensors, an empty file, padding, metadata, two tensors back to back.
    let two = format!("{},{}", entry("b", "F32", "[]", 0, 4), entry("a", "U8", "[3,1]", 4, 7));
    for (header, data) in [
        ("{}".to_owned(), 0),
        (format!("{{{}}}   ", entry("a", "F32", "[0,7]", 0, 0)), 0),
        (format!("{{\"__metadata__\":{{\"a\":\"b\"}},{two}}}"), 7),
        (format!("{{{two},{}}}", entry("c", "I64", "[0]", 4, 4)), 7),
    ] {
        let scratch = Scratch::new();
        scratch.put(SINGLE, &file(&header, data));
        assert!(Checkpoint::open(scratch.path()).is_ok(), "{header}");
    }
}

#[test]
fn directories_without_a_checkpoint() {
    let scratch = Scratch::new();
    let none = scratch.path().join("none");
    let error = Checkpoint::open(&none).unwrap_err();
    assert_eq!(
        scratch.relative(&error.to_string()),
        "`none`: there is no such directory; give the directory of a Hugging Face checkpoint"
    );
    scratch.put("file", b"");
    let error = Checkpoint::open(&scratch.path().join("file")).unwrap_err();
    assert_eq!(error.code(), "not-a-directory");
    expect(
        scratch.fault(),
        "no-weights",
        "`.`: it has neither `model.safetensors` nor `model.safetensors.index.json`; \
         give a directory that holds one of them",
    );
    expect(
        scratch.put("x.safetensors", &sound("a")).fault(),
        "no-weights",
        "`.`: it has neither `model.safetensors` nor `model.safetensors.index.json`; it has \
         `x.safetensors`; give a directory that holds one of them",
    );
}

#[test]
fn something_else_than_a_file_is_not_opened() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path().join(SINGLE)).unwrap();
    expect(
        scratch.fault(),
        "not-a-file",
        "`model.safetensors`: it is not a regular file; put a regular file there",
    );
}

#[test]
fn headers_that_end_early_or_never() {
    let scratch = Scratch::new();
    expect(
        scratch.put(SINGLE, &[1, 2, 3]).fault(),
        "header-truncated",
        "`model.safetensors`: truncated: it has 3 bytes where its header needs 8; \
         copy the file again",
    );
    expect(
        scratch.put(SINGLE, &sound("a")[..20]).fault(),
        "header-truncated",
        "`model.safetensors`: truncated: it has 20 bytes where its header needs 63; \
         copy the file again",
    );
    let mut long = u64::MAX.to_le_bytes().to_vec();
    long.extend(b"{}");
    expect(
        scratch.put(SINGLE, &long).fault(),
        "header-too-long",
        "`model.safetensors`: its header would have 18446744073709551615 bytes; the format \
         allows 100000000; write the file again with a safetensors library",
    );
    let mut beyond = 100_000_000_u64.to_le_bytes().to_vec();
    beyond.extend(b"{}");
    assert_eq!(scratch.put(SINGLE, &beyond).fault().0, "header-truncated");
}

#[test]
fn headers_that_are_not_a_header() {
    let (code, message) = header_fault("{\"a\":", 0);
    assert_eq!(code, "malformed-json");
    assert!(message.starts_with("`model.safetensors`: not well-formed JSON: EOF"), "{message}");
    expect(
        header_fault(" {}", 0),
        "header-structure",
        "`model.safetensors`: malformed header: it does not begin with `{`; write the file \
         again with a safetensors library",
    );
    assert_eq!(header_fault("{} x", 0).0, "malformed-json");
    let a = |inner: &str| header_fault(&format!("{{\"a\":{inner}}}"), 4);
    for (inner, reason) in [
        ("[\"BF16\",[2],[0,4]]", "invalid type: sequence, expected an object of"),
        ("{\"dtype\":\"BF16\",\"shape\":[2]}", "missing field `data_offsets`"),
        ("{\"dtype\":\"BF16\",\"shape\":[-2],\"data_offsets\":[0,4]}", "integer `-2`"),
        ("{\"dtype\":\"BF16\",\"shape\":[2.5],\"data_offsets\":[0,4]}", "floating point `2.5`"),
        ("{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4,5]}", "trailing"),
        ("{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4],\"x\":1}", "unknown field `x`"),
        ("{\"dtype\":\"BF16\",\"dtype\":\"BF16\"}", "`dtype` occurs twice"),
    ] {
        let (code, message) = a(inner);
        assert!(code == "header-structure" || inner.contains(",5]"), "{inner}: {code} {message}");
        assert!(message.contains(reason), "{inner}: {message}");
    }
}

#[test]
fn a_key_twice_in_one_header() {
    let twice = format!("{0},{0}", entry("a", "BF16", "[2]", 0, 4));
    expect(
        header_fault(&format!("{{{twice}}}"), 4),
        "key-twice",
        "`model.safetensors`: the key `a` occurs twice in one object; write the file again with \
         a safetensors library",
    );
    let stale = format!("{{{},{}}}", entry("a", "U8", "[4]", 0, 4), entry("a", "U8", "[4]", 4, 8));
    assert_eq!(header_fault(&stale, 8).0, "key-twice");
    let metadata = "{\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"}}";
    assert_eq!(header_fault(metadata, 0).0, "key-twice");
    assert_eq!(header_fault("{\"__metadata__\":{},\"__metadata__\":{}}", 0).0, "key-twice");
}

/// One tensor `a` with this entry, in a file of that many bytes of data.
fn one(dtype: &str, shape: &str, start: u64, end: u64, data: usize) -> (&'static str, String) {
    header_fault(&format!("{{{}}}", entry("a", dtype, shape, start, end)), data)
}

#[test]
fn tensors_that_contradict_themselves() {
    expect(
        one("BF17", "[2]", 0, 4, 4),
        "dtype-unknown",
        "`model.safetensors`, tensor `a`: its dtype is `BF17`, which is not supported; convert \
         it to one of BOOL, U8 to U64, I8 to I64, F8_E4M3, F8_E5M2, F8_E8M0, F16, BF16, F32, F64",
    );
    expect(
        one("BF16", "[4294967296,4294967296]", 0, 4, 4),
        "shape-overflow",
        "`model.safetensors`, tensor `a`: its shape [4294967296, 4294967296] has more elements \
         than any memory; write the file again with a safetensors library",
    );
    expect(
        one("BF16", "[2]", 4, 0, 4),
        "offsets-reversed",
        "`model.safetensors`, tensor `a`: its data ends at 0, before it begins at 4; write the \
         file again with a safetensors library",
    );
    expect(
        one("BF16", "[3]", 0, 4, 4),
        "wrong-length",
        "`model.safetensors`, tensor `a`: its data has 4 bytes where BF16 of shape [3] needs 6; \
         write the file again with a safetensors library",
    );
}

#[test]
fn tensors_that_contradict_the_file() {
    expect(
        one("BF16", "[2]", 0, 4, 3),
        "data-truncated",
        "`model.safetensors`, tensor `a`: truncated: it has 66 bytes where its header describes \
         67; copy the file again",
    );
    expect(
        one("BF16", "[2]", 0, 4, 6),
        "trailing-bytes",
        "`model.safetensors`: 2 bytes after the last tensor belong to none; write the file again \
         with a safetensors library",
    );
    expect(
        one("BF16", "[2]", 2, 6, 6),
        "gap",
        "`model.safetensors`, tensor `a`: 2 bytes before its data, which begins at 2, belong to \
         no tensor; write the file again with a safetensors library",
    );
    expect(
        one("BF16", "[2]", 100, 104, 4),
        "offsets-beyond-data",
        "`model.safetensors`, tensor `a`: its data ends at 104, beyond the 4 bytes of data in \
         the file; write the file again with a safetensors library",
    );
    let top = u64::MAX;
    assert_eq!(one("U8", "[1]", top - 1, top, 4).0, "offsets-beyond-data");
    let both = format!("{{{},{}}}", entry("a", "U8", "[4]", 0, 4), entry("b", "U8", "[4]", 2, 6));
    expect(
        header_fault(&both, 6),
        "overlap",
        "`model.safetensors`, tensor `b`: its data, from 2, overlaps that of `a`, which ends at \
         4; write the file again with a safetensors library",
    );
}

/// An index of these pairs.
fn index(pairs: &[(&str, &str)]) -> Vec<u8> {
    let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("\"{k}\":\"{v}\"")).collect();
    format!("{{\"metadata\":{{\"total_size\":1}},\"weight_map\":{{{}}}}}", pairs.join(","))
        .into_bytes()
}

/// Two shards, one tensor each, and an index of these pairs.
fn sharded(pairs: &[(&str, &str)]) -> Scratch {
    let scratch = Scratch::new();
    scratch.put("1.safetensors", &sound("a")).put("2.safetensors", &sound("b"));
    scratch.put(INDEX, &index(pairs));
    scratch
}

const BOTH: [(&str, &str); 2] = [("a", "1.safetensors"), ("b", "2.safetensors")];

#[test]
fn shards_that_are_missing_stale_or_elsewhere() {
    let scratch = sharded(&BOTH);
    assert_eq!(Checkpoint::open(scratch.path()).unwrap().files().len(), 2);
    std::fs::remove_file(scratch.path().join("2.safetensors")).unwrap();
    expect(
        scratch.fault(),
        "shard-missing",
        "`2.safetensors`: the shard is missing; it holds `b`; copy it again, or write the index \
         anew",
    );
    let many: Vec<(String, &str)> = (0..5).map(|i| (format!("t{i}"), "gone.safetensors")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    let (_, message) = sharded(&many).fault();
    assert!(message.contains("it holds `t0`, `t1`, `t2` and 2 more;"), "{message}");
    let scratch = sharded(&BOTH);
    expect(
        scratch.put("3.safetensors", &sound("c")).fault(),
        "stale-file",
        "`3.safetensors`: the file is no part of the checkpoint; it may be left from another \
         one; remove it, or add it to the index",
    );
    let scratch = sharded(&BOTH);
    expect(
        scratch.put(SINGLE, &sound("a")).fault(),
        "two-layouts",
        "`.`: `model.safetensors` and `model.safetensors.index.json` both exist; remove the one \
         that is out of date",
    );
    for shard in ["../1.safetensors", "/1.safetensors", "x/1.safetensors", "", ".", ".."] {
        let (code, message) = sharded(&[("a", shard)]).fault();
        assert_eq!(code, "shard-name", "{message}");
    }
    let single = Scratch::new();
    single.put(SINGLE, &sound("a")).put("old.safetensors", &sound("a"));
    assert_eq!(single.fault().0, "stale-file");
}

#[test]
fn an_index_and_headers_that_disagree() {
    expect(
        sharded(&[("a", "1.safetensors"), ("b", "2.safetensors"), ("c", "2.safetensors")]).fault(),
        "not-in-shard",
        "`model.safetensors.index.json`, tensor `c`: the index places it in `2.safetensors`, \
         which does not hold it; write the index anew from the shards' headers",
    );
    expect(
        sharded(&[("a", "2.safetensors"), ("b", "1.safetensors")]).fault(),
        "not-in-shard",
        "`model.safetensors.index.json`, tensor `a`: the index places it in `2.safetensors`, \
         which does not hold it; `1.safetensors` does; write the index anew from the shards' \
         headers",
    );
    let scratch = sharded(&BOTH);
    let more = format!("{{{},{}}}", entry("b", "U8", "[1]", 0, 1), entry("c", "U8", "[1]", 1, 2));
    expect(
        scratch.put("2.safetensors", &file(&more, 2)).fault(),
        "not-in-index",
        "`2.safetensors`, tensor `c`: the shard holds it, but the index does not name it; write \
         the index anew from the shards' headers",
    );
    let more = format!("{{{},{}}}", entry("b", "U8", "[1]", 0, 1), entry("a", "U8", "[1]", 1, 2));
    expect(
        scratch.put("2.safetensors", &file(&more, 2)).fault(),
        "key-in-two-shards",
        "`model.safetensors.index.json`, tensor `a`: both `1.safetensors` and `2.safetensors` \
         hold it; remove one of the copies",
    );
}

#[test]
fn indexes_that_are_no_index() {
    let with = |text: &str| {
        let scratch = sharded(&BOTH);
        scratch.put(INDEX, text.as_bytes()).fault()
    };
    let twice = r#"{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}"#;
    expect(
        with(twice),
        "key-twice",
        "`model.safetensors.index.json`: the key `a` occurs twice in one object; write the file \
         again with a safetensors library",
    );
    assert_eq!(with(r#"{"weight_map":{},"weight_map":{}}"#).0, "key-twice");
    assert_eq!(with("{").0, "malformed-json");
    assert_eq!(with(r#"{"weight_map":{}}"#).0, "index-empty");
    for text in ["{}", "[]", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        let (code, message) = with(text);
        assert_eq!(code, "index-structure", "{message}");
    }
}

#[test]
fn files_that_change_while_they_are_read() {
    let scratch = sharded(&BOTH);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    checkpoint.verify_unchanged().unwrap();
    let changed = |checkpoint: &Checkpoint| {
        let error = checkpoint.verify_unchanged().unwrap_err();
        assert_eq!(error.code(), "changed-while-read");
        scratch.relative(&error.to_string())
    };
    // Another file of the same length under the name.
    scratch.put("new", &sound("b"));
    let new = scratch.path().join("new");
    std::fs::rename(&new, scratch.path().join("2.safetensors")).unwrap();
    assert_eq!(
        changed(&checkpoint),
        "`2.safetensors`: it changed while it was read (another file took its place); wait until \
         its writer is done, then start again"
    );
    // Written in place, with the old length.
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let file = std::fs::File::options().write(true).open(scratch.path().join("1.safetensors"));
    let later = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    file.unwrap().set_modified(later).unwrap();
    assert!(changed(&checkpoint).contains("its time of modification"));
    // Truncated between two reads: an error of the tensor, and of the checkpoint.
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let tensor = checkpoint.get("a").unwrap();
    let reader = tensor.open().unwrap();
    scratch.put("1.safetensors", &sound("a")[..60]);
    let error = reader.read_range(0, &mut [0; 4]).unwrap_err();
    assert_eq!((error.code(), error.object()), ("changed-while-read", "a"));
    assert_eq!(tensor.read().unwrap_err().code(), "data-truncated");
    assert!(changed(&checkpoint).contains("its length"));
    std::fs::remove_file(scratch.path().join("1.safetensors")).unwrap();
    assert!(changed(&checkpoint).contains("it is gone"));
}

/// Writes a file in place and sets its time of modification back.
fn rewrite_in_secret(path: &Utf8Path, bytes: &[u8]) {
    let before = std::fs::metadata(path).unwrap();
    loop {
        std::fs::write(path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        let now = std::fs::metadata(path).unwrap();
        assert_eq!(now.modified().unwrap(), before.modified().unwrap());
        // Clocks of file systems are coarse.
        if (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec()) {
            return;
        }
    }
}

#[test]
fn a_rewrite_with_the_old_time_of_modification_is_seen() {
    let scratch = Scratch::new();
    let path = scratch.put(SINGLE, &sound("a")).path().join(SINGLE);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    checkpoint.get("a").unwrap().read().unwrap();
    checkpoint.verify_unchanged().unwrap();
    rewrite_in_secret(&path, &sound("b"));
    let error = checkpoint.verify_unchanged().unwrap_err();
    assert_eq!(
        scratch.relative(&error.to_string()),
        "`model.safetensors`: it changed while it was read (its time of change: it was rewritten, \
         linked, or got another mode or owner); wait until its writer is done, then start again"
    );
}

#[test]
fn a_configuration_that_changes_is_seen_like_weights() {
    let scratch = Scratch::new();
    let path = scratch.path().join("config.json");
    scratch.put(SINGLE, &sound("a")).put("config.json", b"{}").put("notes.txt", b"");
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    // Other files mean nothing.
    scratch.put("notes.txt", b"more");
    checkpoint.verify_unchanged().unwrap();
    rewrite_in_secret(&path, b"[]");
    let error = checkpoint.verify_unchanged().unwrap_err();
    assert_eq!((error.code(), error.object()), ("changed-while-read", path.as_str()));
    // One that was never there changes nothing.
    std::fs::remove_file(&path).unwrap();
    Checkpoint::open(scratch.path()).unwrap().verify_unchanged().unwrap();
}

#[test]
fn small_files_of_absurd_length_are_not_read() {
    let long = |name: &str, bytes: u64| {
        let scratch = Scratch::new();
        scratch.put(SINGLE, &sound("a")).put(name, b"");
        let file = std::fs::File::options().write(true).open(scratch.path().join(name)).unwrap();
        file.set_len(bytes).unwrap();
        scratch
    };
    let config = |bytes: u64| {
        let scratch = long("config.json", bytes);
        let error = ModelConfig::read(scratch.path()).unwrap_err();
        (error.code(), scratch.relative(&error.to_string()))
    };
    expect(
        config(100_000_001),
        "file-too-long",
        "`config.json`: it has 100000001 bytes; at most 100000000 are read; put the model's own \
         file there",
    );
    assert_eq!(config(100_000_000).0, "malformed-json");
    assert_eq!(long(INDEX, 100_000_001).fault().0, "file-too-long");
}
