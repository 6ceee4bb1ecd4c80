//! Two-way accounting of names: every source of a checkpoint has a rule, every rule has its source.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::routing::SourceRule;
use coldproof_contract::words::{Dtype, SlotName};

use crate::arch::{Catalogue, Group, Spelling};
use crate::container::TensorRef;

/// Names to slots and slots to names, over all spellings.
#[derive(Clone, Debug)]
pub struct NameMap<'a> {
    rules: BTreeMap<&'a str, &'a SourceRule>,
    slots: BTreeMap<&'a SlotName, Vec<&'a SourceRule>>,
}

impl<'a> NameMap<'a> {
    /// The map of a catalogue.
    #[must_use]
    pub fn of(catalogue: &'a Catalogue) -> Self {
        let mut map = Self { rules: BTreeMap::new(), slots: BTreeMap::new() };
        for rule in catalogue.all_rules() {
            map.rules.insert(&rule.source, rule);
            map.slots.entry(&rule.slot).or_default().push(rule);
        }
        map
    }

    /// The rule of a source.
    #[must_use]
    pub fn rule(&self, source: &str) -> Option<&'a SourceRule> {
        self.rules.get(source).copied()
    }

    /// The rules of all sources that fill a slot, in every spelling.
    #[must_use]
    pub fn sources(&self, slot: &SlotName) -> &[&'a SourceRule] {
        self.slots.get(slot).map_or(&[], Vec::as_slice)
    }
}

/// Every source and every rule, accounted for exactly once. Sources that carry nothing wrong are in
/// [`Accounting::matched`] or [`Accounting::redundant_alias`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Rules whose source is there as it must be, in the order of the model.
    pub matched: Vec<SourceRule>,
    /// Rules whose source is not there.
    pub missing: Vec<Missing>,
    /// Sources without a rule, sorted.
    pub unexpected: Vec<String>,
    /// Slots whose sources are there in two spellings.
    pub ambiguous: Vec<Ambiguous>,
    /// Sources with another dtype or shape than their rule.
    pub mismatched: Vec<Mismatched>,
    /// Sources that name a storage which another source fills; harmless (R64).
    pub redundant_alias: Vec<RedundantAlias>,
}

/// A rule whose source is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The source.
    pub source: String,
    /// The slot it would fill.
    pub slot: SlotName,
    /// Sources of another spelling that would do as well.
    pub alternatives: Vec<String>,
}

/// A slot whose sources are there in two spellings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ambiguous {
    /// The slot.
    pub slot: SlotName,
    /// Names that are there, one list a spelling.
    pub spellings: Vec<Vec<String>>,
}

/// A source with another dtype or shape than its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatched {
    /// The source.
    pub source: String,
    /// What its rule says.
    pub expected: (Dtype, Vec<u64>),
    /// What the checkpoint holds.
    pub found: (Dtype, Vec<u64>),
}

/// A source that names a storage which another source fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedundantAlias {
    /// The source.
    pub source: String,
    /// The source that fills the storage.
    pub target: String,
}

impl Accounting {
    /// Accounts for the sources of a checkpoint.
    pub fn of<'a>(catalogue: &Catalogue, sources: impl IntoIterator<Item = &'a TensorRef>) -> Self {
        let sources: BTreeMap<&str, &TensorRef> =
            sources.into_iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut accounting = Self::default();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for group in &catalogue.groups {
            known.extend(
                group.spellings.iter().flat_map(|s| &s.rules).map(|rule| rule.source.as_str()),
            );
            accounting.add_group(group, &sources);
        }
        for tied in &catalogue.tied {
            known.insert(&tied.source);
            let Some(found) = sources.get(tied.source.as_str()) else { continue };
            if (found.dtype, &found.shape) == (tied.dtype, &tied.shape) {
                accounting.redundant_alias.push(RedundantAlias {
                    source: tied.source.clone(),
                    target: tied.target.clone(),
                });
            } else {
                accounting.mismatched.push(Mismatched {
                    source: tied.source.clone(),
                    expected: (tied.dtype, tied.shape.clone()),
                    found: (found.dtype, found.shape.clone()),
                });
            }
        }
        accounting.unexpected =
            sources.keys().filter(|name| !known.contains(*name)).map(|&n| n.to_owned()).collect();
        accounting
    }

    /// Whether nothing is missing, unexpected, ambiguous or mismatched.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.ambiguous.is_empty()
            && self.mismatched.is_empty()
    }

    fn add_group(&mut self, group: &Group, sources: &BTreeMap<&str, &TensorRef>) {
        let there = |rule: &&SourceRule| sources.contains_key(rule.source.as_str());
        let present: Vec<&Spelling> =
            group.spellings.iter().filter(|s| s.rules.iter().any(|rule| there(&rule))).collect();
        let spelling = match present.as_slice() {
            [] => group.spellings.first(),
            [only] => Some(*only),
            [first, ..] => {
                let names = |spelling: &&Spelling| {
                    spelling.rules.iter().filter(there).map(|rule| rule.source.clone()).collect()
                };
                self.ambiguous.extend(first.rules.first().map(|rule| Ambiguous {
                    slot: rule.slot.clone(),
                    spellings: present.iter().map(names).collect(),
                }));
                return;
            }
        };
        let Some(spelling) = spelling else { return };
        for rule in &spelling.rules {
            match sources.get(rule.source.as_str()) {
                None => {
                    let others = group
                        .spellings
                        .iter()
                        .filter(|other| present.is_empty() && other.name != spelling.name);
                    self.missing.push(Missing {
                        source: rule.source.clone(),
                        slot: rule.slot.clone(),
                        alternatives: others
                            .flat_map(|other| &other.rules)
                            .map(|rule| rule.source.clone())
                            .collect(),
                    });
                }
                Some(found) if (found.dtype, &found.shape) == (rule.dtype, &rule.shape) => {
                    self.matched.push(rule.clone());
                }
                Some(found) => self.mismatched.push(Mismatched {
                    source: rule.source.clone(),
                    expected: (rule.dtype, rule.shape.clone()),
                    found: (found.dtype, found.shape.clone()),
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::ModelConfig;

    const CONFIG: &str = r#"{"model_type": "MODEL", "torch_dtype": "bfloat16", "vocab_size": 5,
        "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
        "max_position_embeddings": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "tie_word_embeddings": TIED, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 3}"#;

    fn catalogue(model: &str, tied: bool) -> Catalogue {
        let text = CONFIG.replace("MODEL", model).replace("TIED", &tied.to_string());
        Catalogue::of(&ModelConfig::parse(text.as_bytes()).unwrap())
    }

    fn tensor(name: &str, dtype: Dtype, shape: &[u64]) -> TensorRef {
        let bytes = dtype.bytes() * shape.iter().product::<u64>();
        let (name, file, shape) = (name.to_owned(), "f".into(), shape.to_vec());
        TensorRef { name, file, offset: 0, bytes, dtype, shape }
    }

    fn usual(catalogue: &Catalogue) -> Vec<TensorRef> {
        catalogue.usual_rules().map(|rule| tensor(&rule.source, rule.dtype, &rule.shape)).collect()
    }

    const EXPERTS: &str = "model.layers.0.mlp.experts";

    #[test]
    fn a_whole_checkpoint_is_clean_in_either_spelling() {
        let catalogue = catalogue("qwen3_moe", false);
        let mut sources = usual(&catalogue);
        let accounting = Accounting::of(&catalogue, &sources);
        assert!(accounting.is_clean(), "{accounting:?}");
        assert_eq!(accounting.matched.len(), sources.len());
        sources.retain(|tensor| !tensor.name.starts_with(EXPERTS));
        sources.push(tensor(&format!("{EXPERTS}.gate_up_proj"), Dtype::Bf16, &[2, 6, 4]));
        sources.push(tensor(&format!("{EXPERTS}.down_proj"), Dtype::Bf16, &[2, 4, 3]));
        let accounting = Accounting::of(&catalogue, &sources);
        assert!(accounting.is_clean(), "{accounting:?}");
        assert_eq!(accounting.matched.len(), sources.len());
    }

    #[test]
    fn a_missing_source_is_named_with_its_slot() {
        let catalogue = catalogue("llama", false);
        let mut sources = usual(&catalogue);
        sources.retain(|tensor| !tensor.name.ends_with("k_proj.weight"));
        let accounting = Accounting::of(&catalogue, &sources);
        assert!(!accounting.is_clean());
        assert_eq!(
            accounting.missing,
            [Missing {
                source: "model.layers.0.self_attn.k_proj.weight".into(),
                slot: "model.layers.0.self_attn.qkv_proj.weight".into(),
                alternatives: vec![],
            }]
        );
    }

    #[test]
    fn experts_in_no_spelling_are_missing_with_the_alternative() {
        let catalogue = catalogue("qwen3_moe", false);
        let mut sources = usual(&catalogue);
        sources.retain(|tensor| !tensor.name.starts_with(EXPERTS));
        let accounting = Accounting::of(&catalogue, &sources);
        assert_eq!(accounting.missing.len(), 6);
        assert_eq!(accounting.missing[0].alternatives, [format!("{EXPERTS}.gate_up_proj")]);
        // One expert's projection alone: its own spelling is asked for, no other.
        let mut sources = usual(&catalogue);
        sources.retain(|tensor| tensor.name != format!("{EXPERTS}.1.up_proj.weight"));
        let accounting = Accounting::of(&catalogue, &sources);
        assert_eq!(accounting.missing.len(), 1);
        assert_eq!(accounting.missing[0].alternatives, Vec::<String>::new());
    }

    #[test]
    fn an_unknown_name_is_unexpected() {
        let catalogue = catalogue("llama", false);
        let mut sources = usual(&catalogue);
        sources.push(tensor("model.layers.1.input_layernorm.weight", Dtype::Bf16, &[4]));
        let accounting = Accounting::of(&catalogue, &sources);
        assert_eq!(accounting.unexpected, ["model.layers.1.input_layernorm.weight"]);
        assert!(!accounting.is_clean());
    }

    #[test]
    fn both_spellings_of_one_slot_are_ambiguous() {
        let catalogue = catalogue("qwen3_moe", false);
        let mut sources = usual(&catalogue);
        sources.push(tensor(&format!("{EXPERTS}.down_proj"), Dtype::Bf16, &[2, 4, 3]));
        let accounting = Accounting::of(&catalogue, &sources);
        assert_eq!(accounting.ambiguous.len(), 1);
        assert_eq!(accounting.ambiguous[0].slot.0, format!("{EXPERTS}.w2_weight"));
        assert_eq!(accounting.ambiguous[0].spellings[1], [format!("{EXPERTS}.down_proj")]);
        assert!(accounting.unexpected.is_empty() && accounting.missing.is_empty());
    }

    #[test]
    fn a_redundant_head_of_a_tied_model_passes_and_is_named() {
        let catalogue = catalogue("llama", true);
        let mut sources = usual(&catalogue);
        assert!(Accounting::of(&catalogue, &sources).redundant_alias.is_empty());
        sources.push(tensor("lm_head.weight", Dtype::Bf16, &[5, 4]));
        let accounting = Accounting::of(&catalogue, &sources);
        assert!(accounting.is_clean());
        assert_eq!(accounting.redundant_alias[0].target, "model.embed_tokens.weight");
        // Of another shape, it is no alias.
        *sources.last_mut().unwrap() = tensor("lm_head.weight", Dtype::Bf16, &[4, 5]);
        assert_eq!(Accounting::of(&catalogue, &sources).mismatched[0].source, "lm_head.weight");
    }

    #[test]
    fn another_dtype_or_shape_is_a_mismatch_of_its_own() {
        let catalogue = catalogue("qwen3", false);
        for (dtype, shape) in [(Dtype::F32, vec![4]), (Dtype::Bf16, vec![4, 1])] {
            let mut sources = usual(&catalogue);
            let at = sources.iter().position(|t| t.name == "model.norm.weight").unwrap();
            sources[at] = tensor("model.norm.weight", dtype, &shape);
            let accounting = Accounting::of(&catalogue, &sources);
            assert_eq!(
                accounting.mismatched,
                [Mismatched {
                    source: "model.norm.weight".into(),
                    expected: (Dtype::Bf16, vec![4]),
                    found: (dtype, shape),
                }]
            );
            assert!(accounting.missing.is_empty() && accounting.unexpected.is_empty());
        }
    }

    #[test]
    fn names_lead_to_slots_and_back() {
        let catalogue = catalogue("qwen3_moe", false);
        let map = NameMap::of(&catalogue);
        let rule = map.rule("model.layers.0.self_attn.v_proj.weight").unwrap();
        let names: Vec<&str> = map.sources(&rule.slot).iter().map(|r| r.source.as_str()).collect();
        assert_eq!(names.len(), 3);
        assert!(names.contains(&"model.layers.0.self_attn.q_proj.weight"));
        assert!(map.rule("lm_head.bias").is_none());
        // Two experts' halves, and the fused source.
        assert_eq!(map.sources(&format!("{EXPERTS}.w13_weight").as_str().into()).len(), 5);
    }
}
