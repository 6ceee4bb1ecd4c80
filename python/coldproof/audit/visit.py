"""The statements of one function, in their order, and the candidates among them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from coldproof.audit.candidates import Kind
from coldproof.audit.sources import Function, FunctionNode, spelled
from coldproof.audit.values import Value, Values, named, words

#: A callee with such a name makes the object that then holds tensors.
BUILDS = re.compile(r"kernel|experts|quant_config|_cls$|handler", re.IGNORECASE)
#: Changes in place that are another change when they are done again.
IN_PLACE = words("mul_ div_ add_ sub_ neg_ pow_ reciprocal_ t_ transpose_ resize_ swapaxes_")
KEEPS = words("append add setdefault update insert extend")

Found = tuple[int, Kind, str]


class Visit:
    """Reads one function."""

    def __init__(self, function: Function, returns_fresh: Callable[[ast.Call], bool]) -> None:
        self.function = function
        self.values = Values(returns_fresh)
        arguments = function.node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        #: What outlives the call: arguments, and what is reached through them.
        self.outer = {one.arg for one in every}
        self.globals: set[str] = set()
        self.returned: list[Value] = []
        self.found: list[Found] = []
        self.statements(function.node.body)

    def statements(self, body: list[ast.stmt]) -> None:
        """Read statements one after the other; branches are read as if all were taken."""
        for node in body:
            for call in calls(node):
                self.call(call)
            self.statement(node)
            for inner in blocks(node):
                self.statements(inner)

    def statement(self, node: ast.stmt) -> None:
        """Read one statement, without the blocks in it."""
        match node:
            case ast.Assign():
                for target in node.targets:
                    self.bind(target, node.value)
            case ast.AnnAssign() if node.value is not None:
                self.bind(node.target, node.value)
            case ast.AugAssign():
                self.changed_in_place(node.target, node)
            case ast.Delete():
                for target in node.targets:
                    if name := self.outer_name(target):
                        self.add(node, Kind.ATTRIBUTE_DELETED, name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.nested(node)
            case ast.For() if isinstance(node.target, ast.Name):
                self.values.names[node.target.id] = self.values.of(node.iter)
            case ast.Global():
                self.globals.update(node.names)
            case ast.Return() if node.value is not None:
                self.returned.append(self.values.of(node.value))

    def nested(self, node: FunctionNode) -> None:
        """A function inside the function: it is handed what the outer one was handed."""
        kept = Value(captures=self.values.holds_tensor(node))
        around, outer, returned = dict(self.values.names), set(self.outer), self.returned
        own = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
        self.outer |= own
        self.values.names = {name: one for name, one in around.items() if name not in own}
        self.returned = []
        self.statements(node.body)
        if any(value.fresh for value in self.returned):
            self.values.makers.add(node.name)
        self.values.names, self.outer, self.returned = around, outer, returned
        self.values.names[node.name] = kept

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """``target = value``."""
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for index, one in enumerate(target.elts):
                self.bind(one, parts[index] if len(parts) == len(target.elts) else value)
        elif isinstance(target, ast.Name):
            if target.id in self.globals and self.values.of(value).is_tensor:
                self.add(target, Kind.MODULE_CACHE, target.id)
            self.values.names[target.id] = self.values.of(value)
        elif isinstance(target, ast.Subscript):
            self.keep(target.value, value)
        elif name := self.outer_name(target):
            self.rebind(target, name, value)

    def rebind(self, at: ast.expr, name: str, value: ast.expr) -> None:
        """An attribute of something that outlives the call is bound to a value."""
        known = self.values.of(value)
        base = name.removesuffix(".data")
        if base != name:
            self.add(at, Kind.DATA_REBOUND, base)
        elif known.parameter:
            self.add(at, Kind.PARAMETER_REPLACED, base)
        elif known.captures:
            self.add(at, Kind.CLOSURE_CAPTURE, base)
        elif known.fresh:
            self.add(at, Kind.ATTRIBUTE_REBOUND, base)
        elif isinstance(value, ast.Constant) and value.value is None:
            if not name.startswith("self."):
                self.add(at, Kind.ATTRIBUTE_DELETED, base)
        elif isinstance(value, ast.Call) and BUILDS.search(spelled(value.func)):
            self.add(at, Kind.OBJECT_REBUILT, base)
        self.again(at, base, known)

    def again(self, at: ast.AST, name: str, value: Value) -> None:
        """A value that is made of what it replaces."""
        if value.changed and name in value.reads:
            self.add(at, Kind.NOT_IDEMPOTENT, name)

    def call(self, node: ast.Call) -> None:
        """A call for its effect."""
        last = spelled(node.func).rpartition(".")[2] or getattr(node.func, "attr", "")
        if last in {"setattr", "replace_parameter"} and len(node.args) >= 3:
            self.set_by_name(node, copies="prefer_copy" in true_keywords(node))
        elif last == "delattr" and len(node.args) == 2:
            self.add(node, Kind.ATTRIBUTE_DELETED, f"{spelled(node.args[0])}.{named(node.args[1])}")
        elif last in {"register_parameter", "register_buffer"} and node.args:
            self.register(node, last)
        elif isinstance(node.func, ast.Attribute):
            if last in IN_PLACE:
                self.changed_in_place(node.func.value, node)
            elif last == "set_" and (name := self.tensor_name(node.func.value)):
                self.add(node, Kind.DATA_REBOUND, name)
            elif last in KEEPS and node.args:
                self.keep(node.func.value, node.args[-1])

    def set_by_name(self, node: ast.Call, copies: bool) -> None:
        """``setattr(layer, "name", value)`` and vLLM's ``replace_parameter``."""
        on, value = spelled(node.args[0]), node.args[2]
        name = f"{on}.{named(node.args[1])}"
        if spelled(node.func).endswith("setattr"):
            if on.partition(".")[0] in self.outer:
                self.rebind(node, name, value)
            return
        if not copies:
            self.add(node, Kind.PARAMETER_REPLACED, name)
        self.again(node, name, self.values.of(value))

    def register(self, node: ast.Call, last: str) -> None:
        """A parameter or a buffer is registered."""
        on = spelled(node.func).rpartition(".")[0]
        name = f"{on}.{named(node.args[0])}"
        given = node.args[1] if len(node.args) > 1 else None
        if last == "register_parameter":
            if not (isinstance(given, ast.Constant) and given.value is None):
                self.add(node, Kind.PARAMETER_REPLACED, name)
            return
        self.add(node, Kind.ATTRIBUTE_REBOUND, name)
        persistent = [one.value for one in node.keywords if one.arg == "persistent"]
        persistent += node.args[2:3]
        if any(isinstance(one, ast.Constant) and one.value is False for one in persistent):
            self.add(node, Kind.BUFFER_NOT_PERSISTENT, name)

    def keep(self, container: ast.expr, value: ast.expr) -> None:
        """A container of the module is given a tensor."""
        name = spelled(container)
        is_shared = name in self.function.source.containers and name not in self.values.names
        if is_shared and self.values.of(value).is_tensor:
            self.add(container, Kind.MODULE_CACHE, name)

    def changed_in_place(self, target: ast.expr, node: ast.stmt | ast.expr) -> None:
        """A tensor is multiplied, turned or shifted where it is."""
        if name := self.tensor_name(target):
            self.add(node, Kind.NOT_IDEMPOTENT, name)

    def tensor_name(self, node: ast.expr) -> str:
        """The attribute that an expression is a view of."""
        value = self.values.of(node)
        outer = sorted(read for read in value.reads if read.partition(".")[0] in self.outer)
        return outer[0] if outer and value.is_tensor and not value.fresh else ""

    def outer_name(self, node: ast.expr) -> str:
        """``layer.workspace`` where it belongs to something that outlives the call."""
        name = spelled(node)
        root, _, attribute = name.partition(".")
        if not attribute:
            return ""
        if root in self.outer:
            return name
        # A local name of such an attribute: `experts = self.kernel.experts`.
        reads = self.values.names.get(root, Value()).reads
        outer = sorted(read for read in reads if read.partition(".")[0] in self.outer)
        return f"{outer[0]}.{attribute}" if outer else ""

    def add(self, node: ast.AST, kind: Kind, about: str) -> None:
        """Take a candidate."""
        self.found.append((getattr(node, "lineno", 0), kind, about))


def true_keywords(node: ast.Call) -> set[str]:
    """The names of keywords that are given as true, or as something that is computed."""
    false = {
        one.arg
        for one in node.keywords
        if isinstance(one.value, ast.Constant) and not one.value.value
    }
    return {one.arg for one in node.keywords if one.arg} - {name for name in false if name}


def blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks inside a statement; those of functions and classes are not run by it."""
    if isinstance(node, FunctionNode | ast.ClassDef):
        return
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(node, name, None)
        if inner:
            yield inner
    for handler in getattr(node, "handlers", []):
        yield handler.body
    for case in getattr(node, "cases", []):
        yield case.body


def calls(node: ast.stmt) -> Iterator[ast.Call]:
    """The calls of a statement, without those of the blocks in it."""
    if isinstance(node, FunctionNode | ast.ClassDef):
        return
    waiting: list[ast.AST] = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Call):
            yield one
        inner = (part for part in ast.iter_child_nodes(one) if not isinstance(part, ast.stmt))
        waiting += [part for part in inner if not isinstance(part, ast.Lambda)]
