"""Pressure and poison: what was freed is taken again and filled, as another request would."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from coldproof.torch.allocator import SHARED_POOL, Segment, blocks_of, pool_of

POISON = 0xFF
"""Fills floats of any width with NaN; indices then lie far out of range, so fill those with 0."""
# torch serves requests up to this size from segments of their own, larger ones from others.
_SMALL = 1 << 20


@dataclass(frozen=True)
class Pressure:
    """Memory that was free and is taken and filled, for as long as this lives."""

    tensors: list[torch.Tensor]

    @property
    def bytes(self) -> int:
        """Bytes that were filled."""
        return sum(tensor.numel() for tensor in self.tensors)

    def covers(self, address: int) -> bool:
        """Say whether an address was free and is filled now."""
        spans = ((tensor.data_ptr(), tensor.numel()) for tensor in self.tensors)
        return any(start <= address < start + size for start, size in spans)


def pressure(byte: int = POISON, device: int | None = None) -> Pressure:
    """Take every free block of torch's allocator again and fill it with a byte.

    What a captured graph still reads there it then reads from another's memory. Blocks of a
    graph's own pool are its own and stay.
    """
    if not torch.cuda.is_available():
        return Pressure([])
    ordinal = torch.cuda.current_device() if device is None else device
    torch.cuda.synchronize(ordinal)
    taken = []
    for stream, size in requests(torch.cuda.memory._snapshot()["segments"], ordinal):
        with torch.cuda.stream(_stream(stream, ordinal)):
            tensor = torch.empty(size, dtype=torch.uint8, device=f"cuda:{ordinal}")
            tensor.fill_(byte)
        taken.append(tensor)
    torch.cuda.synchronize(ordinal)
    return Pressure(taken)


def requests(segments: Iterable[Segment], device: int) -> list[tuple[int, int]]:
    """Return (stream, bytes) of allocations that take what is free now, the largest first."""
    found = []
    for segment in segments:
        if segment["device"] != device or pool_of(segment) != SHARED_POOL:
            continue
        for _, size, state in blocks_of(segment):
            if state == "inactive":
                small = segment["segment_type"] == "small"
                found += [(segment["stream"], part) for part in _parts(size, small=small)]
    return sorted(found, key=lambda request: request[1], reverse=True)


def _parts(size: int, *, small: bool) -> list[int]:
    """Cut a free block into requests that its kind of segment serves."""
    if not small:
        return [size] if size > _SMALL else []
    whole, rest = divmod(size, _SMALL)
    return [_SMALL] * whole + [rest] * (rest > 0)


def _stream(handle: int, device: int) -> torch.cuda.Stream:
    """Return the stream whose blocks these are: no other is given them."""
    if handle == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device=device)
