"""What a loader really wrote: copies from a source's storage into a parameter's, seen at dispatch.

No loader is asked. A copy whose source is a view of a delivered tensor and whose destination is a
view of a parameter is an application; its fragments are read off the two views. A loader that
computes before it copies (``-exp(A_log)``) leaves no such copy: its source counts as consumed, its
elements are not attributed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Box = list[list[int]]


def box_of(view: torch.Tensor, whole: tuple[int, ...]) -> Box | None:
    """The box of a row-major tensor of shape ``whole`` that ``view`` covers, if it is one.

    The view may be transposed or may lack axes of extent 1; a view that joins axes is a box only
    where it is everything.
    """
    total = 1
    for extent in whole:
        total *= extent
    if view.numel() == total and view.storage_offset() == 0:
        return [[0, extent] for extent in whole]
    steps = list(zip(view.stride(), view.shape, strict=True))
    rest = view.storage_offset()
    box: Box = []
    step = total
    for extent in whole:
        step = step // extent if extent else 0
        first, rest = divmod(rest, step) if step else (0, rest)
        length = next((size for stride, size in steps if stride == step and size > 1), 1)
        if first + length > extent:
            return None
        box.append([first, first + length])
    volume = 1
    for first, last in box:
        volume *= last - first
    return box if rest == 0 and volume == view.numel() else None


class Applications(TorchDispatchMode):
    """Records copies while weights are delivered through :meth:`deliver`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.delivered: dict[int, tuple[str, torch.Tensor]] = {}
        self.names: dict[int, str] = {}
        self.records: list[tuple[str, Box | None, str, Box | None]] = []
        self.consumed: set[str] = set()
        self.sent: list[str] = []

    def deliver(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[Any]:
        """Passes weights on and remembers whose storage is whose."""
        for name, tensor in weights:
            self.sent.append(name)
            self.delivered[tensor.untyped_storage().data_ptr()] = (name, tensor)
            yield name, tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for argument in args:
            if isinstance(argument, torch.Tensor) and not argument.is_meta:
                owner = self.delivered.get(argument.untyped_storage().data_ptr())
                if owner is not None and func is not torch.ops.aten.detach.default:
                    self.note(func, args, result, owner)
                    break
        return result

    def note(self, func: Any, args: Any, result: Any, owner: tuple[str, torch.Tensor]) -> None:
        """Notes what one operation did with a delivered tensor."""
        name, source = owner
        address = source.untyped_storage().data_ptr()
        if func is not torch.ops.aten.copy_.default:
            if isinstance(result, torch.Tensor) and not result.is_meta:
                # A view is not yet a use; a computed tensor is.
                if result.untyped_storage().data_ptr() != address:
                    self.consumed.add(name)
            return
        target, view = args[0], args[1]
        if target.is_meta or view.untyped_storage().data_ptr() != address:
            return
        self.consumed.add(name)
        slot = self.slot_of(target)
        if slot is not None:
            whole = tuple(self.model.get_parameter(slot).shape)
            boxes = box_of(view, tuple(source.shape)), box_of(target, whole)
            self.records.append((name, boxes[0], slot, boxes[1]))

    def slot_of(self, target: torch.Tensor) -> str | None:
        """The parameter whose storage ``target`` is a view of."""
        address = target.untyped_storage().data_ptr()
        known = self.names.get(address)
        if known is None or not self.is_at(known, address):
            self.names = {
                parameter.untyped_storage().data_ptr(): name
                for name, parameter in self.model.named_parameters()
                if not parameter.is_meta
            }
            known = self.names.get(address)
        return known

    def is_at(self, name: str, address: int) -> bool:
        """Whether the parameter still lies there: a freed address is used again."""
        try:
            parameter = self.model.get_parameter(name)
        except AttributeError:
            return False
        return not parameter.is_meta and parameter.untyped_storage().data_ptr() == address
