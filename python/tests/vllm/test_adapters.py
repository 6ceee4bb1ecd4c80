"""A LoRA adapter that takes another's name on a llama, in each way in which a trainer replaces one.

vLLM keys the blocks of its prefix cache by an adapter's name, and since 0.31 by its path: content
that is written over the old files is taken for the old content.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from tests.vllm.conftest import Pairs, Proof, Prove

RANK = 8


def write_adapter(folder: Path, model: Path, seed: int) -> Path:
    """An adapter of ``q_proj`` and ``v_proj`` of all layers, as PEFT writes it."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    wide = {"q_proj": heads * size, "v_proj": config["num_key_value_heads"] * size}
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, rows in wide.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("lora_A", (RANK, hidden)), ("lora_B", (rows, RANK))):
                values = random.standard_normal(shape) * 0.1
                tensors[f"{prefix}.{part}.weight"] = values.astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "bias": "none"}
    about["target_modules"] = sorted(wide)
    (folder / "adapter_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def adapters(pair: Pairs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two adapters of other content."""
    root = tmp_path_factory.mktemp("adapters")
    first, second = (write_adapter(root / str(n), pair("llama").a, n) for n in (1, 2))
    return first, second


def swapped(prove: Prove, adapters: tuple[Path, Path], via: str) -> Proof:
    given = ["--adapter-from", str(adapters[0]), "--adapter-to", str(adapters[1])]
    return prove("llama", "--lane", "adapters", *given, "--adapter-via", via)


def test_content_that_was_written_over_the_old_is_taken_for_it(
    prove: Prove, adapters: tuple[Path, Path]
) -> None:
    proof = swapped(prove, adapters, "same-folder")
    assert proof.code == 1
    assert proof.summary == [("adapter-reused", "adapter", "7 rows computed")]
    (finding,) = proof.findings
    assert finding["category"] == 7
    assert "took 64 rows from entries computed with content" in finding["why"]
    # What is served is of neither adapter.
    assert "largest difference from a cold load" in proof.events("adapter-reused", "adapter")


@pytest.mark.parametrize("via", ["other-folder", "same-folder-reset"])
def test_what_empties_the_cache_or_leaves_it_out_of_reach_is_proven(
    prove: Prove, adapters: tuple[Path, Path], via: str
) -> None:
    proof = swapped(prove, adapters, via)
    assert proof.summary == []
    assert proof.code == 0
    entry = proof.category(7)
    assert entry["status"] == "pass"
    assert entry["reason"].startswith("64 cached rows served with one adapter")


def test_an_engine_that_may_serve_adapters_is_proven_as_one_that_may_not(prove: Prove) -> None:
    # Its layers hold their weights one level below the names of the checkpoint (F6.01), and beside
    # them lies the metadata of the last batch, which is no generation's.
    proof = prove(
        "llama",
        *("--lane", "differential", "--require", "2,3,4", "--engine-arg", "enable_lora=true"),
    )
    assert proof.summary == []
    assert proof.code == 0
    assert all(proof.category(number)["status"] == "pass" for number in (2, 3, 4))
    assert any("punica_wrapper" in entry for entry in proof.verdict["unseen"])
