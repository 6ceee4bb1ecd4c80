//! The sources that an adapter brings: its factors, each where the module's weight says.

use std::collections::{BTreeMap, BTreeSet};

use coldproof_contract::digest::{SourceKey, digest_whole};
use coldproof_contract::evidence::SourceHeader;
use coldproof_contract::routing::{Sharding, SourceRule};
use coldproof_contract::words::{Dtype, Factor, Rank, SlotName, Topology, adapter_source};

use crate::arch::Catalogue;
use crate::lora::{Lora, factor_name};

/// A factor of an adapter as a checkpoint tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// Its name among all sources, type, shape and digest, in the element type of the models.
    pub header: SourceHeader,
    /// Where it belongs.
    pub rule: SourceRule,
}

/// The weights that an adapter may change, by source.
struct Weights<'c>(BTreeMap<&'c str, (&'c SourceRule, usize)>);

/// Every factor of an adapter that is loaded under a name. Factors of a module that the model does
/// not have, which an engine refuses, are left out.
#[must_use]
pub fn adapter_sources(catalogue: &Catalogue, lora: &Lora, adapter: &str) -> Vec<AdapterSource> {
    let weights = Weights::of(catalogue);
    let factors = lora.factors.iter().filter_map(|(module, factors)| {
        let (rule, slice) = weights.0.get(format!("{module}.weight").as_str())?;
        let rank = lora.adapter.rank;
        let sides = [
            (Factor::A, vec![rank, factors.inputs], &factors.a),
            (Factor::B, vec![factors.outputs, rank], &factors.b),
        ];
        Some(sides.into_iter().filter_map(move |(factor, shape, values)| {
            let source = adapter_source(adapter, &factor_name(module, factor));
            let key = SourceKey::new(&source, Dtype::Bf16, &shape).ok()?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let digest = digest_whole(&key, &bytes).ok()?;
            let header = SourceHeader {
                name: source.clone(),
                dtype: Dtype::Bf16,
                shape: shape.clone(),
                digest,
                unsigned: None,
            };
            let rule = SourceRule {
                source,
                dtype: Dtype::Bf16,
                shape,
                slot: SlotName::of_factor(adapter, &rule.slot, *slice, factor),
                sharding: Sharding::Factor {
                    factor,
                    weight: [factors.outputs, factors.inputs],
                    of: Box::new(rule.sharding.clone()),
                },
                stage: rule.stage,
            };
            Some(AdapterSource { header, rule })
        }))
    });
    factors.flatten().collect()
}

impl<'c> Weights<'c> {
    /// Matrices of single modules, each with the slice of its slot that it is: the slices of a slot
    /// are counted by their first rows.
    fn of(catalogue: &'c Catalogue) -> Self {
        let spellings = catalogue.groups.iter().flat_map(|group| &group.spellings);
        let rules = spellings.flat_map(|spelling| &spelling.rules);
        let matrices = rules.filter(|rule| rule.shape.len() == 2);
        let placed: Vec<(&SourceRule, u64)> =
            matrices.filter_map(|rule| Some((rule, first_row(rule)?))).collect();
        let mut slices: BTreeMap<&SlotName, BTreeSet<u64>> = BTreeMap::new();
        for (rule, first) in &placed {
            slices.entry(&rule.slot).or_default().insert(*first);
        }
        let slice = |rule: &SourceRule, first: u64| slices[&rule.slot].range(..first).count();
        let weights = placed.iter().map(|(rule, first)| {
            let own = (*rule, slice(rule, *first));
            (rule.source.as_str(), own)
        });
        Self(weights.collect())
    }
}

/// The first row of its slot, or of one expert's matrix, that a source fills where nothing is cut.
fn first_row(rule: &SourceRule) -> Option<u64> {
    let (pieces, _) = rule.pieces(Topology::SINGLE, Rank::default()).ok()?;
    let spans = &pieces.first()?.slot_fragment.0;
    spans.get(spans.len().checked_sub(2)?).map(|span| span.start)
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use coldproof_contract::routing::Placement;

    use super::*;
    use crate::arch::ModelConfig;
    use crate::lora::Factors;

    fn catalogue(family: &str) -> Catalogue {
        let folder = format!("../../testdata/checkpoints/{family}/A");
        let path = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        Catalogue::of(&ModelConfig::read(&path).unwrap())
    }

    /// Factors of rank 2 of these modules.
    fn written(catalogue: &Catalogue, modules: &[&str]) -> Lora {
        let weights = Weights::of(catalogue);
        let factors = modules.iter().map(|module| {
            let (rule, _) = weights.0[format!("{module}.weight").as_str()];
            let (outputs, inputs) = (rule.shape[0], rule.shape[1]);
            let values = |count: u64| (0..count).map(|i| i as f32).collect::<Vec<_>>();
            let (a, b) = (values(2 * inputs), values(2 * outputs));
            ((*module).to_owned(), Factors::rounded((outputs, inputs), &a, &b))
        });
        let scratch = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(scratch.path()).unwrap().join("adapter");
        Lora::write(&folder, (2, 4.0), &factors.collect()).unwrap();
        Lora::read(&folder).unwrap()
    }

    #[test]
    fn factors_are_in_slices_of_the_slot_that_their_weight_is_in() {
        let catalogue = catalogue("qwen3_moe");
        let attention = "model.layers.0.self_attn";
        let experts = "model.layers.0.mlp.experts";
        let modules = [
            &*format!("{attention}.k_proj"),
            &format!("{attention}.o_proj"),
            &format!("{experts}.1.up_proj"),
            &format!("{experts}.2.up_proj"),
        ];
        let sources = adapter_sources(&catalogue, &written(&catalogue, &modules), "x");
        let slots: Vec<(&str, &str)> = sources
            .iter()
            .filter(|source| source.rule.source.ends_with("lora_B.weight"))
            .map(|source| (&*source.rule.source, &*source.rule.slot.0))
            .collect();
        let source = |module: &str| format!("adapter.x/base_model.model.{module}.lora_B.weight");
        let slot = |name: &str| format!("adapter.x/model.layers.0.{name}");
        let [k, o, one, two] = modules.map(source);
        let stack = slot("mlp.experts.w13_weight.lora_B.1");
        assert_eq!(
            slots,
            [
                (&*one, &*stack),
                (&two, &stack),
                (&k, &slot("self_attn.qkv_proj.lora_B.1")),
                (&o, &slot("self_attn.o_proj.lora_B.0")),
            ]
        );
        let rules: Vec<_> = sources.iter().map(|source| source.rule.clone()).collect();
        for topology in [Topology::SINGLE, Topology { tp: 2, pp: 2, ..Topology::tensor(2) }] {
            Placement::of(&rules, topology).unwrap();
        }
    }

    #[test]
    fn a_factors_digest_is_of_its_values_and_its_name() {
        let catalogue = catalogue("llama");
        let lora = written(&catalogue, &["model.layers.0.self_attn.q_proj"]);
        let of = |lora: &Lora, name: &str| adapter_sources(&catalogue, lora, name);
        let one = of(&lora, "x");
        assert_eq!(one, of(&lora, "x"));
        let digests = |sources: Vec<AdapterSource>| -> Vec<_> {
            sources.into_iter().map(|source| source.header.digest).collect()
        };
        assert_ne!(digests(one.clone()), digests(of(&lora, "y")));
        let mut other = lora;
        other.factors.values_mut().for_each(|factors| factors.b[3] = half::bf16::from_f32(0.5));
        let (one, other) = (digests(one), digests(of(&other, "x")));
        assert_eq!((one.len(), one[0] == other[0], one[1] == other[1]), (2, true, false));
    }
}
