"""What a forward writes in place is scratch, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from coldproof.vllm.scratch import Scratch
from coldproof.vllm.slots import Slot


def learned(slot: Slot, forward: Callable[[], object]) -> bool:
    scratch = Scratch()
    scratch.before([slot])
    forward()
    scratch.after([slot])
    return slot.name in scratch.names


@pytest.mark.parametrize("inference", [False, True])
def test_a_tensor_that_a_forward_writes_is_scratch(inference: bool) -> None:
    with torch.inference_mode(inference):
        made = torch.zeros(4)
        slot = Slot("layer/lengths", "derived", made)
        assert learned(slot, lambda: made[:2].fill_(7))
        assert not learned(slot, lambda: made + 1)


def test_equal_bytes_are_a_write_too_where_torch_counts() -> None:
    made = torch.zeros(4)
    assert learned(Slot("layer/lengths", "derived", made), made.zero_)


def test_what_is_made_anew_or_registered_is_none() -> None:
    slot = Slot("layer/lengths", "derived", torch.zeros(4))

    def replaced() -> None:
        slot.tensor = torch.ones(4)

    assert not learned(slot, replaced)
    held = torch.zeros(4)
    for kind in ("parameter", "buffer"):
        assert not learned(Slot("layer.weight", kind, held), lambda: held.add_(1))


def test_once_learned_it_stays() -> None:
    scratch, made = Scratch(), torch.zeros(4)
    slot = Slot("layer/lengths", "derived", made)
    for forward in (lambda: made.add_(1), lambda: None):
        scratch.before([slot])
        forward()
        scratch.after([slot])
    assert scratch.names == {"layer/lengths"}
