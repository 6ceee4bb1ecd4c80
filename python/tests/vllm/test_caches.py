"""What a llama serves from its prefix cache after an update that empties it, and one that does not.

A trainer that forgets ``reset_prefix_cache`` is told so by the rows that were not computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vllm.conftest import Proof, Prove


def cached(prove: Prove, *options: str) -> Proof:
    return prove("llama", "--lane", "caches", *options)


def test_an_update_that_empties_the_cache_is_proven(prove: Prove) -> None:
    proof = cached(prove)
    assert proof.summary == []
    assert proof.code == 0
    assert proof.category(7)["reason"].startswith("64 cached rows served on the old generation")


def test_an_update_that_leaves_the_cache_serves_from_it(prove: Prove) -> None:
    proof = cached(prove, "--skip", "invalidate")
    assert proof.code == 1
    assert proof.summary == [("cache-stale", "prefix-kv", "7 rows computed")]
    (finding,) = proof.findings
    assert finding["category"] == 7
    assert finding["why"].startswith("request `cache` took 64 rows from entries of the generation")
    # The rows are wrong, not only old: their logits are under the same finding.
    assert "largest difference from a cold load" in proof.events("cache-stale", "prefix-kv")
    assert {"kind": "setting", "text": "every update left step `invalidate` out"} in (
        proof.verdict["notes"]
    )
