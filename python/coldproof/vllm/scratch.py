"""Tensors that forwards write in place: metadata of the batch that is served, counters of a kernel.

What they hold is the last batch's and no generation's, so it is not compared with a cold load's;
where they lie still is.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from coldproof.tensors import digest

from .slots import Slot

State = tuple[torch.Tensor, int | str]
"""A tensor, held so that no other gets its memory, and what changes when its bytes do."""


class Scratch:
    """Compares unregistered tensors before and after a forward."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        """Slots that a forward was seen to write."""
        self._before: dict[str, State] = {}

    def before(self, slots: Iterable[Slot]) -> None:
        """Notes what there is before a forward."""
        self._before = states(slots)

    def after(self, slots: Iterable[Slot]) -> None:
        """Names what was written since."""
        own = states(slots)
        written = {name for name, state in own.items() if wrote(self._before.get(name), state)}
        self.names |= written
        self._before = {}


def states(slots: Iterable[Slot]) -> dict[str, State]:
    """The states of all slots that no module registers."""
    unregistered = (slot for slot in slots if slot.kind == "derived" and slot.layer is None)
    return {slot.name: state(slot.tensor) for slot in unregistered if slot.tensor is not None}


def state(tensor: torch.Tensor) -> State:
    """One tensor's: torch counts writes in place, unless the tensor is made for inference."""
    counts = not tensor.is_inference()
    return tensor, tensor._version if counts else digest(tensor)


def wrote(before: State | None, after: State) -> bool:
    """Whether the bytes changed where they are. A tensor that was made anew is no scratch."""
    if before is None or before[0].data_ptr() != after[0].data_ptr():
        return False
    return before[1] != after[1]
