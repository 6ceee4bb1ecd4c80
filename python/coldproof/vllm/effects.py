"""Whether a conversion after loading left anything in a layer that it had not found there.

A layer that post-load leaves as it is need not go through it again: an update that passes it over
has left nothing out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from coldproof.tensors import digest, walk

_PLAIN = (bool, int, float, str, type(None))


class Picture:
    """What can be told of a layer and of the object that converts it, at one moment.

    Of what is registered: place, layout and content. Of other tensors that can be reached: place,
    layout, and how often they were written. Of the rest: which objects there are that cannot be
    entered, and plain values. Functions are not told apart: what they hold is.
    """

    def __init__(self, layer: Any, owner: Any) -> None:
        found = walk({"layer": layer, "owner": owner})
        #: Kept, so that no address is used again before the next picture is taken.
        self._kept = (found.tensors, found.opaque)
        own = dict(_registered(layer))
        written = {id(tensor): digest(tensor) for tensor in own.values() if _has_content(tensor)}
        self._told = (
            {path: (*_place(t), written.get(id(t)) or _writes(t)) for path, t in found.tensors},
            {path: id(thing) for path, thing in found.opaque},
            [_plain(layer), _plain(owner)],
        )

    def __eq__(self, other: object) -> bool:
        """Whether nothing was changed between the two."""
        return isinstance(other, Picture) and self._told == other._told

    __hash__ = None  # type: ignore[assignment]


def _registered(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(layer, torch.nn.Module):
        yield from layer.named_parameters()
        yield from layer.named_buffers()


def _has_content(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    is_strided = tensor.layout is torch.strided and not tensor.is_meta
    at = (tensor.data_ptr(), tensor.stride()) if is_strided else (id(tensor), ())
    return (*at, tuple(tensor.shape), tensor.dtype)


def _writes(tensor: torch.Tensor) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:
        # One that was made in inference mode is not counted.
        return 0


def _plain(holder: Any) -> dict[str, Any]:
    held = getattr(holder, "__dict__", {})
    return {name: value for name, value in held.items() if isinstance(value, _PLAIN)}
