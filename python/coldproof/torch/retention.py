"""What captured graphs retain, and what became of it after an update (R71)."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from coldproof import _native
from coldproof.tensors import walk
from coldproof.torch.allocator import AllocatorLog, Event, Range, Reading
from coldproof.torch.digesting import reader
from coldproof.torch.holding import Holding
from coldproof.torch.owners import Owner, on_device, owners_of, registered, span
from coldproof.torch.report import Report, Row, Verification
from coldproof.torch.verification import Check

Node = tuple[list[int], str, str, int, str | None]
"""A path, a kind, a kernel, a number of arguments, and why it could not be read."""
Place = tuple[str, int, int, int, int, int | None]
"""A graph, a node, an argument, a byte in it, an address, and its place in a table."""
Fated = tuple[int, str, str | None, str, str]
"""An address, its class, its owner, its fate, and what there is to say of it."""


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
    mark: int | None
    """How many events came before ``mark``, where that was called."""
    pools: frozenset[tuple[int, ...]]
    owners: list[Owner]
    graphs: int
    nodes: dict[str, list[Node]]
    unfollowed: list[str]
    places: list[Place]
    gone: list[Event]
    """Of these places, those where the driver had no memory, whatever the log says."""
    known_to: dict[str, _Ranges]


class Retention:
    """Watches the memory of captured graphs: make it first, capture, update, then judge.

    ``keep_graph=True`` is what makes a ``torch.cuda.CUDAGraph`` readable. Without a GPU nothing is
    captured, and nothing is stale. Close it, or use it as a context, so that torch's memory history
    ends with it.
    """

    def __init__(self, device: int | None = None) -> None:
        self.log = AllocatorLog(device)
        self._reader: _native.Device | None = None
        if torch.cuda.is_available():
            self._reader = reader(self.log.device or 0)
        self._workspaces: list[Owner] = []
        self._captured: _Captured | None = None
        self._mark: int | None = None
        self._slots: dict[str, int] = {}
        self._aliases: dict[str, str] = {}

    def __enter__(self) -> Retention:
        """Watch until the context ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the log and torch's memory history; what is asked afterwards is UNDECIDED."""
        self.log.close()

    def mark(self) -> None:
        """Say that graphs are captured from now on: call it right before the first capture.

        What is freed between here and ``capture`` is then stale. Without a mark nobody knows
        whether a graph had it by then, and it is listed as unknown.
        """
        if self._mark is None:
            self._mark = len(self.log.read().events)

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
        walked = owners_of(roots)
        places = _places(censuses, reading)
        self._captured = _Captured(
            events=len(reading.events),
            mark=self._mark,
            pools=frozenset(tuple(graph.pool()) for graph in graphs.values()),
            owners=walked + self._workspaces,
            graphs=len(graphs),
            nodes={name: census.nodes for name, census in censuses.items()},
            unfollowed=[
                f"graph `{name}`: what lies at {address:#x} could not be read as a table"
                for name, census in censuses.items()
                for address in self._mapped(census.unfollowed)
            ],
            places=places,
            gone=self._unmapped(place[4] for place in places),
            known_to={
                "registry": _storages(
                    t for root in roots.values() for t in registered(root).values()
                ),
                "walk": _Ranges([owner[1:3] for owner in walked]),
                "recorder": _storages(recorded),
            },
        )
        self._mark = None
        self._name_slots(roots.get("owned"), sorted({place[4] for place in places}))
        return self.judge(**roots)

    def _name_slots(self, root: object, addresses: list[int]) -> None:
        """Note which paths name memory that a graph retains, and an address of it."""
        walked = walk(root)
        self._slots, self._aliases = {}, dict(walked.aliases)
        for path, tensor in walked.tensors:
            if on_device(tensor):
                start, size = span(tensor)
                index = bisect.bisect_left(addresses, start)
                if index < len(addresses) and addresses[index] < start + size:
                    self._slots[path] = addresses[index]
        for path, target in walked.aliases:
            if target in self._slots:
                self._slots[path] = self._slots[target]

    def judge(self, **roots: object) -> Report:
        """Say what became of every retained address. Ask after an update, before any replay."""
        self._noted()
        self._synchronise()
        return self._judged(roots)

    def _judged(self, roots: Mapping[str, object]) -> Report:
        captured = self._noted()
        reading = self.log.read()
        unread = [
            f"graph `{name}`, node {index}, {node[1]}: {node[4]}"
            for name, own in captured.nodes.items()
            for index, node in enumerate(own)
            if node[4] is not None
        ]
        nodes = sum(len(own) for own in captured.nodes.values())
        if captured.graphs and not nodes:
            unread.append("no node of any graph was read")
        rows = _rows(captured, reading, self._fates(captured, reading, roots))
        return Report(
            rows, nodes, unread + captured.unfollowed, reading.gaps, graphs=captured.graphs
        )

    def _fates(
        self, captured: _Captured, reading: Reading, roots: Mapping[str, object]
    ) -> list[Fated]:
        """Say what became of each place since the capture, and since the mark."""
        addresses = [place[4] for place in captured.places]
        unmapped = self._unmapped(addresses)
        pools, now = reading.pools(captured.pools), owners_of(roots) + self._workspaces

        def since(cut: int) -> list[Fated]:
            head, tail = reading.events[:cut], reading.events[cut:]
            events = [*head, *captured.gone, *tail, *unmapped]
            log = _native.RetainedLog(events, cut + len(captured.gone), pools)
            return log.judge(addresses, captured.owners, now)

        fates = since(captured.events)
        if captured.mark is None:
            return fates
        between = _blocks(reading.events[captured.mark : captured.events])
        pairs = zip(fates, since(captured.mark), strict=True)
        return [_since_mark(late, early, between) for late, early in pairs]

    def verify(self, expected: Mapping[str, Holding], **roots: object) -> Verification:
        """Judge, and hold what lies at every expected path against what a cold load holds there.

        ``expected`` is by path, such as ``holdings`` gives of a cold load; leave scratch out of it.
        What a graph retains is held to it where the graph reads it, and at its path too where that
        is elsewhere. The bytes are read twice: as the current stream would replay on them, and once
        the device was waited for. What is stale is not read.
        """
        self._noted()
        report = self._judged(roots)
        check = Check(expected, self._slots, report)
        check.find(walk(roots.get("owned")))
        # Without a device nothing is under way.
        early = check.read() if self._reader is not None else None
        self._synchronise()
        return check.verdict(early, check.read(), self._aliases)

    def _synchronise(self) -> None:
        if self._reader is not None:
            self._reader.synchronise()

    def _noted(self) -> _Captured:
        if self._captured is None:
            raise ValueError("nothing was captured; call `capture` first")
        return self._captured

    def _unmapped(self, addresses: Iterable[int]) -> list[Event]:
        """Return an event for each address under which the driver has no memory now."""
        addresses = set(addresses)
        gone = addresses.difference(self._mapped(addresses))
        return [("unmap", 0, address, 1) for address in sorted(gone)]

    def _mapped(self, addresses: Iterable[int]) -> list[int]:
        """Return the addresses under which the driver has memory; all where there is no driver."""
        device = self._reader
        found = sorted(set(addresses))
        return [a for a in found if device is None or device.allocation(a) is not None]


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


def _blocks(events: Iterable[Event]) -> _Ranges:
    """Return all memory that some events hand out."""
    return _Ranges((address, size) for kind, _, address, size in events if kind == "alloc")


def _since_mark(late: Fated, early: Fated, between: _Ranges) -> Fated:
    """Say what became of an address since the mark, where since the capture nothing did."""
    if late[3] != "alive":
        return late
    if early[3] in ("dangling", "reused"):
        return early
    # A block that came and went in between; what has one now says nothing of it.
    if late[1] == "unknown" and late[4] and between.has(late[0]):
        return (*late[:3], "dangling", "its block was freed before the census")
    return late


def _rows(captured: _Captured, reading: Reading, fates: list[Fated]) -> list[Row]:
    allocated = _Ranges(reading.known)
    is_open = any(kind == "unknown" and said for _, kind, _, _, said in fates)
    handed_out = _blocks(reading.events[: captured.events] if is_open else ())
    rows = []
    for place, (_, kind, owner, fate, said) in zip(captured.places, fates, strict=True):
        name, node, argument, offset, address, through = place
        kernel = captured.nodes[name][node][2]
        known = tuple(source for source, own in captured.known_to.items() if own.has(address))
        detail = said
        if kind == "unknown" and fate == "alive" and said:
            # No block lay there when it was captured.
            if not allocated.has(address):
                detail = "not the allocator's: a library's own memory, or a module's constants"
            elif handed_out.has(address):
                detail = "its block was freed before the census, and perhaps before the graph"
        where = (name, node, kernel, argument, offset, address, through)
        rows.append(Row(*where, kind, owner, fate, detail, known))
    return rows


def _storages(tensors: Iterable[torch.Tensor]) -> _Ranges:
    """Return the storages of tensors on an accelerator."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.is_cuda]
    return _Ranges([(storage.data_ptr(), storage.nbytes()) for storage in storages])
