"""The report: what captured graphs retain, what became of it, and what it holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One address that a node of a graph retains."""

    graph: str
    node: int
    kernel: str
    argument: int
    offset: int
    """Byte of the argument at which the address begins."""
    address: int
    through: int | None
    """Where it stands in device memory, for one out of a table of pointers."""
    kind: str
    """Whose memory it is: ``owned``, ``graph-pool``, ``input-output``, ``kv``,
    ``library-workspace`` or ``unknown``."""
    owner: str | None
    """The path that owned it at capture."""
    fate: str
    """``alive``, or how it is stale: ``dangling``, ``reused``, ``rebound``, ``orphaned``."""
    detail: str
    known_to: tuple[str, ...]
    """Which of ``registry`` (parameters and buffers), ``walk`` and ``recorder`` knew it."""

    @property
    def is_stale(self) -> bool:
        """Whether R71 calls it stale."""
        return self.fate != "alive"

    def __str__(self) -> str:
        """Say it in one line."""
        place = f"graph `{self.graph}`, node {self.node}, kernel `{self.kernel}`"
        at = f"argument {self.argument} byte {self.offset}"
        text = f"{self.owner or self.kind}: {self.fate} at {self.address:#x} ({place}, {at})"
        return f"{text}: {self.detail}" if self.detail else text


@dataclass(frozen=True)
class Report:
    """All addresses that the captured graphs retain, resolved."""

    rows: list[Row]
    nodes: int
    unread: list[str] = field(default_factory=list)
    """Nodes and tables that could not be read: they may retain anything."""
    gaps: list[str] = field(default_factory=list)
    """Why the allocator's log may lack events."""
    graphs: int = 0
    """How many graphs were captured. Without any there is no address to speak of."""

    @property
    def stale(self) -> list[Row]:
        """Rows that R71 calls stale. Resume only where there is none."""
        return [row for row in self.rows if row.is_stale]

    @property
    def undecided(self) -> list[str]:
        """What leaves the question open: where nothing is stale, the answer is UNDECIDED."""
        none = [] if self.graphs else ["no graph was given: nothing is known of any address"]
        return [*none, *self.unread, *self.gaps]

    @property
    def may_resume(self) -> bool:
        """Whether nothing is stale, and nothing left it open."""
        return not self.stale and not self.undecided

    @property
    def unknown(self) -> list[Row]:
        """Rows that belong to nobody that is known."""
        return [row for row in self.rows if row.kind == "unknown"]

    def addresses(self) -> Counter[str]:
        """Count distinct addresses by class."""
        return Counter(kind for _, kind in {(row.address, row.kind) for row in self.rows})

    def missed_by(self, source: str) -> list[str]:
        """Return owners, or addresses without one, that ``source`` did not know."""
        missed = {
            row.owner or hex(row.address)
            for row in self.rows
            if row.kind == "owned" and source not in row.known_to
        }
        return sorted(missed)


@dataclass(frozen=True)
class Finding:
    """A path that does not hold what is expected, though nothing that it names is stale."""

    kind: str
    """``value``; ``layout``; ``in-flight``: it changed once the device was waited for, so that a
    copy lacks the edge to the stream that replays; ``missing``: no tensor goes by that path."""
    path: str
    """The path, as it is expected."""
    row: Row | None
    """The first place of a graph that retains it; nothing for one that no graph retains."""
    detail: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.path}: {self.kind}: {self.detail} ({self.row or 'retained by no graph'})"


@dataclass(frozen=True)
class Verification:
    """What became of every retained address, and what lies there."""

    report: Report
    findings: list[Finding]
    verified: list[str]
    """Paths that hold what is expected, and do so where a graph retains them."""
    unverified: list[str]
    """What could not be held against what is expected, and why."""
    unheld: list[str]
    """Captured paths for which nothing is expected: scratch, or a slot that nobody vouches for."""

    @property
    def undecided(self) -> list[str]:
        """What leaves the question open. Where no graph was given, values alone decide."""
        none = [] if self.verified or self.findings else ["nothing was held against anything"]
        return [*self.report.unread, *self.report.gaps, *self.unverified, *none]

    @property
    def may_resume(self) -> bool:
        """Whether nothing is stale, nothing differs, and nothing left it open."""
        return not self.report.stale and not self.findings and not self.undecided
