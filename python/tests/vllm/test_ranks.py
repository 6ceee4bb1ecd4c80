"""Two tensor-parallel ranks, each a process: where every element came from (category 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vllm.conftest import Prove

RANKS = ("--tp", "2", "--lane", "routing", "--require", "5")
NORM = "model.layers.0.input_layernorm.weight"


def test_each_rank_has_its_own_share(prove: Prove) -> None:
    proof = prove("llama", *RANKS, fault="replicated-whole")
    assert proof.summary == []
    assert proof.code == 0
    assert "2 ranks" in proof.category(5)["reason"]


def test_a_replicated_parameter_that_receives_a_slice(prove: Prove) -> None:
    # The cold load cuts it the same way, so nothing but its origin says that it is wrong.
    proof = prove("llama", *RANKS, fault="replicated-slice")
    assert proof.code == 1
    assert proof.objects() == [NORM], proof.summary
    assert proof.category(5)["status"] == "fail"
    assert proof.findings[0]["ranks"] == [1]
