"""One arm of one cell, in this process; every finding is written down as soon as it is there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from cells import Cell
from coldproof import walk
from coldproof.torch import Report, Retention, digests
from engine import Engine, Graphs
from repair import Held, Places, moved, on_card, places


class Notes:
    """The findings of an arm, a line of JSON each: what it does, then what it saw."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._began = time.monotonic()

    def doing(self, what: str) -> None:
        """Say what comes now: the guard outside gives it a time."""
        self._put({"doing": what})

    def saw(self, name: str, value: Any) -> None:
        """Write down one finding."""
        self._put({name: value})

    def _put(self, entry: dict[str, Any]) -> None:
        entry["at"] = round(time.monotonic() - self._began, 2)
        self._file.write(json.dumps(entry) + "\n")


class _Gate:
    """Asks `Retention` and writes down what it says."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._watch = Retention()

    def capture(self, engine: Engine, graphs: Graphs) -> Report:
        """Note what the graphs retain, and hold it against what registration knows."""
        own = graphs.captured()
        began = time.monotonic()
        with engine.bare():
            report = self._watch.capture(own, **engine.roots())
        took = round(1e3 * (time.monotonic() - began), 1)
        registered = dict(engine.model.named_parameters())
        # An argument may point into a tensor: a fused layer's third shard begins further on.
        missed = [n for n, tensor in registered.items() if not _reaches(report, tensor)]
        census = {"graphs": len(own), "nodes": report.nodes, "ms": took}
        self._notes.saw("census", {**census, "classes": dict(report.addresses())})
        self._notes.saw("parameters no graph retains", missed)
        self._notes.saw("missed by registration", report.missed_by("registry"))
        self._notes.saw("undecided", report.undecided[:8])
        unknown = {row.address: str(row) for row in report.unknown}
        self._notes.saw("unknown", list(unknown.values())[:12])
        return report

    def judge(self, engine: Engine, when: str) -> Report:
        """Say how many captured addresses are stale now, and whose they are."""
        began = time.monotonic()
        with engine.bare():
            report = self._watch.judge(**engine.roots())
        took = round(1e3 * (time.monotonic() - began), 1)
        first = {row.address: row for row in reversed(report.stale)}
        rows = [str(row) for row in first.values()]
        said = {"stale": len(first), "ms": took, "undecided": report.undecided[:4], "rows": rows}
        self._notes.saw(f"gate {when}", said)
        return report


def _reaches(report: Report, tensor: torch.Tensor) -> bool:
    start, size = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    return any(start <= row.address < start + size for row in report.rows)


def _kinds(report: Report, old: Places) -> dict[str, int]:
    """Count moved paths by what a graph has under their old address."""
    stale = {row.address for row in report.stale}
    alive = {row.address for row in report.rows} - stale
    kinds = {"stale": 0, "harmless": 0, "in no graph": 0}
    for start, end in old.values():
        if any(start <= address < end for address in stale):
            kinds["stale"] += 1
        elif any(start <= address < end for address in alive):
            kinds["harmless"] += 1
        else:
            kinds["in no graph"] += 1
    return kinds


def _digest(engine: Engine, notes: Notes) -> None:
    """Write down what the model's tensors hold, or why that failed."""
    notes.doing("digest")
    try:
        with engine.bare():
            tensors = {p: t for p, t in walk(engine.model).tensors if on_card(t)}
        notes.saw("values", digests(tensors))
        notes.saw("scalars", {p: t.item() for p, t in tensors.items() if t.numel() == 1})
    except Exception as error:
        notes.saw("values failed", repr(error))


def run(cell: Cell, arm: str, checkpoints: Path, notes: Notes) -> None:
    """Run one arm to its end."""
    a, b = checkpoints / cell.checkpoint / "A", checkpoints / cell.checkpoint / "B"
    if arm == "cold":
        _cold(cell, b, notes)
    elif arm == "warm":
        _warm(cell, a, b, notes)
    else:
        _checked(cell, arm, a, b, notes)
    notes.doing("done")


def _say(engine: Engine, notes: Notes, name: str) -> None:
    notes.doing(f"generate {name}")
    notes.saw(f"said {name}", engine.generate())


def _cold(cell: Cell, b: Path, notes: Notes) -> None:
    notes.doing("start")
    engine = Engine(cell, b)
    _digest(engine, notes)
    _say(engine, notes, "cold")
    if cell.stale == 0:
        notes.doing("update")
        engine.update(b)
        _say(engine, notes, "control")


def _warm(cell: Cell, a: Path, b: Path, notes: Notes) -> None:
    notes.doing("start")
    engine = Engine(cell, a)
    _say(engine, notes, "A")
    notes.doing("update")
    engine.update(b)
    _say(engine, notes, "warm")


def _checked(cell: Cell, arm: str, a: Path, b: Path, notes: Notes) -> None:
    # The allocator's log begins before the engine allocates, and graphs are kept from the first.
    graphs, gate = Graphs(), _Gate(notes)
    notes.doing("start")
    engine = Engine(cell, a)
    notes.doing("census")
    gate.capture(engine, graphs)
    before = _places(engine)
    _say(engine, notes, "A")
    gate.judge(engine, "while serving")
    with engine.bare():
        held = Held(engine.model) if arm != "gated" else None
    notes.doing("update")
    engine.update(b)
    torch.cuda.synchronize()
    notes.doing("judge")
    report = gate.judge(engine, "after the update")
    elsewhere, gone = moved(before, _places(engine))
    notes.saw("moved", elsewhere)
    notes.saw("gone", gone)
    notes.saw("moved paths", _kinds(report, {path: before[path] for path in elsewhere}))
    captured = {row.owner for row in report.rows if row.kind == "owned"}
    notes.saw("captured", sorted(path for path in captured if path))
    if held is not None and arm == "fix":
        notes.doing("repair")
        with engine.bare():
            notes.saw("not repaired", held.repair(engine.model))
        report = gate.judge(engine, "after the repair")
    _digest(engine, notes)
    if arm == "gated":
        notes.saw("resume", "allowed" if report.may_resume else "refused")
    if arm != "gated" or report.may_resume:
        _say(engine, notes, arm)
    del held


def _places(engine: Engine) -> Places:
    with engine.bare():
        return places(engine.model)
