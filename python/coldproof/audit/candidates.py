"""What an audit may say: a closed list of kinds, a candidate, a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

SCHEMA = "coldproof.audit/1"
LABEL = "candidates: read in source, not run"


class Kind(Enum):
    """Patterns, named after what is there in the source."""

    PARAMETER_REPLACED = "parameter-replaced"
    DATA_REBOUND = "data-rebound"
    ATTRIBUTE_REBOUND = "attribute-rebound"
    ATTRIBUTE_DELETED = "attribute-deleted"
    OBJECT_REBUILT = "object-rebuilt"
    OBJECT_TENSOR = "object-tensor"
    CLOSURE_CAPTURE = "closure-capture"
    BUFFER_NOT_PERSISTENT = "buffer-not-persistent"
    MODULE_CACHE = "module-cache"
    NOT_IDEMPOTENT = "not-idempotent"

    @property
    def category(self) -> int:
        """The RFC's category of what would be wrong."""
        return {Kind.BUFFER_NOT_PERSISTENT: 4, Kind.NOT_IDEMPOTENT: 3}.get(self, 1)


@dataclass(frozen=True, order=True)
class Candidate:
    """One place in a source."""

    file: str
    #: From 1.
    line: int
    kind: str
    #: What is bound or changed, as the source spells it: ``layer.workspace``.
    about: str
    #: The function, with its class.
    function: str
    #: What leads there: a post-load function, or an object that post-load builds anew.
    root: str


@dataclass(frozen=True)
class Report:
    """All candidates, sorted by place."""

    candidates: tuple[Candidate, ...]
    #: Files that were read.
    files: int
    #: Post-load functions that were found.
    roots: int
    #: Files that are no Python, with the reason.
    unread: tuple[tuple[str, str], ...]

    def only(self, kinds: Sequence[str] | None) -> Report:
        """The candidates of some kinds, or all."""
        kept = (one for one in self.candidates if not kinds or one.kind in kinds)
        return replace(self, candidates=tuple(kept))

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind, every kind named."""
        counted = Counter(one.kind for one in self.candidates)
        return {kind.value: counted[kind.value] for kind in Kind}

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "schema": SCHEMA,
            "label": LABEL,
            "files": self.files,
            "roots": self.roots,
            "counts": self.counts,
            "candidates": [
                {
                    "file": one.file,
                    "line": one.line,
                    "kind": one.kind,
                    "category": Kind(one.kind).category,
                    "object": one.about,
                    "function": one.function,
                    "root": one.root,
                }
                for one in self.candidates
            ],
            "unread": [{"file": file, "why": why} for file, why in self.unread],
        }

    def lines(self) -> Iterator[str]:
        """As a terminal shows it."""
        for one in self.candidates:
            way = "" if one.root == one.function else f", from {one.root}"
            place = f"{one.file}:{one.line}"
            yield f"{place}: candidate {one.kind} of {one.about} in {one.function}{way}"
        for file, why in self.unread:
            yield f"{file}: not read: {why}"
        total = len(self.candidates)
        yield f"{total} {LABEL}; {self.roots} post-load functions in {self.files} files"
        yield ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
