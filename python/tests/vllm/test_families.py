"""A complete, correct update of each family: vLLM serves B, or not, and why."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.vllm.conftest import Change, Pair, Pairs, Proof, Prove, Tensors

#: The RFC's categories that a vLLM without graphs and with one rank can show, and the transition.
SHOWN = "2,3,6,7,transition"
EXPERTS = re.compile(r"model\.layers\.([01])\.(?:mlp|block_sparse_moe)\.experts\b")


@pytest.fixture(scope="module")
def llama(prove: Prove) -> Proof:
    """All lanes."""
    return prove("llama", "--require", SHOWN)


def test_a_llama_is_proven_where_vllm_lets_itself_be_observed(llama: Proof) -> None:
    assert llama.summary == []
    assert llama.code == 0
    assert llama.verdict["verdict"] == "pass"
    assert llama.verdict["transition"]["status"] == "pass"
    for number in (2, 3, 6, 7):
        entry = llama.category(number)
        assert entry["status"] == "pass", entry
        assert entry["checks"] > 0


def test_a_cold_load_says_what_it_applied(llama: Proof, pair: Pairs) -> None:
    facts = [json.loads(line).get("fact", {}) for line in llama.evidence.read_text().splitlines()]
    cold = [fact for fact in facts if fact.get("transaction") == 1]
    sources = {fact["source"] for fact in cold if fact["kind"] == "application"}
    assert sorted(sources) == pair("llama").sources()
    receipts = [fact for fact in cold if fact["kind"] == "receipt"]
    assert receipts and all(receipt["unrouted"] == [] for receipt in receipts)


def test_what_is_not_covered_says_why(llama: Proof) -> None:
    for number, word in ((1, "graphs"), (5, "rank")):
        entry = llama.category(number)
        assert entry["status"] == "not_covered", entry
        assert word in entry["reason"]


def test_what_is_not_required_keeps_the_whole_from_passing(llama: Proof) -> None:
    assert llama.judged_again() == 0
    assert llama.judged_again("--require", "1,2,3,4,5,6,7,transition") == 3


def update(prove: Prove, family: str, *options: str) -> Proof:
    return prove(family, "--lane", "differential", "--require", "2,3,4", *options)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_family_that_reloads_right_is_left_alone(
    prove: Prove, family: str, packs_linear_layers: bool
) -> None:
    proof = update(prove, family)
    assert proof.summary == []
    assert proof.code in {0, 3}
    # Silence is not for want of looking. Where layers are not packed, less is derived.
    derived = 20 if packs_linear_layers else 10
    least = {2: derived, 3: 20, 4: derived}
    assert all(proof.category(number)["checks"] > many for number, many in least.items())


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_that_are_not_packed_again(prove: Prove, family: str) -> None:
    proof = update(prove, family)
    assert proof.code == 1
    assert all(EXPERTS.match(about) for about in proof.objects()), proof.summary
    # The cause: the object that packs them is told nothing.
    unfinished = map(EXPERTS.match, proof.objects("finalised-never"))
    assert {match and match[1] for match in unfinished} == {"0", "1"}


def test_experts_and_sinks_that_are_not_loaded(prove: Prove) -> None:
    proof = update(prove, "gpt_oss")
    assert proof.code == 1
    blamed = proof.objects()
    assert {match[1] for match in map(EXPERTS.match, blamed) if match} == {"0", "1"}
    for layer in ("model.layers.0.", "model.layers.1."):
        sinks = [one for one in blamed if one.startswith(layer) and one.endswith("attn.sinks")]
        assert sinks, proof.summary


def test_a_copy_of_the_sinks_in_another_dtype_stays_behind(prove: Prove) -> None:
    # The CPU attention takes sinks in bf16 as they are. Of others it makes an fp32 copy, at the
    # first forward and never again.
    proof = update(prove, "gpt_oss", "--engine-arg", 'dtype="float16"')
    assert proof.code == 1
    copies = [f"model.layers.{layer}.attn.attn/impl.sinks" for layer in (0, 1)]
    for copy in copies:
        assert copy in proof.objects("derived-stale"), proof.summary
        assert "it still holds the bytes of the generation before" in proof.events(
            "derived-stale", copy
        )
    # In bf16 there is none.
    assert not set(copies) & set(update(prove, "gpt_oss").objects())


@pytest.mark.parametrize("family", ["llama_tied", "gemma3"])
def test_a_tied_head_that_is_not_packed_again(prove: Prove, family: str) -> None:
    # Only the embedding is delivered, so the head that shares its weight is never finished, and the
    # copy that the head packed at the start serves on. Reloading A over A would not show it.
    proof = update(prove, family)
    assert all(about.startswith("lm_head") for about in proof.objects()), proof.summary
    if torch.cpu._is_amx_tile_supported():
        assert proof.code == 1
        assert proof.objects("finalised-never") == ["lm_head"], proof.summary


@pytest.mark.parametrize(
    ("family", "options", "mixers"),
    [
        # Where the prefix cache is on, its kernel cannot take a prompt of less than a block.
        ("mamba2", ("--engine-arg", "enable_prefix_caching=false"), ("layers.0", "layers.1")),
        ("nemotron_h", (), ("layers.0", "layers.2")),
    ],
)
def test_a_convolution_whose_kernel_is_not_copied_again(
    prove: Prove, family: str, options: tuple[str, ...], mixers: tuple[str, str]
) -> None:
    # The mixer keeps `conv1d.weight` a second time, in a buffer that no checkpoint carries.
    # Reloading A over A would not show it.
    proof = update(prove, family, *options)
    blamed = [about.partition(".")[2] for about in proof.objects()]
    wrong = [f"{mixer}.mixer.conv_weights" for mixer in mixers]
    assert set(blamed) <= set(wrong), proof.summary
    if torch.cpu._is_avx512_bf16_supported():
        # Elsewhere the kernel takes the weight as it is.
        assert proof.code == 1
        assert blamed == wrong, proof.summary


def with_latents(seed: int) -> Change:
    """Latents of 512 and rotary keys of 64: the CPU's kernels take no others."""
    generator = torch.Generator().manual_seed(seed)

    def change(tensors: Tensors) -> Tensors:
        shapes = {
            "q_b_proj": (4 * (32 + 64), 48),
            "kv_a_proj_with_mqa": (512 + 64, 160),
            "kv_a_layernorm": (512,),
            "kv_b_proj": (4 * (32 + 32), 512),
            "o_proj": (160, 4 * 32),
        }
        for layer in (0, 1):
            for name, shape in shapes.items():
                values = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
                key = f"model.layers.{layer}.self_attn.{name}.weight"
                tensors[key] = (values + (len(shape) == 1)).to(torch.bfloat16)
        return tensors

    return change


@pytest.fixture(scope="module")
def latent(pair: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A deepseek_v3 that vLLM's CPU build takes."""
    return pair("deepseek_v3").changed(
        tmp_path_factory.mktemp("latent"),
        with_latents(1),
        with_latents(2),
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        head_dim=64,
        qk_head_dim=96,
        v_head_dim=32,
    )


def test_absorbed_matrices_follow_their_projection(
    prove: Prove, latent: Pair, packs_linear_layers: bool
) -> None:
    backend = ("--engine-arg", 'attention_config={"backend": "CPU_MLA"}')
    proof = prove(latent, "--lane", "differential", "--require", "2,3,4", *backend)
    # The experts of the sparse layer are not packed again, as everywhere.
    assert all(about.startswith("model.layers.1.mlp.experts") for about in proof.objects())
    assert proof.category(2)["status"] == "pass", proof.summary
    assert proof.category(2)["checks"] > (20 if packs_linear_layers else 10)
    facts = [json.loads(line).get("fact", {}) for line in proof.evidence.read_text().splitlines()]
    read = {fact["slot"] for fact in facts if fact.get("kind") == "read-back"}
    for layer in (0, 1):
        owner = f"model.layers.{layer}.self_attn.mla_attn.mla_attn"
        assert {f"{owner}.W_UV", f"{owner}.W_UK_T"} <= read


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="another backend is taken")
def test_a_projection_that_was_given_away_cannot_be_written_again(
    prove: Prove, latent: Pair
) -> None:
    # The AMX backend packs both matrices for itself and leaves an empty `kv_b_proj.weight`, into
    # which the reload copies what it loaded.
    proof = prove(latent, "--lane", "differential", "--require", "2,3,4")
    assert proof.code == 1
    assert proof.objects() == ["finalize", "serve"], proof.summary
    assert proof.objects("step-refused") == ["finalize"]
    # As after every update that raises, the next request meets tensors on the meta device.
    assert proof.objects("engine-died") == ["serve"]
