"""Digests of many tensors where they lie: one launch for those on an accelerator."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from coldproof import _native
from coldproof.errors import ColdproofError
from coldproof.tensors import digest, spelling
from coldproof.torch.owners import on_device, span

Descriptor = tuple[str, str, list[int], list[int], int]
"""A name, a dtype as in safetensors, a shape, strides in elements and an address."""
Named = tuple[str, torch.Tensor]
"""A name and what goes by it."""


@functools.cache
def reader(ordinal: int) -> _native.Device:
    """Return the reader of a device: one for all, so that the kernel is loaded once."""
    return _native.Device(ordinal, "rocm" if torch.version.hip else "cuda")


def descriptor(name: str, tensor: torch.Tensor) -> Descriptor:
    """Describe a tensor to the device."""
    shape, stride = list(tensor.shape), list(tensor.stride())
    return name, spelling(tensor.dtype), shape, stride, tensor.data_ptr()


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the digest of each tensor (R61), by name: bit for bit what ``coldproof digest`` says.

    Those on an accelerator are read there, behind the current stream. Only what the kernel does not
    take is copied to the host: more than seven axes, an address off its element's alignment.
    """
    found = {}
    for name, outcome in outcomes(tensors).items():
        if isinstance(outcome, Exception):
            raise outcome
        found[name] = outcome
    return found


def outcomes(tensors: Mapping[str, torch.Tensor]) -> dict[str, str | Exception]:
    """Return the digest of each tensor, or why it has none: one says nothing of the others."""
    found: dict[str, str | Exception] = {}
    groups: dict[int, list[Named]] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach()
        if on_device(plain) and not plain.is_conj() and not plain.is_neg():
            groups.setdefault(plain.get_device(), []).append((name, plain))
        else:
            found[name] = _copied(name, plain)
    for ordinal, group in groups.items():
        stream = torch.cuda.current_stream(ordinal).cuda_stream
        found.update(_in_place(reader(ordinal), stream, group))
    return {name: found[name] for name in tensors}


def _in_place(
    device: _native.Device, stream: int, group: list[Named]
) -> dict[str, str | Exception]:
    try:
        sums = device.digests([descriptor(*entry) for entry in group]).run(stream)
    except ColdproofError as error:
        if len(group) > 1:
            # A table is taken as a whole or not at all: find the one that spoils it.
            half = len(group) // 2
            halves = (_in_place(device, stream, part) for part in (group[:half], group[half:]))
            return {name: outcome for part in halves for name, outcome in part.items()}
        ((name, tensor),) = group
        # A copy of what has no memory would end the process's work on the device.
        return {name: _copied(name, tensor) if _is_there(device, tensor) else error}
    return dict(zip((name for name, _ in group), sums, strict=True))


def _copied(name: str, tensor: torch.Tensor) -> str | Exception:
    try:
        return digest(tensor, name=name)
    except ColdproofError as error:
        return error


def _is_there(device: _native.Device, tensor: torch.Tensor) -> bool:
    """Say whether the driver has memory where a tensor begins and where it ends."""
    start, size = span(tensor)
    ends = (start, start + size - 1) if size else ()
    return all(device.allocation(address) is not None for address in ends)
