"""The torch adapter over a device that a test makes up: CPU tensors, a recorded graph, a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from coldproof import digest  # noqa: E402
from coldproof.torch import Retention, Verification, holdings, unseen  # noqa: E402
from coldproof.torch import owners as owners_module  # noqa: E402
from coldproof.torch import retention as retention_module  # noqa: E402
from coldproof.torch import verification as verification_module  # noqa: E402
from coldproof.torch.allocator import AllocatorLog  # noqa: E402
from coldproof.torch.holding import holdings_of as holdings_of_all  # noqa: E402
from coldproof.torch.poison import requests  # noqa: E402

Entry = dict[str, Any]
POOL = (7, 0)


@dataclass
class History:
    """Torch's memory history and segments, as its snapshot gives them."""

    trace: list[Entry] = field(default_factory=list)
    segments: list[Entry] = field(default_factory=list)
    switched: list[str | None] = field(default_factory=list)

    def note(self, action: str, address: int, size: int = 512) -> None:
        self.trace.append(
            {"action": action, "addr": address, "size": size, "time_us": len(self.trace)}
        )

    def segment(self, address: int, *blocks: str, pool: tuple[int, int] = (0, 0)) -> None:
        self.segments = [s for s in self.segments if s["address"] != address]
        self.segments.append(
            {
                "address": address,
                "total_size": 512 * len(blocks),
                "segment_pool_id": pool,
                "device": 0,
                "blocks": [{"size": 512, "state": state} for state in blocks],
            }
        )

    def snapshot(self) -> Entry:
        return {"segments": self.segments, "device_traces": [self.trace]}


LIVE, FREE = "active_allocated", "inactive"


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    history = History()
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda.memory, "get_allocator_backend", lambda: "native")
    record = lambda enabled, **_: history.switched.append(enabled)  # noqa: E731
    monkeypatch.setattr(cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(cuda.memory, "_snapshot", history.snapshot)
    yield history


def test_a_log_holds_what_was_there_and_what_happened_since(history: History) -> None:
    history.segment(0x1000, LIVE, FREE)
    log = AllocatorLog()
    history.note("segment_alloc", 0x8000, 1024)
    history.note("alloc", 0x8000, 100)
    history.note("free_requested", 0x1000)
    history.note("free_completed", 0x1000)
    history.segment(0x1000, FREE, FREE)
    history.segment(0x8000, LIVE, FREE, pool=POOL)
    reading = log.read()
    assert reading.events == [
        ("alloc", 1, 0x1000, 512),
        ("map", 0, 0x8000, 1024),
        ("alloc", 3, 0x8000, 100),
        ("free", 1, 0x1000, 512),
    ]
    assert reading.known == [(0x1000, 1024), (0x8000, 1024)]
    assert reading.gaps == []
    assert (reading.pools([POOL]), reading.pools([(0, 0), (8, 0)])) == ([(0x8000, 1024)], [])
    assert log.read().events == reading.events


def test_a_history_that_was_cut_or_switched_off_is_a_gap(history: History) -> None:
    history.segment(0x1000, LIVE)
    history.note("snapshot", 0)
    log = AllocatorLog()
    assert log.read().gaps == []
    history.trace.clear()
    (gap,) = log.read().gaps
    assert "outgrew its limit" in gap

    log = AllocatorLog()
    history.segment(0x1000, FREE)
    (gap,) = log.read().gaps
    assert "switched off for a while" in gap
    # It stays one: what happened meanwhile is not known.
    history.segment(0x1000, LIVE)
    assert log.read().gaps == [gap]


def test_an_allocator_without_history_is_a_gap(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = torch.cuda.memory
    monkeypatch.setattr(backend, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert AllocatorLog().read().gaps == ["torch's allocator `cudaMallocAsync` keeps no history"]


@dataclass
class Graph:
    """A captured graph of one kernel, by the addresses that it retains."""

    addresses: list[int]
    why: str | None = None
    table: dict[int, int] = field(default_factory=dict)
    """Addresses that stand in device memory behind the last one, by their place."""

    def raw_cuda_graph(self) -> Graph:
        return self

    def pool(self) -> tuple[int, int]:
        return POOL


@dataclass
class Census:
    addresses: list[tuple[int, int, int, int, int | None]]
    nodes: list[tuple[list[int], str, str, int, str | None]]
    unfollowed: list[int]


class Device:
    """A reader of graphs that a test makes up; waiting for it may land a copy."""

    def __init__(self) -> None:
        self.lands: Callable[[], object] = lambda: None
        self.gone: set[int] = set()
        self.unfollowed: list[int] = []

    def census(self, graph: Graph, known: object) -> Census:
        places: list[tuple[int, int, int, int, int | None]] = [
            (0, index, 0, address, None) for index, address in enumerate(graph.addresses)
        ]
        last = len(places) - 1
        places += [(0, last, 0, address, place) for place, address in graph.table.items()]
        nodes = [([0], "kernel", "gemm", len(places), graph.why)] if places else []
        return Census(places, nodes, self.unfollowed)

    def synchronise(self) -> None:
        self.lands()

    def allocation(self, address: int) -> tuple[int, int] | None:
        return None if address in self.gone else (address, 1)


class Kernel:
    def __init__(self, scale: Any) -> None:
        self.scale = scale


Module: Any = torch.nn.Module


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(64))
        self.kernel = Kernel(torch.full((64,), 2.0))


@dataclass
class Engine:
    history: History
    device: Device
    watch: Retention
    model: Model
    expected: dict[str, Any]

    def capture(
        self,
        *,
        why: str | None = None,
        extra: tuple[int, ...] = (),
        table: dict[int, int] | None = None,
    ) -> Any:
        addresses = [self.model.weight.data_ptr(), self.model.kernel.scale.data_ptr()]
        graph = Graph([*addresses, *extra], why, table or {})
        return self.watch.capture({"decode": graph}, owned=self.model)

    def verify(self) -> Verification:
        return self.watch.verify(self.expected, owned=self.model)


@pytest.fixture
def engine(history: History, monkeypatch: pytest.MonkeyPatch) -> Engine:
    device = Device()
    for module in (owners_module, retention_module, verification_module):
        monkeypatch.setattr(module, "on_device", lambda tensor: tensor.layout is torch.strided)
    monkeypatch.setattr(retention_module, "reader", lambda ordinal: device)
    monkeypatch.setattr(retention_module, "_storages", lambda tensors: retention_module._Ranges([]))
    cold = Model()
    cold.weight.mul_(3)
    cold.kernel.scale.mul_(3)
    return Engine(history, device, Retention(), Model(), holdings(cold))


def named(engine: Engine, path: str, value: float) -> None:
    """Expect 64 elements of a value at one more path."""
    tensor = torch.full((64,), float(value))
    engine.expected[path] = replace(
        engine.expected["kernel.scale"], digest=digest(tensor, name=path)
    )


def test_an_update_in_place_is_silent(engine: Engine) -> None:
    first = engine.capture()
    assert (first.may_resume, first.nodes, dict(first.addresses())) == (True, 1, {"owned": 2})
    engine.model.weight.mul_(3)
    engine.model.kernel.scale.mul_(3)
    seen = engine.verify()
    assert (seen.may_resume, seen.findings, seen.unheld) == (True, [], [])
    assert seen.verified == ["kernel.scale", "weight"]


def test_a_rebuilt_object_is_stale_before_any_replay(engine: Engine) -> None:
    engine.capture()
    engine.model.weight.mul_(3)
    old = engine.model.kernel
    engine.model.kernel = Kernel(old.scale * 3)
    seen = engine.verify()
    (row,) = seen.report.stale
    assert (row.owner, row.fate, row.node, row.argument) == ("kernel.scale", "rebound", 0, 1)
    assert str(row).startswith("kernel.scale: rebound at 0x")
    assert (seen.may_resume, seen.verified) == (False, ["weight"])


def test_memory_that_the_driver_took_back_is_dangling(engine: Engine) -> None:
    engine.capture()
    engine.device.gone.add(engine.model.weight.data_ptr())
    (row,) = engine.watch.judge(owned=engine.model).stale
    assert (row.owner, row.fate, row.detail) == ("weight", "dangling", "no memory lies there")


def test_what_had_no_memory_when_it_was_captured_is_no_address(engine: Engine) -> None:
    # A known range of the log that is longer than what is mapped.
    engine.history.segment(0x1000, FREE)
    engine.device.gone.add(0x1000)
    assert engine.capture(extra=(0x1000,)).stale == []
    assert engine.watch.judge(owned=engine.model).stale == []
    # Memory that goes later leaves an address behind.
    engine.device.gone.add(engine.model.weight.data_ptr())
    (row,) = engine.watch.judge(owned=engine.model).stale
    assert row.owner == "weight"


def test_a_stale_value_in_live_storage_is_a_finding_of_its_own(engine: Engine) -> None:
    engine.capture()
    engine.model.weight.mul_(3)
    seen = engine.verify()
    (finding,) = seen.findings
    assert (finding.kind, finding.path) == ("value", "kernel.scale")
    assert (seen.report.stale, seen.may_resume, seen.verified) == ([], False, ["weight"])


def test_another_layout_over_the_same_storage_is_a_finding(engine: Engine) -> None:
    engine.capture()
    engine.model.weight.mul_(3)
    engine.model.kernel.scale.mul_(3)
    engine.model.weight = engine.model.weight.view(8, 8)
    (finding,) = engine.verify().findings
    assert (finding.kind, finding.path) == ("layout", "weight")
    assert "F32 of shape [8, 8], and F32 of shape [64] is expected" in finding.detail


def test_a_copy_that_lands_only_once_the_device_was_waited_for_is_found(engine: Engine) -> None:
    engine.capture()
    engine.model.kernel.scale.mul_(3)
    engine.device.lands = lambda: engine.model.weight.fill_(3)
    (finding,) = engine.verify().findings
    assert (finding.kind, finding.path) == ("in-flight", "weight")
    assert engine.verify().may_resume


def test_a_buffer_keeps_a_slot_alive_and_is_held_to_its_bytes(engine: Engine) -> None:
    model = engine.model
    model.register_buffer("alias", model.kernel.scale)
    named(engine, "alias", 6)
    engine.capture()
    model.weight.mul_(3)
    model.alias.mul_(3)
    model.kernel.scale = model.alias.clone()
    seen = engine.verify()
    assert (seen.may_resume, seen.report.stale) == (True, [])
    assert seen.verified == ["alias", "kernel.scale", "weight"]
    # What the graph reads is held to every name that it had.
    model.alias.zero_()
    kinds = {(f.kind, f.path, f.row is None) for f in engine.verify().findings}
    assert kinds == {("value", "alias", False), ("value", "kernel.scale", False)}
    # A name that went elsewhere is held to its own bytes too.
    model.alias.fill_(6)
    model.kernel.scale.zero_()
    (finding,) = engine.verify().findings
    assert (finding.kind, finding.path, finding.row) == ("value", "kernel.scale", None)
    assert str(finding).endswith("(retained by no graph)")


def test_another_name_of_a_slot_vouches_for_it(engine: Engine) -> None:
    model = engine.model
    model.register_buffer("alias", model.kernel.scale)
    engine.capture()
    model.weight.mul_(3)
    model.alias.mul_(3)
    # A cold load of which the walk found the other name.
    assert (engine.verify().may_resume, engine.verify().unheld) == (True, [])
    del engine.expected["kernel.scale"]
    assert engine.verify().unheld == ["alias"]


def test_a_slot_is_held_where_it_lies_under_a_name_that_is_new(engine: Engine) -> None:
    model = engine.model
    engine.capture()
    model.weight.mul_(3)
    model.kernel.scale.mul_(3)
    vars(model.kernel)["scale2"] = vars(model.kernel).pop("scale")
    seen = engine.verify()
    assert (seen.may_resume, seen.verified) == (True, ["kernel.scale", "weight"])
    # Where the name is of another root, nothing is found to hold it to.
    kept = {"stash": vars(model.kernel).pop("scale2")}
    seen = engine.watch.verify(engine.expected, owned=model, kv=kept)
    assert ([f.kind for f in seen.findings], seen.report.stale) == (["missing"], [])
    assert seen.undecided == ["kernel.scale: no tensor is found where a graph reads it"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_only_stays_behind_is_stale(engine: Engine, when: str) -> None:
    model = engine.model
    if when == "before":
        model.compiled = [model.kernel.scale]
    engine.capture()
    model.compiled, model.kernel.scale = [model.kernel.scale], torch.zeros(64)
    (row,) = engine.watch.judge(owned=model).stale
    assert row.fate == "rebound"


def test_slots_that_change_places_are_stale(engine: Engine) -> None:
    model = engine.model
    engine.capture()
    model.weight, model.kernel.scale = model.kernel.scale, model.weight
    fates = {row.owner: row.fate for row in engine.verify().report.stale}
    assert fates == {"weight": "rebound", "kernel.scale": "rebound"}


def test_what_nobody_vouches_for_is_listed(engine: Engine) -> None:
    engine.capture()
    del engine.expected["kernel.scale"]
    engine.model.weight.mul_(3)
    seen = engine.verify()
    assert (seen.verified, seen.unheld) == (["weight"], ["kernel.scale"])


def test_what_cannot_be_read_leaves_it_undecided(engine: Engine) -> None:
    report = engine.capture(why="nodes of this kind are not read")
    (reason,) = report.undecided
    assert reason == "graph `decode`, node 0, kernel: nodes of this kind are not read"
    assert (report.stale, report.may_resume) == ([], False)
    engine.capture()
    engine.history.segment(0x1000, LIVE)
    report = engine.watch.judge(owned=engine.model)
    assert (len(report.undecided), report.stale, report.may_resume) == (1, [], False)


def test_an_unknown_address_is_listed_with_what_is_known_of_it(engine: Engine) -> None:
    engine.history.segment(0x1000, FREE)
    (free, other) = engine.capture(extra=(0x1000, 0x9000)).unknown
    assert free.detail == "no block of the log lay there when it was captured"
    assert other.detail.startswith("not the allocator's")
    assert engine.watch.judge(owned=engine.model).may_resume


def test_what_no_graph_retains_is_verified_by_its_path(engine: Engine) -> None:
    named(engine, "head", 3)
    engine.model.head = torch.full((64,), 3.0)
    engine.capture()
    engine.model.weight.mul_(3)
    engine.model.kernel.scale.mul_(3)
    seen = engine.verify()
    assert (seen.may_resume, seen.verified) == (True, ["head", "kernel.scale", "weight"])
    engine.model.head.zero_()
    (finding,) = engine.verify().findings
    assert (finding.kind, finding.path, finding.row) == ("value", "head", None)
    del engine.model.head
    seen = engine.verify()
    (finding,) = seen.findings
    assert (finding.kind, finding.path, seen.may_resume) == ("missing", "head", False)


def test_a_verification_of_nothing_is_undecided(engine: Engine) -> None:
    engine.capture()
    seen = engine.watch.verify({}, owned=engine.model)
    assert (seen.may_resume, seen.findings) == (False, [])
    assert seen.undecided == ["nothing was held against anything"]
    some = engine.watch.verify(holdings(engine.model), owned=engine.model)
    assert (some.may_resume, some.undecided) == (True, [])


def test_a_report_rests_on_nodes_that_were_read(engine: Engine) -> None:
    none = engine.watch.capture({}, owned=engine.model)
    assert (none.may_resume, none.undecided) == (
        False,
        ["no graph was given: nothing is known of any address"],
    )
    # Values alone may decide then, but not where a graph was given and has no node.
    expected = holdings(engine.model)
    assert engine.watch.verify(expected, owned=engine.model).may_resume
    empty = engine.watch.capture({"decode": Graph([])}, owned=engine.model)
    assert (empty.may_resume, empty.undecided) == (False, ["no node of any graph was read"])
    assert not engine.watch.verify(expected, owned=engine.model).may_resume
    assert engine.capture().may_resume


def test_what_is_stale_is_not_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.capture()
    engine.model.kernel.scale.mul_(3)
    engine.device.gone.add(engine.model.weight.data_ptr())
    read: list[str] = []

    def holdings_of(tensors: Any) -> Any:
        read.extend(tensors)
        return holdings_of_all(tensors)

    monkeypatch.setattr(verification_module, "holdings_of", holdings_of)
    seen = engine.verify()
    assert [row.owner for row in seen.report.stale] == ["weight"]
    assert (set(read), seen.verified) == ({"kernel.scale"}, ["kernel.scale"])


def test_what_cannot_be_digested_is_undecided_and_the_rest_is_verified(engine: Engine) -> None:
    engine.capture()
    engine.model.weight.mul_(3)
    engine.model.kernel.scale.mul_(3)
    assert engine.verify().may_resume
    engine.expected["weight"] = replace(engine.expected["weight"], digest=None)
    seen = engine.verify()
    assert (seen.verified, seen.findings) == (["kernel.scale"], [])
    assert seen.undecided == ["weight: its elements cannot be read"]
    assert not seen.may_resume


def test_a_table_that_cannot_be_read_leaves_it_undecided(engine: Engine) -> None:
    engine.device.unfollowed = [0x9000]
    report = engine.capture()
    assert report.undecided == ["graph `decode`: what lies at 0x9000 could not be read as a table"]
    # What has no memory has no table.
    engine.device.gone.add(0x9000)
    assert engine.capture().may_resume


def test_the_walk_knows_what_it_reached_and_no_workspace(engine: Engine) -> None:
    kind = "library-workspace"
    engine.watch._workspaces = [(f"{kind}[1]", 0x9000, 512, kind, False)]
    rows = engine.capture(extra=(0x9000,)).rows
    known = {row.owner: "walk" in row.known_to for row in rows}
    assert known == {"weight": True, "kernel.scale": True, "library-workspace[1]": False}


Before = Callable[[History, Retention], None]


def _freed(history: History, watch: Retention) -> None:
    watch.mark()
    history.note("free_requested", 0x1000)
    history.segment(0x1000, FREE)


def _reused(history: History, watch: Retention) -> None:
    _freed(history, watch)
    history.note("alloc", 0x1000)
    history.segment(0x1000, LIVE)


def _made_and_freed(history: History, watch: Retention) -> None:
    _freed_before(history, watch)
    history.note("alloc", 0x1000)
    history.note("free_requested", 0x1000)


def _freed_before(history: History, watch: Retention) -> None:
    history.note("free_requested", 0x1000)
    history.segment(0x1000, FREE)
    watch.mark()


def _kept(history: History, watch: Retention) -> None:
    watch.mark()


def _reused_before(history: History, watch: Retention) -> None:
    history.note("free_requested", 0x1000)
    history.note("alloc", 0x1000)
    watch.mark()


@pytest.mark.parametrize(
    ("before", "fate"),
    [
        (_freed, "dangling"),
        (_reused, "reused"),
        (_made_and_freed, "dangling"),
        (_freed_before, "alive"),
        (_kept, "alive"),
        (_reused_before, "alive"),
    ],
)
def test_what_was_freed_since_the_mark_is_stale(engine: Engine, before: Before, fate: str) -> None:
    engine.history.note("alloc", 0x1000)
    engine.history.segment(0x1000, LIVE)
    before(engine.history, engine.watch)
    report = engine.capture(extra=(0x1000,))
    (row,) = (row for row in report.rows if row.address == 0x1000)
    assert (row.fate, report.may_resume) == (fate, fate == "alive")
    # A mark is for one capture.
    again = engine.capture(extra=(0x1000,))
    assert again.may_resume


def test_a_mark_spares_a_graphs_pool_and_what_had_no_memory(engine: Engine) -> None:
    for address in (0x1000, 0x2000):
        engine.history.segment(address, FREE, pool=POOL if address == 0x1000 else (0, 0))
    engine.watch.mark()
    engine.history.note("alloc", 0x1000)
    engine.history.note("free_requested", 0x1000)
    engine.device.gone.add(0x2000)
    assert engine.capture(extra=(0x1000, 0x2000)).stale == []


def test_what_was_freed_before_the_census_is_told_from_what_never_was(engine: Engine) -> None:
    engine.history.note("alloc", 0x1000)
    engine.history.note("free_requested", 0x1000)
    engine.history.segment(0x1000, FREE, FREE)
    report = engine.capture(extra=(0x1000, 0x1200))
    assert report.may_resume
    assert [row.detail for row in report.unknown] == [
        "its block was freed before the census, and perhaps before the graph",
        "no block of the log lay there when it was captured",
    ]


def test_a_closed_watch_turns_the_history_off_and_decides_nothing(engine: Engine) -> None:
    with engine.watch as watch:
        assert engine.capture().may_resume
        before = len(engine.history.switched)
    assert engine.history.switched[before:] == [None]
    watch.close()
    assert len(engine.history.switched) == before + 1
    assert watch.judge(owned=engine.model).undecided == ["the log was closed"]


def test_pressure_asks_for_every_free_block_in_requests_that_its_segment_serves() -> None:
    mebi = 1 << 20
    small = {"segment_type": "small", "stream": 3, "device": 0, "address": 0, "blocks": []}
    large = {**small, "segment_type": "large", "stream": 0}
    free = [{"state": FREE, "size": size} for size in (512, mebi + 1024, 8 * mebi)]
    used = [{"state": LIVE, "size": 4096}]
    segments = [
        {**small, "blocks": free[:2] + used},
        {**large, "blocks": used + free},
        {**large, "blocks": free, "segment_pool_id": POOL},
        {**large, "blocks": free, "device": 1},
    ]
    asked = requests(segments, 0)
    assert asked == [(0, 8 * mebi), (0, mebi + 1024), (3, mebi), (3, 1024), (3, 512)]


def test_a_table_ends_with_its_block(engine: Engine) -> None:
    engine.history.segment(0x1000, LIVE, LIVE)
    engine.watch = Retention()
    at = engine.model.weight.data_ptr()
    report = engine.capture(extra=(0x1008,), table={0x1010: at, 0x1200: at + 4})
    assert [(row.address, row.through) for row in report.rows[2:]] == [(0x1008, None), (at, 0x1010)]
    # Without a block in the log nothing says where it ends.
    report = engine.capture(extra=(0x9008,), table={0x9010: at, 0x9400: at + 4})
    assert len(report.rows) == 5


def test_a_slot_whose_change_the_output_does_not_show_is_unseen() -> None:
    slots = {
        "weight": torch.tensor([1.0, float("nan")]),
        "order": torch.tensor([1, 0]),
        "idle": torch.ones(2),
        "zeros": torch.zeros(2, dtype=torch.int64),
    }
    before = {name: slot.clone() for name, slot in slots.items()}

    def run() -> Any:
        return slots["weight"][slots["order"]] + slots["zeros"]

    # What holds only zeros has no other whole number that is safe.
    assert unseen(slots, run) == ["idle", "zeros"]
    assert all(torch.equal(slots[n].nan_to_num(), before[n].nan_to_num()) for n in slots)
