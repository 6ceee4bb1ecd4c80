//! Where things lie: the checkout, and the folder for what is costly to make again.

use std::env;
use std::path::{Path, PathBuf};

/// The checkout and its cache.
#[derive(Debug)]
pub(crate) struct House {
    /// The root of the checkout.
    pub(crate) root: PathBuf,
    /// What is costly to make again: `COLDPROOF_CACHE`, else `.cache` in the checkout.
    cache: Option<PathBuf>,
}

impl House {
    /// The checkout that this program was built from.
    pub(crate) fn here() -> Self {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf);
        let cache = env::var_os("COLDPROOF_CACHE").filter(|path| !path.is_empty());
        Self { root, cache: cache.map(PathBuf::from) }
    }

    /// Programs that tasks install for themselves.
    pub(crate) fn tools(&self) -> PathBuf {
        self.cached("tools")
    }

    /// The real model's checkpoints.
    pub(crate) fn smollm2(&self) -> PathBuf {
        self.cached("smollm2")
    }

    /// The Python environment with this version of vLLM.
    pub(crate) fn vllm(&self, version: &str) -> PathBuf {
        self.cached(&format!("vllm-{version}"))
    }

    /// The Python environment.
    pub(crate) fn venv(&self) -> PathBuf {
        match &self.cache {
            Some(cache) => cache.join("venv"),
            None => self.root.join(".venv"),
        }
    }

    /// The folder that cargo builds into.
    pub(crate) fn target(&self) -> PathBuf {
        let set = env::var_os("CARGO_TARGET_DIR").filter(|path| !path.is_empty());
        self.root.join(set.map_or_else(|| PathBuf::from("target"), PathBuf::from))
    }

    fn cached(&self, name: &str) -> PathBuf {
        self.cache.clone().unwrap_or_else(|| self.root.join(".cache")).join(name)
    }
}
