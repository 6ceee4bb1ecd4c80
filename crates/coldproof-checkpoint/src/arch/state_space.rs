//! State-space mixers (Mamba 2): one projection in, a short convolution, a recurrence over heads, a
//! gated norm, one projection out.

use coldproof_contract::routing::{Section, Sharding};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::decoder::rule;
use super::fields::Fields;
use super::{ConfigError, Group, ModelConfig};

/// The most bytes of a layer's state, of which an engine keeps many, whatever the checkpoint holds.
const STATE_BYTES_MAX: u128 = 1 << 26;

/// What each layer of a model is, where a layer is one mixer behind one norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixer {
    /// A recurrence over the sequence.
    StateSpace,
    /// Attention over all positions, without rotation.
    Attention,
    /// An MLP without a gate.
    Mlp,
}

/// State-space mixers of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSpace {
    /// Heads.
    pub heads: u64,
    /// Channels of a head.
    pub head_dim: u64,
    /// Groups of heads that share what goes into the state and what comes out of it; divides
    /// `heads`.
    pub groups: u64,
    /// Elements of the state of each channel.
    pub state_size: u64,
    /// Positions that the convolution sees.
    pub kernel: u64,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Parts of the channels that are normed each by itself: `groups`, or 1.
    pub norm_groups: u64,
}

impl StateSpace {
    /// Channels of all heads.
    #[must_use]
    pub const fn inner(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Rows of the input and of the output matrix of all groups.
    #[must_use]
    pub const fn group_rows(&self) -> u64 {
        self.groups * self.state_size
    }

    /// Channels that are convolved: those of heads, and the groups' two matrices.
    #[must_use]
    pub const fn conv_rows(&self) -> u64 {
        self.inner() + 2 * self.group_rows()
    }

    /// Rows of the projection in: a gate, what is convolved, a step a head.
    #[must_use]
    pub const fn projected_rows(&self) -> u64 {
        self.inner() + self.conv_rows() + self.heads
    }

    pub(super) fn check(&self, names: [&str; 3]) -> Result<(), ConfigError> {
        let [heads, groups, state_size] = names;
        let wrong = |field: &str, value: u64, reason| {
            Err(ConfigError::Size { field: field.to_owned(), value: value.to_string(), reason })
        };
        if !self.heads.is_multiple_of(self.groups) {
            let reason = format!("it does not divide {heads} ({})", self.heads);
            return wrong(groups, self.groups, reason);
        }
        let bytes = u128::from(self.inner()) * u128::from(self.state_size) * 4;
        if bytes > STATE_BYTES_MAX {
            let reason = format!(
                "the state of a layer would take {bytes} bytes, above {STATE_BYTES_MAX}; a \
                 smaller one is needed"
            );
            return wrong(state_size, self.state_size, reason);
        }
        Ok(())
    }
}

/// Refuses steps that are cut at other bounds than zero and infinity, which transformers 5 spells
/// as an object and Python's `json` as a bare word.
pub(super) fn refuse(fields: Fields<'_>) -> Result<(), ConfigError> {
    let infinity = json!({"__float__": "Infinity"});
    let open = [json!([0.0, infinity]), json!([0.0, "Infinity"])];
    fields.only("time_step_limit", &open)?;
    fields.only("use_bias", &[json!(false)])
}

/// The sources of the state-space mixer of the layer whose sources and slots are at these paths.
pub(super) fn groups(config: &ModelConfig, [source, slot]: [&str; 2]) -> Vec<Group> {
    let Some(space) = &config.state_space else { return Vec::new() };
    let StateSpace { heads, groups, .. } = *space;
    let (inner, matrix) = (space.inner(), space.group_rows());
    let by_head = Section { rows: inner, units: heads };
    let by_group = Section { rows: matrix, units: groups };
    let convolved = [by_head, by_group, by_group];
    let steps = Section { rows: heads, units: heads };
    let projected = [&[by_head][..], &convolved, &[steps]].concat();
    let group = |name: &str, shape: &[u64], sharding| {
        Group::plain(rule(
            config,
            format!("{source}.mixer.{name}"),
            shape,
            format!("{slot}.mixer.{name}"),
            sharding,
        ))
    };
    let sections = |sections: &[Section]| Sharding::Sections { sections: sections.to_vec() };
    let hidden = config.hidden_size;
    let mut all = vec![
        group("in_proj.weight", &[space.projected_rows(), hidden], sections(&projected)),
        group("conv1d.weight", &[space.conv_rows(), 1, space.kernel], sections(&convolved)),
    ];
    if space.conv_bias {
        all.push(group("conv1d.bias", &[space.conv_rows()], sections(&convolved)));
    }
    all.extend([
        group("A_log", &[heads], Sharding::Column),
        group("D", &[heads], Sharding::Column),
        group("dt_bias", &[heads], Sharding::Column),
        group("norm.weight", &[inner], Sharding::Column),
        group("out_proj.weight", &[hidden, inner], Sharding::Row),
    ]);
    all
}
