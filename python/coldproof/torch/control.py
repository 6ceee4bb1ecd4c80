"""The positive control: a replay must show that a slot was changed in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch


def unseen(slots: Mapping[str, torch.Tensor], run: Callable[[], torch.Tensor]) -> list[str]:
    """Return the slots whose change in place the output of ``run`` does not show.

    ``run`` replays and returns its output, the same for the same state. Each slot is changed alone
    and then holds what it held. Of an unseen slot an equal output says nothing.
    """
    base = _bytes(run())
    return [name for name, slot in slots.items() if not _shows(slot.detach(), run, base)]


def _shows(slot: torch.Tensor, run: Callable[[], torch.Tensor], base: torch.Tensor) -> bool:
    changed = _changed(slot)
    if changed is None:
        return False
    kept = slot.clone()
    try:
        slot.copy_(changed)
        return not torch.equal(_bytes(run()), base)
    finally:
        slot.copy_(kept)


def _changed(slot: torch.Tensor) -> torch.Tensor | None:
    """Return other elements that are safe to run with: of whole numbers none is a new one but 0."""
    if slot.is_floating_point() and slot.element_size() > 1:
        return slot + 1
    rolled = slot.flatten().view(_whole(slot)).roll(1).view(slot.dtype).reshape(slot.shape)
    for other in (rolled, torch.zeros_like(slot)):
        if not torch.equal(_bytes(other), _bytes(slot)):
            return other
    return None


def _whole(slot: torch.Tensor) -> torch.dtype:
    """Return an element type of the same width that can be moved about."""
    return torch.uint8 if slot.element_size() == 1 else slot.dtype


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor's bytes: NaN equals itself there."""
    return tensor.detach().clone().contiguous().flatten().view(torch.uint8)
