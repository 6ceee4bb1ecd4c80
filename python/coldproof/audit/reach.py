"""What post-load processing reaches in a set of sources, and the candidates there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from coldproof.audit.candidates import Candidate, Kind, Report
from coldproof.audit.sources import Function, Source, Sources, spelled
from coldproof.audit.visit import Visit

#: What an engine calls after it has loaded.
ROOTS = {"process_weights_after_loading"}
#: Objects of such classes are built by post-load, anew at every reload.
REBUILT = "Experts"
CACHES = {"cache", "lru_cache"}
#: What is a candidate wherever it stands.
ANYWHERE = {Kind.BUFFER_NOT_PERSISTENT, Kind.MODULE_CACHE}


def audit(paths: Iterable[Path]) -> Report:
    """Read Python files, and those of folders, and list candidates."""
    sources, unread = Sources(), []
    files = sorted({file for path in paths for file in python_files(path)})
    for file in files:
        try:
            tree = ast.parse(file.read_bytes(), filename=str(file))
        except (OSError, RecursionError, SyntaxError, ValueError) as error:
            unread.append((str(file), str(error)))
            continue
        sources.add(Source(file.resolve(), str(file), tree))
    reading = Reading(sources)
    return Report(reading.candidates(), len(files), len(reading.roots), tuple(unread))


def python_files(path: Path) -> Iterator[Path]:
    """A file itself, or all below a folder."""
    return iter([path]) if path.is_file() else path.rglob("*.py")


class Reading:
    """One audit."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.fresh: dict[int, bool] = {}
        self.visits: dict[int, Visit] = {}
        self.functions = [one for source in sources.all for one in source.functions()]
        self.roots = [one for one in self.functions if one.node.name in ROOTS]

    def candidates(self) -> tuple[Candidate, ...]:
        """Everything, sorted by place."""
        found: set[Candidate] = set()
        reached: dict[int, str] = {}
        waiting = [(root, root.name) for root in self.roots]
        while waiting:
            function, root = waiting.pop(0)
            if id(function.node) in reached:
                continue
            reached[id(function.node)] = root
            found.update(self.of(function, root))
            if self.is_cached(function) and self.returns_fresh(function):
                found.add(candidate(function, (function.node.lineno, Kind.MODULE_CACHE, ""), root))
            waiting += [(called, root) for called in self.called(function)]
        for function in self.functions:
            if id(function.node) in reached:
                continue
            if function.node.name == "__init__" and self.is_rebuilt(function):
                found.update(self.built(function))
            found.update(self.of(function, function.name, ANYWHERE))
        return tuple(sorted(found))

    def of(self, function: Function, root: str, kinds: set[Kind] | None = None) -> set[Candidate]:
        """The candidates in one function."""
        found = self.visit(function).found
        return {candidate(function, one, root) for one in found if not kinds or one[1] in kinds}

    def built(self, function: Function) -> set[Candidate]:
        """The tensors that an object holds from the time when it is built."""
        kinds = {Kind.ATTRIBUTE_REBOUND, Kind.PARAMETER_REPLACED}
        found = (one for one in self.visit(function).found if one[1] in kinds)
        return {
            candidate(function, (line, Kind.OBJECT_TENSOR, about), f"{REBUILT} built by post-load")
            for line, _, about in found
        }

    def visit(self, function: Function) -> Visit:
        """A function, read once."""
        key = id(function.node)
        if key not in self.visits:
            self.visits[key] = Visit(function, lambda call: self.makes_fresh(function, call))
        return self.visits[key]

    def makes_fresh(self, function: Function, call: ast.Call) -> bool:
        """Whether a call reaches a function that returns a fresh tensor."""
        called = self.sources.called(function, call)
        return called is not None and called.node.name != "__init__" and self.returns_fresh(called)

    def returns_fresh(self, function: Function) -> bool:
        """Whether a function returns a fresh tensor; one that calls itself is taken not to."""
        key = id(function.node)
        if key not in self.fresh:
            self.fresh[key] = False
            self.fresh[key] = any(value.fresh for value in self.visit(function).returned)
        return self.fresh[key]

    def called(self, function: Function) -> Iterator[Function]:
        """What a function calls and the sources hold."""
        for node in ast.walk(function.node):
            if isinstance(node, ast.Call):
                called = self.sources.called(function, node)
                if called is not None:
                    yield called

    def is_rebuilt(self, function: Function) -> bool:
        """Whether post-load builds objects of this class."""
        owner = function.owner
        return owner is not None and any(
            REBUILT in name for name in self.sources.bases(function.source, owner)
        )

    def is_cached(self, function: Function) -> bool:
        """Whether a function keeps what it returned."""
        marks = (
            mark.func if isinstance(mark, ast.Call) else mark
            for mark in function.node.decorator_list
        )
        return any(spelled(mark).rpartition(".")[2] in CACHES for mark in marks)


def candidate(function: Function, found: tuple[int, Kind, str], root: str) -> Candidate:
    """One place, with where it stands."""
    line, kind, about = found
    about = about or function.name
    return Candidate(function.source.shown, line, kind.value, about, function.name, root)
