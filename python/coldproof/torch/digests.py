"""Digests of many tensors where they lie: one launch for those on an accelerator."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from coldproof import _native
from coldproof.tensors import digest, spelling
from coldproof.torch.owners import on_device

Descriptor = tuple[str, str, list[int], list[int], int]
"""A name, a dtype as in safetensors, a shape, strides in elements and an address."""


@functools.cache
def reader(ordinal: int) -> _native.Device:
    """Return the reader of a device: one for all, so that the kernel is loaded once."""
    return _native.Device(ordinal)


def descriptor(name: str, tensor: torch.Tensor) -> Descriptor:
    """Describe a tensor to the device."""
    shape, stride = list(tensor.shape), list(tensor.stride())
    return name, spelling(tensor.dtype), shape, stride, tensor.data_ptr()


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the digest of each tensor (R61), by name: bit for bit what ``coldproof digest`` says.

    Those on an accelerator are read there, behind the current stream, without a copy to the host.
    """
    found: dict[str, str] = {}
    groups: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach()
        if on_device(plain) and not plain.is_conj() and not plain.is_neg():
            groups.setdefault(plain.get_device(), []).append((name, plain))
        else:
            found[name] = digest(plain, name=name)
    for ordinal, group in groups.items():
        plan = reader(ordinal).digests([descriptor(*entry) for entry in group])
        sums = plan.run(torch.cuda.current_stream(ordinal).cuda_stream)
        found.update(zip((name for name, _ in group), sums, strict=True))
    return {name: found[name] for name in tensors}
