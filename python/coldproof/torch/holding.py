"""What tensors hold: layout and digest by path, to hold an update against a cold load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from coldproof.tensors import spelling, walk
from coldproof.torch.digesting import outcomes
from coldproof.torch.owners import has_elements


@dataclass(frozen=True)
class Holding:
    """What one tensor holds."""

    dtype: str
    """Its element type, spelled as in safetensors."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: str | None
    """Of its path, element type, shape and elements; nothing where they cannot be read."""

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
    """Return what each tensor holds, by path; those on a device are read there.

    One that cannot be read has no digest, and the others have theirs.
    """
    return {
        path: Holding(
            spelling(tensors[path].dtype),
            tuple(tensors[path].shape),
            tuple(tensors[path].stride()),
            digest if isinstance(digest, str) else None,
        )
        for path, digest in outcomes({p: _elements(t) for p, t in tensors.items()}).items()
    }


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as ones of a type that is digested: complex ones as pairs of real ones,
    and those of one byte that safetensors has no name for as bytes.
    """
    plain = tensor.detach()
    if plain.is_complex():
        return torch.view_as_real(plain.resolve_conj())
    unnamed = spelling(plain.dtype) == str(plain.dtype).removeprefix("torch.")
    if unnamed and plain.element_size() == 1 and not plain.is_quantized:
        return plain.view(torch.uint8)
    return plain


def holdings(root: object) -> dict[str, Holding]:
    """Return what every tensor that can be reached from an object holds, by path.

    Taken of a cold load, it is what ``Retention.verify`` expects of an updated model.
    """
    tensors = {path: tensor for path, tensor in walk(root).tensors if has_elements(tensor)}
    return holdings_of(tensors)
