"""What captured graphs retain, and what became of it after an update (R71)."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from coldproof import _native
from coldproof.tensors import walk
from coldproof.torch.allocator import AllocatorLog, Event, Range, Reading
from coldproof.torch.digests import reader
from coldproof.torch.holdings import Holding, holdings_of
from coldproof.torch.owners import Owner, on_device, owners_of, registered, span
from coldproof.torch.report import Finding, Report, Row, Verification

Node = tuple[list[int], str, str, int, str | None]
"""A path, a kind, a kernel, a number of arguments, and why it could not be read."""
Place = tuple[str, int, int, int, int, int | None]
"""A graph, a node, an argument, a byte in it, an address, and its place in a table."""


class _Ranges:
    """Ranges of memory, for one question: does an address lie in any?"""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, size in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], start + size)
            elif size > 0:
                self._starts.append(start)
                self._ends.append(start + size)

    def has(self, address: int) -> bool:
        """Say whether an address lies in one of them."""
        index = bisect.bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._ends[index]


@dataclass(frozen=True)
class _Captured:
    """What was so when the graphs were captured."""

    events: int
    pools: frozenset[tuple[int, ...]]
    owners: list[Owner]
    nodes: dict[str, list[Node]]
    places: list[Place]
    gone: list[Event]
    """Of these places, those where the driver had no memory, whatever the log says."""
    known_to: dict[str, _Ranges]


class Retention:
    """Watches the memory of captured graphs: make it first, capture, update, then judge.

    ``keep_graph=True`` is what makes a ``torch.cuda.CUDAGraph`` readable. Without a GPU nothing is
    captured, and nothing is stale.
    """

    def __init__(self, device: int | None = None) -> None:
        self.log = AllocatorLog(device)
        self._reader: _native.Device | None = None
        if torch.cuda.is_available():
            self._reader = reader(self.log.device or 0)
        self._workspaces: list[Owner] = []
        self._captured: _Captured | None = None
        self._slots: dict[str, int] = {}

    def name_workspaces(self, *streams: torch.cuda.Stream) -> int:
        """Have cuBLAS take its workspace for each stream now, and name what it took.

        Name the streams that graphs are captured on before the first product runs on them: a
        workspace that is taken during a capture is of the graph's own pool. Return how many blocks
        were taken.
        """
        if self._reader is None:
            return 0
        before = {event[1] for event in self.log.read().events}
        for stream in streams:
            with torch.cuda.stream(stream):
                for dtype in (torch.float32, torch.bfloat16):
                    a = torch.zeros(64, 64, dtype=dtype, device=stream.device)
                    torch.addmm(a[0], a, a)
                    torch.mm(a, a)
                    del a
            stream.synchronize()
        live: dict[int, Range] = {}
        for kind, serial, address, size in self.log.read().events:
            if kind == "alloc" and serial not in before:
                live[serial] = (address, size)
            elif kind == "free":
                live.pop(serial, None)
        kind = "library-workspace"
        taken = [(f"{kind}[{serial}]", *block, kind, False) for serial, block in live.items()]
        self._workspaces += taken
        return len(taken)

    def capture(
        self,
        graphs: Mapping[str, Any],
        recorded: Iterable[torch.Tensor] = (),
        **roots: object,
    ) -> Report:
        """Note what the graphs retain and who owns it; call this once they are captured.

        Roots are objects with tensors, named by the class of their memory (``owned=model``,
        ``kv=caches``). ``recorded`` are tensors that a dispatch recorder saw.
        """
        reading = self.log.read()
        censuses = {
            name: self._reader.census(graph.raw_cuda_graph(), reading.known)
            for name, graph in graphs.items()
            if self._reader is not None
        }
        owners = owners_of(roots) + self._workspaces
        places = _places(censuses, reading)
        self._captured = _Captured(
            events=len(reading.events),
            pools=frozenset(tuple(graph.pool()) for graph in graphs.values()),
            owners=owners,
            nodes={name: census.nodes for name, census in censuses.items()},
            places=places,
            gone=self._unmapped(place[4] for place in places),
            known_to={
                "registry": _storages(
                    t for root in roots.values() for t in registered(root).values()
                ),
                "walk": _Ranges([owner[1:3] for owner in owners]),
                "recorder": _storages(recorded),
            },
        )
        addresses = sorted({place[4] for place in self._captured.places})
        self._slots = {}
        for path, tensor in walk(roots.get("owned")).tensors:
            if on_device(tensor):
                start, size = span(tensor)
                index = bisect.bisect_left(addresses, start)
                if index < len(addresses) and addresses[index] < start + size:
                    self._slots[path] = addresses[index]
        return self.judge(**roots)

    def judge(self, **roots: object) -> Report:
        """Say what became of every retained address. Ask after an update, before any replay."""
        captured = self._noted()
        if self._reader is not None:
            self._reader.synchronise()
        reading = self.log.read()
        addresses = [place[4] for place in captured.places]
        events = [
            *reading.events[: captured.events],
            *captured.gone,
            *reading.events[captured.events :],
            *self._unmapped(addresses),
        ]
        cut = captured.events + len(captured.gone)
        log = _native.RetainedLog(events, cut, reading.pools(captured.pools))
        fates = log.judge(addresses, captured.owners, owners_of(roots) + self._workspaces)
        unread = [
            f"graph `{name}`, node {index}, {node[1]}: {node[4]}"
            for name, own in captured.nodes.items()
            for index, node in enumerate(own)
            if node[4] is not None
        ]
        nodes = sum(len(own) for own in captured.nodes.values())
        return Report(_rows(captured, reading, fates), nodes, unread, reading.gaps)

    def verify(self, expected: Mapping[str, Holding], **roots: object) -> Verification:
        """Judge, and hold what lies at every retained slot against what a cold load holds there.

        ``expected`` is by path, such as ``holdings`` gives of a cold load; leave scratch out of it.
        The bytes are read twice: as the current stream would replay on them, and once the device
        was waited for.
        """
        self._noted()
        tensors = self._retained(walk(roots.get("owned")).tensors, expected)
        early = holdings_of(tensors)
        report = self.judge(**roots)
        late = holdings_of(tensors)
        rows = {row.address: row for row in reversed(report.rows) if not row.is_stale}
        first = {path: rows[at] for path, at in self._slots.items() if at in rows}
        findings, verified = [], []
        for path in sorted(first.keys() & late.keys()):
            finding = _finding(path, first[path], expected[path], early[path], late[path])
            if finding is None:
                verified.append(path)
            else:
                findings.append(finding)
        return Verification(report, findings, verified, sorted(first.keys() - late.keys()))

    def _retained(
        self, walked: list[tuple[str, torch.Tensor]], expected: Mapping[str, Holding]
    ) -> dict[str, torch.Tensor]:
        """Return the tensor that lies now where each slot was captured, by the slot's path."""
        spans = [(*span(tensor), path, tensor) for path, tensor in walked if on_device(tensor)]
        own = {path: (start, size, tensor) for start, size, path, tensor in spans}
        found = {}
        for path, address in self._slots.items():
            if path not in expected:
                continue
            start, size, tensor = own.get(path, (0, 0, None))
            if tensor is None or not start <= address < start + size:
                # The storage goes by another name now.
                others = [s for s in spans if s[0] <= address < s[0] + s[1]]
                tensor = min(others, key=lambda s: s[1])[3] if others else None
            if tensor is not None:
                found[path] = tensor
        return found

    def _noted(self) -> _Captured:
        if self._captured is None:
            raise ValueError("nothing was captured; call `capture` first")
        return self._captured

    def _unmapped(self, addresses: Iterable[int]) -> list[Event]:
        """Return an event for each address under which the driver has no memory now."""
        device = self._reader
        if device is None:
            return []
        gone = [address for address in sorted(set(addresses)) if device.allocation(address) is None]
        return [("unmap", 0, address, 1) for address in gone]


def _places(censuses: Mapping[str, _native.Census], reading: Reading) -> list[Place]:
    """Return every address of every graph, without what lies behind the block of a table."""
    starts = [start for start, _ in reading.live]
    places = []
    for name, census in censuses.items():
        entries = census.addresses
        tables = {entry[:3]: entry[3] for entry in entries if entry[4] is None}
        for entry in entries:
            if entry[4] is not None:
                table = tables[entry[:3]]
                index = bisect.bisect_right(starts, table) - 1
                start, size = reading.live[index] if index >= 0 else (0, 0)
                if start <= table < start + size <= entry[4]:
                    continue
            places.append((name, *entry))
    return places


def _rows(
    captured: _Captured, reading: Reading, fates: list[tuple[int, str, str | None, str, str]]
) -> list[Row]:
    allocated = _Ranges(reading.known)
    rows = []
    for place, (_, kind, owner, fate, said) in zip(captured.places, fates, strict=True):
        name, node, argument, offset, address, through = place
        kernel = captured.nodes[name][node][2]
        known = tuple(source for source, own in captured.known_to.items() if own.has(address))
        detail = said
        if kind == "unknown" and fate == "alive" and not allocated.has(address):
            detail = "not the allocator's: a library's own memory, or a module's constants"
        where = (name, node, kernel, argument, offset, address, through)
        rows.append(Row(*where, kind, owner, fate, detail, known))
    return rows


def _finding(
    path: str, row: Row, expected: Holding, early: Holding, late: Holding
) -> Finding | None:
    layout = late.differs(expected)
    if layout is not None:
        return Finding("layout", path, row, layout)
    if late.digest != expected.digest:
        detail = f"a stale value in live storage: {late.digest}, and {expected.digest} is expected"
        return Finding("value", path, row, detail)
    if early.digest != late.digest:
        return Finding("in-flight", path, row, "it was still being written on another stream")
    return None


def _storages(tensors: Iterable[torch.Tensor]) -> _Ranges:
    """Return the storages of tensors on an accelerator."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.is_cuda]
    return _Ranges([(storage.data_ptr(), storage.nbytes()) for storage in storages])
