"""Names under which a sender may deliver the experts of a Qwen3-MoE."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vllm.conftest import Prove


def test_experts_under_the_fused_names_reach_what_they_reach_under_the_usual(
    prove: Prove,
) -> None:
    # `experts.gate_up_proj` and `experts.down_proj` are routed (F6.02). What is wrong, and under
    # either spelling, is that the experts are not packed again.
    proof = prove("qwen3_moe", "--lane", "names", "--require", "6")
    assert proof.code == 1
    experts = [f"model.layers.{layer}.mlp.experts/X86CPUUnquantizedExperts" for layer in (0, 1)]
    assert proof.objects("finalised-never") == experts
    assert proof.objects() == experts, proof.summary
