//! The adapters lane: a request hits the cache with one adapter, another takes its name, then the
//! same request (R40).

use camino::{Utf8Path, Utf8PathBuf};
use coldproof_checkpoint::ADAPTER_FILES;
use coldproof_contract::evidence::{AdapterFact, ArmHeader, Fact, LaneName};
use coldproof_contract::words::{CheckpointLabel, Hex128, Rank, StepName};

use crate::adapter_updates;
use crate::driver::{ArmResult, Driver};
use crate::engine::{EngineError, GenerateRequest, Reply};
use crate::inputs::Inputs;
use crate::lane::{COLD_ADAPTER, Lane};
use crate::places::Places;
use crate::session::{Slots, load, look_at};

/// The name that both adapters are served under, one after the other.
pub const NAME: &str = "adapter";
/// The old adapter in labels.
pub const FROM: &str = "from";
/// The new one.
pub const TO: &str = "to";

/// How the new content takes the place of the old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterSwap {
    /// The trainer writes it over the old files; the name is loaded again from where it was.
    SameFolder,
    /// It lies in a folder of its own; the name is loaded again from there.
    OtherFolder,
    /// As [`AdapterSwap::SameFolder`], and then every cache is emptied.
    SameFolderReset,
}

/// An adapter as a run has it.
#[derive(Clone, Debug)]
pub struct AdapterFolder {
    /// Its folder.
    pub folder: Utf8PathBuf,
    /// A folder with a copy of it, whose files a lane moves to where it serves them from.
    pub copy: Utf8PathBuf,
    /// What it is: a digest of its tensors and its configuration.
    pub content: Hex128,
}

/// Two adapters of one base model, of other content.
#[derive(Clone, Debug)]
pub struct AdapterPair {
    /// The old one.
    pub from: AdapterFolder,
    /// The new one.
    pub to: AdapterFolder,
    /// The larger of their ranks.
    pub rank: u32,
    /// How one takes the other's place.
    pub swap: AdapterSwap,
    /// An empty folder on the same file system as the copies: where a trainer would have its
    /// adapter.
    pub live: Utf8PathBuf,
}

/// The base model with the new adapter, cold; then with the old one, which the new one replaces.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let Some(pair) = &lane.inputs.adapters else { return };
    let topology = lane.inputs.topology;
    let header = |arm, against| ArmHeader::new(arm, LaneName::Adapters, topology, against);
    let (old, new) = (adapted(&lane.inputs.to.label, FROM), adapted(&lane.inputs.to.label, TO));
    lane.arm(header(COLD_ADAPTER, None), |inputs, driver| {
        load(driver, &inputs.to)?;
        // Apart from the cache: no block of the base model may be the adapter's.
        let apart = GenerateRequest { use_prefix_cache: false, ..inputs.requests.adapted(None) };
        driver.serve(&apart, 0)?;
        driver.phase("to", &new, Some(&inputs.to.label));
        adapter(driver, &pair.to, &pair.to.folder)?;
        read_back(driver, inputs, &new)?;
        driver.serve(&inputs.requests.adapted(Some(NAME)), 0)?;
        driver.serve(&apart, 0)
    });
    lane.arm(header("adapters", Some(COLD_ADAPTER)), |inputs, driver| {
        driver.phase("before", &old, None);
        driver.step(StepName::Load, |engine| engine.load(&inputs.to.tensors))?;
        driver.serve(&inputs.requests.adapted(None), 0)?;
        adapter(driver, &pair.from, &pair.live)?;
        read_back(driver, inputs, &old)?;
        driver.serve(&inputs.requests.adapted(Some(NAME)), 0)?;
        driver.serve(&inputs.requests.adapted(Some(NAME)), 1)?;
        driver.phase("from>to", &new, Some(&old));
        let other = pair.swap == AdapterSwap::OtherFolder;
        adapter(driver, &pair.to, if other { &pair.to.folder } else { &pair.live })?;
        if pair.swap == AdapterSwap::SameFolderReset {
            driver.step(StepName::Invalidate, |engine| engine.invalidate())?;
        }
        read_back(driver, inputs, &new)?;
        driver.serve(&inputs.requests.adapted(Some(NAME)), 0)?;
        driver.serve(&inputs.requests.adapted(Some(NAME)), 1)?;
        driver.serve(&inputs.requests.adapted(None), 0)
    });
    adapter_updates::run(lane, pair);
}

/// A checkpoint that is served with an adapter, as phases name it.
#[must_use]
pub fn adapted(base: &CheckpointLabel, adapter: &str) -> CheckpointLabel {
    CheckpointLabel(format!("{base} with adapter `{adapter}`"))
}

/// Reads every slot back, where adapters have some, with sources where this checkpoint's rules say.
pub(crate) fn read_back(
    driver: &mut Driver<'_, '_>,
    inputs: &Inputs,
    at: &CheckpointLabel,
) -> ArmResult<Slots> {
    let header = inputs.headers.iter().find(|header| header.label == *at);
    let Some(header) = header.filter(|_| driver.can().adapter_updates) else {
        return Ok(Slots::new());
    };
    look_at(driver, &Places::by(&header.rules, inputs.topology), inputs.topology)
}

/// Loads an adapter from a folder. Where that is not its own, its files are put there first, over
/// those of another, as a trainer does.
pub(crate) fn adapter(
    driver: &mut Driver<'_, '_>,
    of: &AdapterFolder,
    at: &Utf8Path,
) -> ArmResult<()> {
    let written = if at == of.folder { Ok(()) } else { put(&of.copy, at) };
    let fact = AdapterFact { adapter: NAME.to_owned(), content: of.content };
    driver.record(Rank::default(), Fact::Adapter(fact));
    driver.step(StepName::Adapter, |engine| {
        written?;
        engine.load_adapter(NAME, at)
    })
}

fn put(copy: &Utf8Path, at: &Utf8Path) -> Reply<()> {
    let moved = |file: &&str| std::fs::rename(copy.join(file), at.join(file));
    ADAPTER_FILES.iter().try_for_each(moved).map_err(|error| EngineError::Refused {
        text: format!("the adapter could not be moved from `{copy}` to `{at}`: {error}"),
    })
}
