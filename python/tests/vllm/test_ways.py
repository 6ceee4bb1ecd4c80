"""The ways into a live llama, but for the iterator that all other tests take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.vllm.conftest import Proof, Prove


def by(prove: Prove, way: str) -> Proof:
    return prove("llama", "--lane", "differential", "--require", "2,3,4", "--via", way)


@pytest.mark.parametrize("way", ["reload-path", "transfer"])
def test_a_reload_by_path_and_a_session_in_chunks_are_proven(prove: Prove, way: str) -> None:
    # A chunk of the session ends between the `k_proj` and the `q_proj` of a layer (F3.07).
    proof = by(prove, way)
    assert proof.summary == []
    assert proof.code == 0


def test_a_loader_that_is_called_by_itself_finds_packed_weights(
    prove: Prove, packs_linear_layers: bool
) -> None:
    # `model.load_weights`, one tensor at a time: the parameters of packed layers are empty, so it
    # raises at the first, and the tensors before it are in place: what serves is of neither.
    proof = by(prove, "load-weights")
    assert proof.code == 1
    if not packs_linear_layers:
        # Every tensor is in place, and no layer was finished: R23 asks for that, whatever it does.
        assert {one[0] for one in proof.summary} == {"finalised-never"}
        assert all(proof.category(number)["status"] == "pass" for number in (2, 4))
        return
    found = [one[:2] for one in proof.summary]
    mixed = ("mixed-generation", "transition `A again`")
    assert found == [("step-refused", "finalize"), mixed]
