"""What the adapter observes where the catalogue or the bytes say nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from tests.vllm.conftest import Pair, Pairs, Prove

HEAD = "lm_head.weight"
#: Its slot is a handle.
OUT = "model.layers.0.self_attn.o_proj.weight"
FREQUENCIES = "model.layers.0.self_attn.rotary_emb.inv_freq"


def copied(of: Path, to: Path, config: dict[str, Any], *, frequencies: bool) -> Path:
    """A checkpoint with other words in its configuration, negative zeros in two tensors, and, if
    asked for, a tensor that no engine loads."""
    to.mkdir(parents=True)
    known = json.loads((of / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**known, **config}))
    tensors = load_file(of / "model.safetensors")
    tensors[HEAD][3] = -0.0
    tensors[OUT][3] = -0.0
    if frequencies:
        tensors[FREQUENCIES] = tensors[HEAD][5].float().abs() + float(to.name == "B")
    save_file(tensors, to / "model.safetensors")
    return to


def made(pair: Pairs, root: Path, config: dict[str, Any], *, frequencies: bool) -> Pair:
    llama = pair("llama")
    a = copied(llama.a, root / "A", config, frequencies=frequencies)
    return replace(llama, a=a, b=copied(llama.b, root / "B", config, frequencies=frequencies))


@pytest.fixture(scope="module")
def stranger(pair: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A family that vLLM knows and the catalogue does not."""
    config = {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": None,
    }
    return made(pair, tmp_path_factory.mktemp("stranger"), config, frequencies=True)


def test_an_unknown_model_is_held_against_its_files(prove: Prove, stranger: Pair) -> None:
    proof = prove(stranger, "--lane", "names", "--require", "6")
    assert proof.summary == []
    assert proof.code == 0
    reads = [json.loads(line).get("fact", {}) for line in proof.evidence.read_text().splitlines()]
    sources = {fact["source"] for fact in reads if fact["kind"] == "source-read-back"}
    assert sorted({FREQUENCIES, *sources}) == stranger.sources()
    unseen = proof.verdict["unseen"]
    assert f"{FREQUENCIES} (the cold load leaves it out as well)" in unseen
    assert f"{OUT} (the sign of its zeros)" in unseen
    assert not [line for line in unseen if "no slot holds" in line]


def test_of_an_unknown_model_what_never_came_is_one_finding(prove: Prove, stranger: Pair) -> None:
    key = "model.layers.0.self_attn.k_proj.weight"
    payload = ("--payload", f"without:{key}")
    proof = prove(stranger, "--lane", "names", "--require", "6", *payload)
    assert proof.code == 1
    assert ("source-missing", key) in [one[:2] for one in proof.summary], proof.summary


def test_negative_zeros_are_no_fault(
    prove: Prove, pair: Pairs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    llama = made(pair, tmp_path_factory.mktemp("zeros"), {}, frequencies=False)
    proof = prove(llama, "--lane", "names", "--require", "6")
    assert proof.summary == []
    assert proof.code == 0
    assert f"{OUT} (the sign of its zeros)" in proof.verdict["unseen"]
