//! Whole blocks of one rank in files, one each, below those in host memory: they outlive the
//! engine.
//!
//! As vLLM's file mapper does, each layout (model, topology, rank, slots) has a folder of its own,
//! and a block's key is its file's name. A file appears whole or not at all, and what it holds is
//! held against its header: anything else is a miss, with its reason.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};

use camino::{Utf8Path, Utf8PathBuf};

use super::BlockKey;

/// What a file begins with; then its layout, its key and the digest of its bytes.
const MAGIC: &[u8; 8] = b"coldkv\x00\x01";
/// Bytes of a digest.
const DIGEST: usize = 32;
/// Bytes before a block's own.
const HEADER: usize = MAGIC.len() + 3 * DIGEST;
/// How names of blocks end.
const SUFFIX: &str = ".kv";

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the folder `{folder}` of the file KV tier cannot be used: {error}; give a writable one")]
pub(crate) struct NoFolder {
    folder: Utf8PathBuf,
    error: io::Error,
}

/// Blocks of one layout in a folder.
#[derive(Debug)]
pub(crate) struct FileTier {
    folder: Utf8PathBuf,
    layout: [u8; DIGEST],
    /// Blocks whose files are known to be whole: this engine read or wrote them.
    known: BTreeSet<BlockKey>,
}

impl FileTier {
    /// The tier of a layout below `root`.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub(crate) fn open(
        root: &Utf8Path,
        layout: &blake3::Hash,
        rank: u32,
    ) -> Result<Self, NoFolder> {
        let name = layout.to_hex();
        let folder = root.join(format!("{}_r{rank}", &name[..16]));
        match fs::create_dir_all(&folder) {
            Ok(()) => Ok(Self { folder, layout: *layout.as_bytes(), known: BTreeSet::new() }),
            Err(error) => Err(NoFolder { folder, error }),
        }
    }

    /// Whether the block's file needs not be written.
    pub(crate) fn holds(&self, key: BlockKey) -> bool {
        self.known.contains(&key)
    }

    /// A block of that many bytes.
    ///
    /// # Errors
    /// Why what is there under its name is not taken.
    pub(crate) fn find(&mut self, key: BlockKey, size: u64) -> Result<Option<Vec<u8>>, String> {
        self.known.remove(&key);
        let path = self.folder.join(name(key));
        let about = match fs::symlink_metadata(&path) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(key, &error.to_string())),
        };
        // Looked at before it is opened: a pipe would never answer.
        if !about.is_file() || about.len() != HEADER as u64 + size {
            let text = format!("it is no file of {} bytes", HEADER as u64 + size);
            return Err(refused(key, &text));
        }
        let read = read(&path, about.len()).map_err(|error| refused(key, &error.to_string()))?;
        let bytes = self.checked(key, &read).map_err(|text| refused(key, text))?.to_vec();
        self.known.insert(key);
        Ok(Some(bytes))
    }

    /// The block of a file's bytes.
    fn checked<'b>(&self, key: BlockKey, file: &'b [u8]) -> Result<&'b [u8], &'static str> {
        let (header, bytes) =
            file.split_at_checked(HEADER).ok_or("it is shorter than its header")?;
        if !header.starts_with(MAGIC) {
            return Err("it is no block");
        }
        if *header != self.header(key, bytes) {
            return Err("it holds something else than its header says");
        }
        Ok(bytes)
    }

    fn header(&self, key: BlockKey, bytes: &[u8]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let digest = blake3::hash(bytes);
        let parts: [&[u8]; 4] = [MAGIC, &self.layout, key.bytes(), digest.as_bytes()];
        header.copy_from_slice(&parts.concat());
        header
    }

    /// Keeps a block; a file that is there under its name is replaced.
    ///
    /// # Errors
    /// Why it is not kept. Nothing half-written stays.
    pub(crate) fn put(&mut self, key: BlockKey, bytes: &[u8]) -> io::Result<()> {
        let own = name(key);
        let beside = self.folder.join(format!(".{own}.{}", std::process::id()));
        let put = self.written(&beside, key, bytes);
        let put = put.and_then(|()| fs::rename(&beside, self.folder.join(own)));
        if put.is_err() {
            // What is not there any more need not be removed.
            let _ = fs::remove_file(&beside);
        } else {
            self.known.insert(key);
        }
        put
    }

    fn written(&self, path: &Utf8Path, key: BlockKey, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let mut file = match options.open(path) {
            // Of a process that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(path)?;
                options.open(path)?
            }
            opened => opened?,
        };
        file.write_all(&self.header(key, bytes))?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Files of blocks in the folder.
    pub(crate) fn entries(&self) -> u64 {
        let Ok(files) = fs::read_dir(&self.folder) else { return 0 };
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        names.filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.')).count() as u64
    }
}

fn name(key: BlockKey) -> String {
    format!("{}{SUFFIX}", blake3::Hash::from_bytes(*key.bytes()).to_hex())
}

fn refused(key: BlockKey, why: &str) -> String {
    format!("`{}` is not taken: {why}", name(key))
}

/// No more than `size` bytes, whatever the file has become meanwhile.
fn read(path: &Utf8Path, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(size).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caches::Symbol;

    fn key(token: u32) -> BlockKey {
        BlockKey::of(None, &[Symbol::Token(token)], None)
    }

    fn tier(root: &tempfile::TempDir, layout: &[u8]) -> FileTier {
        let root = Utf8Path::from_path(root.path()).expect("UTF-8");
        FileTier::open(root, &blake3::hash(layout), 3).expect("writable")
    }

    fn files(tier: &FileTier) -> Vec<String> {
        let names = fs::read_dir(&tier.folder).expect("a folder");
        names.map(|file| file.expect("a name").file_name().into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn a_block_is_found_by_another_engine_of_the_same_layout_alone() {
        let root = tempfile::tempdir().expect("a folder");
        let mut first = tier(&root, b"layout");
        first.put(key(1), &[5; 40]).expect("written");
        first.put(key(1), &[6; 40]).expect("written over");
        assert_eq!(files(&first), [name(key(1))], "nothing beside it");
        let mut second = tier(&root, b"layout");
        assert_eq!((second.holds(key(1)), second.entries()), (false, 1));
        assert_eq!(second.find(key(1), 40), Ok(Some(vec![6; 40])));
        assert!(second.holds(key(1)));
        assert_eq!(second.find(key(2), 40), Ok(None));
        assert_eq!(tier(&root, b"other").find(key(1), 40), Ok(None));
    }

    #[test]
    fn what_is_not_the_block_is_a_miss_with_its_reason() {
        let root = tempfile::tempdir().expect("a folder");
        let mut tier = tier(&root, b"layout");
        tier.put(key(1), &[5; 40]).expect("written");
        let path = tier.folder.join(name(key(1)));
        let whole = fs::read(&path).expect("a file");
        for byte in 0..whole.len() {
            let mut changed = whole.clone();
            changed[byte] ^= 1;
            fs::write(&path, &changed).expect("written");
            let told = tier.find(key(1), 40).expect_err("another file");
            assert!(told.contains("is not taken: it "), "byte {byte}: {told}");
            assert!(!tier.holds(key(1)), "it would never be mended");
        }
        for length in [0, 7, 100, HEADER + 39] {
            fs::write(&path, &whole[..length]).expect("written");
            let told = tier.find(key(1), 40).expect_err("truncated");
            assert!(told.contains("no file of 144 bytes"), "{told}");
        }
        fs::write(&path, [&whole[..], &whole].concat()).expect("written");
        assert!(tier.find(key(1), 40).is_err(), "longer");
        fs::write(&path, &whole).expect("written");
        fs::rename(&path, tier.folder.join(name(key(2)))).expect("renamed");
        assert!(tier.find(key(2), 40).is_err(), "another block's file");
        assert!(tier.find(key(2), 39).is_err(), "another size");
        fs::create_dir(&path).expect("a folder");
        assert!(tier.find(key(1), 40).is_err(), "a folder");
        tier.put(key(2), &[5; 40]).expect("written over");
        assert_eq!(tier.find(key(2), 40), Ok(Some(vec![5; 40])), "mended");
    }

    #[test]
    fn what_cannot_be_kept_leaves_nothing_behind() {
        let root = tempfile::tempdir().expect("a folder");
        let mut tier = tier(&root, b"layout");
        // A folder that is not empty cannot be replaced by a file.
        let path = tier.folder.join(name(key(1)));
        fs::create_dir_all(path.join("inner")).expect("a folder");
        tier.put(key(1), &[5; 40]).expect_err("in the way");
        assert_eq!(files(&tier), [name(key(1))]);
        assert!(!tier.holds(key(1)));
        let leftover = tier.folder.join(format!(".{}.{}", name(key(2)), std::process::id()));
        fs::write(&leftover, "half").expect("written");
        tier.put(key(2), &[5; 40]).expect("a leftover is no obstacle");
        assert_eq!(files(&tier).len(), 2);
        let file = Utf8Path::from_path(root.path()).expect("UTF-8").join("file");
        fs::write(&file, "").expect("written");
        let told = FileTier::open(&file, &blake3::hash(b"layout"), 0).expect_err("a file");
        assert!(told.to_string().contains("give a writable one"), "{told}");
    }
}
