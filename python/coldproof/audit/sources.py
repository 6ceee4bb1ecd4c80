"""Parsed files, and what a name in one of them stands for in another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
CONTAINER_NAMES = {"dict", "list", "set", "defaultdict", "OrderedDict", "WeakKeyDictionary"}


@dataclass(frozen=True)
class Function:
    """A function, where it stands, and the class whose method it is."""

    source: Source
    node: FunctionNode
    owner: ast.ClassDef | None = None

    @property
    def name(self) -> str:
        """``Class.method``, or the name alone."""
        return self.node.name if self.owner is None else f"{self.owner.name}.{self.node.name}"


@dataclass(eq=False)
class Source:
    """One file."""

    path: Path
    shown: str
    tree: ast.Module
    definitions: dict[str, Definition] = field(default_factory=dict)
    #: A local name: the module as path parts from the right, and the name there or none.
    imports: dict[str, tuple[tuple[str, ...], str | None]] = field(default_factory=dict)
    #: Names of the module that hold a container.
    containers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Take note of what the module defines and imports."""
        for node in self.tree.body:
            if isinstance(node, Definition):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if is_container(node.value):
                    names = (target.id for target in targets if isinstance(target, ast.Name))
                    self.containers.update(names)
        for inner in ast.walk(self.tree):
            if isinstance(inner, ast.ImportFrom):
                package = self.package(inner.level) if inner.level else ()
                module = (*package, *(inner.module.split(".") if inner.module else ()))
                for alias in inner.names:
                    self.imports[alias.asname or alias.name] = (module, alias.name)
            elif isinstance(inner, ast.Import):
                for alias in inner.names:
                    if alias.asname:
                        self.imports[alias.asname] = (tuple(alias.name.split(".")), None)

    @property
    def parts(self) -> tuple[str, ...]:
        """The module's name, from the root of the file system."""
        parts = self.path.with_suffix("").parts
        return parts[:-1] if parts[-1] == "__init__" else parts

    def package(self, level: int) -> tuple[str, ...]:
        """The package that a relative import of this many dots names."""
        return self.path.parts[:-level]

    def functions(self) -> Iterator[Function]:
        """Functions of the module and methods of its classes."""
        for definition in self.definitions.values():
            if isinstance(definition, ast.ClassDef):
                for node in definition.body:
                    if isinstance(node, FunctionNode):
                        yield Function(self, node, definition)
            else:
                yield Function(self, definition)


def is_container(node: ast.expr) -> bool:
    """Whether an expression makes a dictionary, a list or a set."""
    if isinstance(node, ast.Call):
        return spelled(node.func).rpartition(".")[2] in CONTAINER_NAMES
    return isinstance(node, CONTAINERS)


def spelled(node: ast.expr) -> str:
    """``a.b.c`` of a chain of names; empty where it is no such chain."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = spelled(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


class Sources:
    """All files of an audit."""

    def __init__(self) -> None:
        self.all: list[Source] = []
        self.by_last: dict[str, list[Source]] = {}

    def add(self, source: Source) -> None:
        """Take one more file."""
        self.all.append(source)
        self.by_last.setdefault(source.parts[-1], []).append(source)

    def module(self, parts: tuple[str, ...]) -> Source | None:
        """The file of a module: the one whose path ends so."""
        for source in self.by_last.get(parts[-1], []) if parts else []:
            if source.parts[-len(parts) :] == parts:
                return source
        return None

    def find(self, source: Source, name: str, depth: int = 4) -> tuple[Source, Definition] | None:
        """What a name of a module stands for, through imports of imports."""
        if name in source.definitions:
            return source, source.definitions[name]
        if depth == 0 or name not in source.imports:
            return None
        module, inner = source.imports[name]
        there = self.module(module)
        if there is None or inner is None:
            return None
        return self.find(there, inner, depth - 1)

    def method(
        self, source: Source, owner: ast.ClassDef, name: str, depth: int = 8
    ) -> Function | None:
        """A method of a class or of the nearest base that has it."""
        for node in owner.body:
            if isinstance(node, FunctionNode) and node.name == name:
                return Function(source, node, owner)
        for base in owner.bases if depth else []:
            found = self.find(source, spelled(base).rpartition(".")[2])
            if found and isinstance(found[1], ast.ClassDef):
                method = self.method(found[0], found[1], name, depth - 1)
                if method:
                    return method
        return None

    def bases(self, source: Source, owner: ast.ClassDef, depth: int = 8) -> Iterator[str]:
        """The names of a class and of all that it derives from."""
        yield owner.name
        for base in owner.bases if depth else []:
            name = spelled(base).rpartition(".")[2]
            yield name
            found = self.find(source, name)
            if found and isinstance(found[1], ast.ClassDef):
                yield from self.bases(found[0], found[1], depth - 1)

    def called(self, function: Function, call: ast.Call) -> Function | None:
        """The function that a call reaches, where its name says so."""
        callee, source = call.func, function.source
        if isinstance(callee, ast.Attribute):
            return self._called_on(function, callee)
        if not isinstance(callee, ast.Name):
            return None
        found = self.find(source, callee.id)
        if found is None:
            return None
        there, definition = found
        if isinstance(definition, ast.ClassDef):
            return self.method(there, definition, "__init__")
        return Function(there, definition)

    def _called_on(self, function: Function, callee: ast.Attribute) -> Function | None:
        on = callee.value
        is_super = isinstance(on, ast.Call) and spelled(on.func) == "super"
        if function.owner is not None and (is_super or spelled(on) in {"self", "cls"}):
            if not is_super:
                return self.method(function.source, function.owner, callee.attr)
            for base in function.owner.bases:
                found = self.find(function.source, spelled(base).rpartition(".")[2])
                if found and isinstance(found[1], ast.ClassDef):
                    return self.method(found[0], found[1], callee.attr)
            return None
        if isinstance(on, ast.Name) and on.id in function.source.imports:
            module, inner = function.source.imports[on.id]
            there = self.module(module if inner is None else (*module, inner))
            definition = there.definitions.get(callee.attr) if there else None
            if there and isinstance(definition, FunctionNode):
                return Function(there, definition)
        return None
