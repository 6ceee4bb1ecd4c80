"""What the adapter observes where the catalogue or the bytes say nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.vllm.conftest import Change, Pair, Pairs, Prove, Tensors

HEAD = "lm_head.weight"
#: Its slot is a handle, where layers are packed.
OUT = "model.layers.0.self_attn.o_proj.weight"
FREQUENCIES = "model.layers.0.self_attn.rotary_emb.inv_freq"


def with_negative_zeros(tensors: Tensors) -> Tensors:
    """A row of negative zeros in two tensors."""
    tensors[HEAD][3] = -0.0
    tensors[OUT][3] = -0.0
    return tensors


def with_frequencies(by: float) -> Change:
    """These zeros, and a tensor that no engine loads, ``by`` larger."""

    def change(tensors: Tensors) -> Tensors:
        frequencies = tensors[HEAD][5].float().abs() + by
        return {**with_negative_zeros(tensors), FREQUENCIES: frequencies}

    return change


@pytest.fixture(scope="module")
def stranger(pair: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A family that vLLM knows and the catalogue does not."""
    return pair("llama").changed(
        tmp_path_factory.mktemp("stranger"),
        with_frequencies(0.0),
        with_frequencies(1.0),
        model_type="mistral",
        architectures=["MistralForCausalLM"],
        sliding_window=None,
    )


def test_an_unknown_model_is_held_against_its_files(
    prove: Prove, stranger: Pair, packs_linear_layers: bool
) -> None:
    proof = prove(stranger, "--lane", "names", "--require", "6")
    assert proof.summary == []
    assert proof.code == 0
    reads = [json.loads(line).get("fact", {}) for line in proof.evidence.read_text().splitlines()]
    sources = {fact["source"] for fact in reads if fact.get("kind") == "source-read-back"}
    assert sorted({FREQUENCIES, *sources}) == stranger.sources()
    unseen = proof.verdict["unseen"]
    assert f"{FREQUENCIES} (the cold load leaves it out as well)" in unseen
    assert (f"{OUT} (the sign of its zeros)" in unseen) == packs_linear_layers
    assert not [line for line in unseen if "no slot holds" in line]


def test_of_an_unknown_model_what_never_came_is_one_finding(prove: Prove, stranger: Pair) -> None:
    key = "model.layers.0.self_attn.k_proj.weight"
    payload = ("--payload", f"without:{key}")
    proof = prove(stranger, "--lane", "names", "--require", "6", *payload)
    assert proof.code == 1
    assert ("source-missing", key) in [one[:2] for one in proof.summary], proof.summary


def test_negative_zeros_are_no_fault(
    prove: Prove, pair: Pairs, tmp_path: Path, packs_linear_layers: bool
) -> None:
    llama = pair("llama").changed(tmp_path, with_negative_zeros, with_negative_zeros)
    proof = prove(llama, "--lane", "names", "--require", "6")
    assert proof.summary == []
    assert proof.code == 0
    unseen = proof.verdict["unseen"]
    assert (f"{OUT} (the sign of its zeros)" in unseen) == packs_linear_layers
