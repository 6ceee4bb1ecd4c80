"""Which box of a tensor a view of it covers."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

#: The first and the end of the indices along each axis.
Box = tuple[tuple[int, int], ...]


class Layout(NamedTuple):
    """Where the elements of a tensor lie in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    itemsize: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """The layout of a tensor."""
        shape, stride = tuple(tensor.shape), tensor.stride()
        return cls(shape, stride, tensor.storage_offset(), tensor.element_size())

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill one run of memory, each once, in whatever order of axes."""
        step = 1
        for stride, extent in sorted(zip(self.stride, self.shape, strict=True)):
            if extent > 1:
                if stride != step:
                    return False
                step *= extent
        return True


@functools.lru_cache(maxsize=4096)
def box_of(view: Layout, whole: Layout) -> Box | None:
    """The box of ``whole`` that ``view`` covers, if it is one.

    The view may be transposed or may lack axes of extent 1. One that joins axes is a box only where
    it is everything; one that repeats elements is none, and neither is one of another element size.
    The layers of a model are alike: what was found for one is kept for the others.
    """
    if view.itemsize != whole.itemsize or not whole.is_dense:
        return None
    volume = math.prod(view.shape)
    rest = view.offset - whole.offset
    if rest == 0 and volume == math.prod(whole.shape) and view.is_dense:
        return tuple((0, extent) for extent in whole.shape)
    if rest < 0 or volume == 0:
        return None
    lengths = {step: size for step, size in zip(view.stride, view.shape, strict=True) if size > 1}
    box = [(0, extent) for extent in whole.shape]
    axes = [axis for axis, extent in enumerate(whole.shape) if extent > 1]
    for axis in sorted(axes, key=lambda axis: -whole.stride[axis]):
        step = whole.stride[axis]
        first, rest = divmod(rest, step)
        last = first + lengths.get(step, 1)
        if last > whole.shape[axis]:
            return None
        box[axis] = (first, last)
    covered = math.prod(last - first for first, last in box)
    return tuple(box) if rest == 0 and covered == volume else None
