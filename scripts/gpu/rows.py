"""The RFC's rows on torch modules: silent when updated in place, found with their fault.

The check comes first; then freed memory is taken and filled, the old graph is replayed, and its
output is held against a cold load of B.
"""

from __future__ import annotations

import gc
import sys

import torch
from coldproof import walk
from coldproof.torch import (
    Holding,
    Pressure,
    Retention,
    Verification,
    holdings,
    pressure,
    unseen,
)
from components import COMPONENTS, HELD, HIDDEN, Checkpoint, Component, RebuiltConfig, checkpoint

ROWS = 8
# About a quarter of a second.
DELAY = 400_000_000


def captured(model: Component, x: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Warm up and capture one run."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = model(x)
    graph.instantiate()
    return graph, y


class Cell:
    """One model that was captured on A, and what a cold load of B holds and gives."""

    def __init__(self, make: type[Component], a: Checkpoint, b: Checkpoint) -> None:
        torch.manual_seed(1)
        self.x = torch.randn(ROWS, HIDDEN, device="cuda")
        cold = make(b)
        self.expected = cold(self.x).clone()
        self.cold = cold
        self.values: dict[str, Holding] = {
            path: held
            for path, held in holdings(cold).items()
            if not any(path.endswith(name) for name in make.scratch)
        }
        self.watch = Retention()
        self.model = make(a)
        self.graph, self.y = captured(self.model, self.x)
        self.io = {"input-output": [self.x, self.y]}
        self.first = self.watch.capture({"decode": self.graph}, owned=self.model, **self.io)

    def replay(self) -> torch.Tensor:
        """Replay the old graph."""
        self.graph.replay()
        return self.y

    def equals_cold(self) -> bool:
        """Replay the old graph and hold its output against cold B's."""
        self.replay()
        torch.cuda.synchronize()
        return torch.equal(self.y, self.expected)

    def verify(self) -> Verification:
        """Check what the graph retains."""
        return self.watch.verify(self.values, owned=self.model, **self.io)

    def blind(self) -> list[str]:
        """Return captured slots whose change in place the replay does not show."""
        held = {row.owner for row in self.first.rows if row.kind == "owned"}
        slots = {path: t for path, t in walk(self.model).tensors if path in held}
        return unseen(slots, self.replay)


def described(seen: Verification) -> str:
    """Name what was found, the first few."""
    names = sorted({f"{row.owner} {row.fate}" for row in seen.report.stale})
    names += [f"{finding.path} {finding.kind}" for finding in seen.findings]
    return ", ".join(names[:4])


def row(name: str, what: str, ok: bool, *fields: str) -> bool:
    """Print one row."""
    print("pass" if ok else "FAIL", name, what, *fields, sep="\t")
    return ok


def run(make: type[Component], a: Checkpoint, b: Checkpoint, *, faulty: bool) -> bool:
    """Print one row; return whether it is as it should be."""
    cell = Cell(make, a, b)
    blind = cell.blind()
    cell.model.update(b, faulty=faulty)
    gc.collect()
    seen = cell.verify()
    HELD.append(pressure(make.poison))
    stale = {found.address for found in seen.report.stale}
    taken = [held for held in HELD if isinstance(held, Pressure)]
    filled = sum(any(part.covers(address) for part in taken) for address in stale)
    equal = cell.equals_cold()
    HELD.clear()
    ok = cell.first.may_resume and not seen.report.undecided
    if faulty:
        # Workspaces of equal counters that change hands among layers do no harm yet.
        ok &= bool(stale) and not seen.may_resume and (make.swaps or not equal)
    else:
        ok &= seen.may_resume and bool(seen.verified) and equal
    missed = cell.first.missed_by("registry")
    return row(
        make.row,
        "fault" if faulty else "in place",
        ok,
        f"{len(stale)} stale",
        f"{len(seen.findings)} values",
        f"{filled} refilled",
        f"replay {'equals' if equal else 'differs from'} cold B",
        f"{len(missed)} unregistered",
        f"{len(seen.verified)} slots hold B's bytes, {len(seen.unheld)} held to none",
        f"unseen: {blind or 'none'}",
        described(seen),
    )


def stale_value(a: Checkpoint, b: Checkpoint) -> bool:
    """Leave one slot as it was: every address is alive, and one holds A's value."""
    cell = Cell(RebuiltConfig, a, b)
    for index in range(len(cell.model.layers)):
        cell.model.load(index, b)
    cell.model.refresh(0, b)
    seen = cell.verify()
    equal = cell.equals_cold()
    found = [finding.kind for finding in seen.findings]
    ok = found == ["value"] and not seen.report.stale and not seen.may_resume and not equal
    return row(
        "one slot not refreshed",
        "fault",
        ok,
        f"{len(seen.report.stale)} stale",
        f"{len(found)} values",
        f"replay {'equals' if equal else 'differs from'} cold B",
        described(seen),
    )


def edge(a: Checkpoint, b: Checkpoint, *, faulty: bool) -> bool:
    """Copy on another stream, with or without the edge that the replay needs."""
    cell = Cell(RebuiltConfig, a, b)
    side = torch.cuda.Stream()

    def update() -> None:
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(DELAY)
            cell.model.update(b, faulty=False)
        if not faulty:
            torch.cuda.current_stream().wait_stream(side)

    update()
    cell.replay()
    early = cell.y.clone()
    torch.cuda.synchronize()
    equal = torch.equal(early, cell.expected)
    cell.model.update(a, faulty=False)
    update()
    seen = cell.verify()
    kinds = {finding.kind for finding in seen.findings}
    ok = not seen.report.stale and equal is not faulty and cell.equals_cold()
    ok &= kinds == {"in-flight"} if faulty else seen.may_resume
    return row(
        "a copy whose stream edge is missing",
        "fault" if faulty else "in place",
        ok,
        f"{len(seen.report.stale)} stale",
        f"{len(seen.findings)} values",
        f"replay at once {'equals' if equal else 'differs from'} cold B",
        described(seen),
    )


def main() -> int:
    """Print all rows; exit with 1 where one is not as it should be."""
    a, b = checkpoint(1), checkpoint(2)
    done = [run(make, a, b, faulty=faulty) for make in COMPONENTS for faulty in (False, True)]
    done += [edge(a, b, faulty=faulty) for faulty in (False, True)]
    done += [stale_value(a, b)]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
