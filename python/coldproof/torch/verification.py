"""What lies at each path after an update, held against what a cold load holds there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from coldproof import _native
from coldproof.torch.holding import Holding, holdings_of
from coldproof.torch.owners import has_elements, on_device, span
from coldproof.torch.report import Finding, Report, Row, Verification

Held = tuple[dict[str, Holding], dict[str, Holding]]
"""What lies where graphs read it, and what lies at paths that are not there; both by path."""


class Check:
    """Holds what is expected against what lies at captured slots and at the paths of now."""

    def __init__(
        self, expected: Mapping[str, Holding], slots: Mapping[str, int], report: Report
    ) -> None:
        self._expected = expected
        self._report = report
        alive = {row.address: row for row in reversed(report.rows) if not row.is_stale}
        self._rows = {path: alive[at] for path, at in slots.items() if at in alive}
        self._stale = slots.keys() - self._rows.keys()
        self._captured: dict[str, torch.Tensor] = {}
        self._elsewhere: dict[str, torch.Tensor] = {}
        self._findings: list[Finding] = []
        self._unverified: dict[str, str] = {}

    def find(self, walked: _native.Walk) -> None:
        """Find the tensors of every path that is expected, but for what is stale."""
        tensors = {path: tensor for path, tensor in walked.tensors if has_elements(tensor)}
        spans = [(*span(tensor), tensor) for tensor in tensors.values() if on_device(tensor)]
        tensors |= {path: tensors[to] for path, to in walked.aliases if to in tensors}
        for path in sorted(self._expected.keys() - self._stale):
            own, row = tensors.get(path), self._rows.get(path)
            here = None if row is None else _at(row.address, own, spans)
            if here is not None:
                self._captured[path] = here
            elif row is not None:
                self._unverified[path] = "no tensor is found where a graph reads it"
            if own is None and here is None:
                detail = "no tensor with elements goes by this path"
                self._findings.append(Finding("missing", path, row, detail))
            elif own is not None and own is not here:
                self._elsewhere[path] = own

    def read(self) -> Held:
        """Read what lies there now."""
        return holdings_of(self._captured), holdings_of(self._elsewhere)

    def verdict(self, early: Held | None, late: Held, aliases: Mapping[str, str]) -> Verification:
        """Say what was found; ``aliases`` are further names of captured paths."""
        for index in range(2):
            for path, now in late[index].items():
                before = now if early is None else early[index][path]
                self._compare(path, None if index else self._rows[path], before, now)
        wrong = {finding.path for finding in self._findings}
        read = self._captured.keys() | self._elsewhere.keys()
        held = {aliases.get(path, path) for path in self._expected}
        unheld = self._rows.keys() - aliases.keys() - held
        return Verification(
            self._report,
            sorted(self._findings, key=lambda finding: finding.path),
            sorted(read - wrong - self._unverified.keys()),
            [f"{path}: {why}" for path, why in self._unverified.items()],
            sorted(unheld),
        )

    def _compare(self, path: str, row: Row | None, early: Holding, late: Holding) -> None:
        expected = self._expected[path]
        layout = late.differs(expected)
        if layout is not None:
            self._findings.append(Finding("layout", path, row, layout))
        elif None in (expected.digest, early.digest, late.digest):
            self._unverified[path] = "its elements cannot be read"
        elif late.digest != expected.digest:
            of = "a stale value in live storage" if row else "a stale value"
            detail = f"{of}: {late.digest}, and {expected.digest} is expected"
            self._findings.append(Finding("value", path, row, detail))
        elif early.digest != late.digest:
            detail = "it was still being written on another stream"
            self._findings.append(Finding("in-flight", path, row, detail))


def _at(
    address: int, own: torch.Tensor | None, spans: Iterable[tuple[int, int, torch.Tensor]]
) -> torch.Tensor | None:
    """Return the tensor that lies at a captured address: that of its path, or the least."""
    if own is not None:
        start, size = span(own)
        if start <= address < start + size:
            return own
    # The storage goes by another name now.
    others = [s for s in spans if s[0] <= address < s[0] + s[1]]
    return min(others, key=lambda s: s[1])[2] if others else None
