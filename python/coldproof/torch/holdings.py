"""What tensors hold: layout and digest by path, to hold an update against a cold load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from coldproof.tensors import spelling, walk
from coldproof.torch.digests import digests
from coldproof.torch.owners import has_elements


@dataclass(frozen=True)
class Holding:
    """What one tensor holds."""

    dtype: str
    """Its element type, spelled as in safetensors."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: str
    """Of its path, element type, shape and elements."""

    def differs(self, other: Holding) -> str | None:
        """Say how it lies otherwise than another, whatever it holds; nothing where it does not."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return f"it is {self._layout()}, and {other._layout()} is expected"
        if self.stride != other.stride:
            return f"its strides are {self.stride}, and {other.stride} are expected"
        return None

    def _layout(self) -> str:
        return f"{self.dtype} of shape {list(self.shape)}"


def holdings_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Holding]:
    """Return what each tensor holds, by path; those on a device are read there."""
    return {
        path: Holding(
            spelling(tensors[path].dtype),
            tuple(tensors[path].shape),
            tuple(tensors[path].stride()),
            digest,
        )
        for path, digest in digests(tensors).items()
    }


def holdings(root: object) -> dict[str, Holding]:
    """Return what every tensor that can be reached from an object holds, by path.

    Taken of a cold load, it is what ``Retention.verify`` expects of an updated model.
    """
    tensors = {path: tensor for path, tensor in walk(root).tensors if has_elements(tensor)}
    return holdings_of(tensors)
