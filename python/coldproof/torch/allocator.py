"""The log of torch's caching allocator, from its own memory history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

Event = tuple[str, int, int, int]
"""A kind (``alloc``, ``free``, ``map``, ``unmap``), a serial, an address and bytes."""
Range = tuple[int, int]
"""An address and bytes."""
Segment = dict[str, Any]
Entry = dict[str, Any]

SHARED_POOL = (0, 0)
"""The pool of everything that is allocated outside of a graph's or a ``MemPool``'s own."""

_ALLOC, _FREE, _MAP, _UNMAP = "alloc", "free", "map", "unmap"
_ACTIONS = {
    "alloc": _ALLOC,
    # The owner lets go here; that other streams may still read the block makes it no safer.
    "free_requested": _FREE,
    "segment_alloc": _MAP,
    "segment_map": _MAP,
    "segment_free": _UNMAP,
    "segment_unmap": _UNMAP,
}


def pool_of(segment: Segment) -> tuple[int, ...]:
    """Return the id of the pool that a segment belongs to."""
    return tuple(segment.get("segment_pool_id", SHARED_POOL))


def blocks_of(segment: Segment) -> list[tuple[int, int, str]]:
    """Return (address, bytes, state) of each block of a segment."""
    blocks, at = [], segment["address"]
    for block in segment["blocks"]:
        at = block.get("address", at)
        blocks.append((at, block["size"], block["state"]))
        at += block["size"]
    return blocks


@dataclass(frozen=True)
class Reading:
    """The log at one time."""

    events: list[Event]
    """Blocks of the log's start, then every event since. A serial is never used again."""
    live: list[Range]
    """Blocks that are handed out now."""
    segments: list[Segment]
    """What the allocator holds now, as torch's memory snapshot says."""
    known: list[Range]
    """All memory that it ever had, also what went back to the driver."""
    gaps: list[str]
    """Why the log may lack events: nothing can then be said of what it does not show."""

    def pools(self, ids: Iterable[tuple[int, ...]]) -> list[Range]:
        """Return the memory of some pools: those of captured graphs."""
        wanted = set(ids) - {SHARED_POOL}
        own = [segment for segment in self.segments if pool_of(segment) in wanted]
        return [(segment["address"], segment["total_size"]) for segment in own]


class AllocatorLog:
    """What torch's allocator handed out and took back on one device, from now on.

    It turns torch's memory history on, without stack traces, and clears it; the history grows with
    every allocation until ``close`` turns it off. Memory that another allocator gives (a pool of an
    extension's own) is not in it.
    """

    def __init__(self, device: int | None = None) -> None:
        self.device = device
        self._events: list[Event] = []
        self._live: dict[int, int] = {}
        self._known: dict[int, Range] = {}
        self._gaps: list[str] = []
        self._first: list[tuple[object, ...]] = []
        self._read = 0
        self._is_open = torch.cuda.is_available()
        if not self._is_open:
            return
        self.device = torch.cuda.current_device() if device is None else device
        backend = torch.cuda.memory.get_allocator_backend()
        if backend != "native":
            self._gaps.append(f"torch's allocator `{backend}` keeps no history")
        record: Any = torch.cuda.memory._record_memory_history
        # Switching it off clears what it holds.
        record(None)
        record("all", context=None, stacks="python")
        segments, trace = self._snapshot()
        # What the trace already holds is in these blocks.
        self._read, self._first = len(trace), _beginning(trace)
        for segment in segments:
            self._note(segment["address"], segment["total_size"])
            for address, size, state in blocks_of(segment):
                if state == "active_allocated":
                    self._allocated(address, size)

    def close(self) -> None:
        """Turn torch's memory history off, for every log; what happens from now on is a gap."""
        if self._is_open:
            self._is_open = False
            record: Any = torch.cuda.memory._record_memory_history
            record(None)
            self._lacks("the log was closed")

    def read(self) -> Reading:
        """Read what happened so far."""
        segments, trace = self._snapshot()
        self._check_history(trace)
        for entry in trace[self._read :]:
            self._apply(entry)
        self._read = len(trace)
        for segment in segments:
            self._note(segment["address"], segment["total_size"])
        self._check_blocks(segments)
        events = list(self._events)
        # A serial is the place of its event, counted from 1.
        live = [(address, events[serial - 1][3]) for address, serial in self._live.items()]
        known = sorted(self._known.values())
        return Reading(events, sorted(live), segments, known, list(self._gaps))

    def _apply(self, entry: Entry) -> None:
        kind = _ACTIONS.get(entry["action"])
        address, size = entry.get("addr", 0), entry.get("size", 0)
        if kind == _ALLOC:
            self._allocated(address, size)
        elif kind == _FREE:
            if address in self._live:
                self._events.append((_FREE, self._live.pop(address), address, size))
        elif kind is not None:
            self._events.append((kind, 0, address, size))
            if kind == _MAP:
                self._note(address, size)

    def _allocated(self, address: int, size: int) -> None:
        serial = len(self._events) + 1
        self._live[address] = serial
        self._events.append((_ALLOC, serial, address, size))

    def _note(self, address: int, size: int) -> None:
        self._known[address] = (address, max(size, self._known.get(address, (0, 0))[1]))

    def _check_history(self, trace: list[Entry]) -> None:
        """Find that the history was cut, which torch does silently."""
        first = _beginning(trace)
        if len(trace) < self._read or first[: len(self._first)] != self._first:
            self._lacks("torch's memory history was cleared, switched off or outgrew its limit")
            self._read = 0
        self._first = first

    def _check_blocks(self, segments: list[Segment]) -> None:
        """Hold the blocks of the log against those that the allocator has."""
        blocks = {
            address
            for segment in segments
            for address, _, state in blocks_of(segment)
            if state == "active_allocated"
        }
        if blocks != self._live.keys():
            self._lacks("torch's memory history lacks events: it was switched off for a while")

    def _lacks(self, why: str) -> None:
        if why not in self._gaps:
            self._gaps.append(why)

    def _snapshot(self) -> tuple[list[Segment], list[Entry]]:
        """Return this device's segments and history."""
        if not torch.cuda.is_available():
            return [], []
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        segments = [s for s in snapshot["segments"] if s.get("device", self.device) == self.device]
        traces = snapshot["device_traces"]
        trace: list[Entry] = traces[self.device or 0] if traces else []
        return segments, trace


def _beginning(trace: list[Entry]) -> list[tuple[object, ...]]:
    """Return what tells a history from another. Torch converts its times anew at each reading."""
    return [tuple(entry.get(key) for key in ("action", "addr", "size")) for entry in trace[:8]]
