"""Names under which a sender may deliver the experts of a Qwen3-MoE."""

from __future__ import annotations

import re
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
    experts = proof.objects("finalised-never")
    # Which experts vLLM takes goes by the processor.
    of = re.compile(r"model\.layers\.([01])\.mlp\.experts/\w*CPUUnquantizedExperts")
    assert [match and match[1] for match in map(of.fullmatch, experts)] == ["0", "1"]
    assert proof.objects() == experts, proof.summary
