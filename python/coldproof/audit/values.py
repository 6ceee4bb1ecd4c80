"""What an expression of a post-load function may be: a fresh tensor, a view, a callable."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from coldproof.audit.sources import FunctionNode, spelled


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


#: Attributes with such names are tensors by the habit of engines.
TENSOR_NAME = re.compile(
    r"weight|scale|bias|zero|_zp|alpha|beta|sinks?$|perm|g_idx|lut|stride|workspace|_buf"
    r"|^w\d|table|^<"
)
#: Functions with such names arrange a tensor anew.
ARRANGES = re.compile(
    r"pack|shuffle|swizzle|permute|interleave|pad|swap|transpose|quant|workspace|reorder|convert"
    r"|layout"
)
#: Functions of torch that make a tensor.
MAKES = words(
    "empty empty_like empty_strided zeros zeros_like ones ones_like full full_like tensor as_tensor"
    " arange linspace eye rand randn randint argsort cat concat stack hstack vstack where clone pow"
    " sqrt reciprocal max amax maximum min amin minimum clamp mul div add sub sum mean abs neg"
    " einsum matmul bmm mm repeat_interleave index_select gather flip roll tile"
)
#: Methods of a tensor that make another.
COPIES = words(
    "clone contiguous to float half bfloat16 double int long type cuda cpu repeat repeat_interleave"
    " new_empty new_zeros new_ones new_full new_tensor sum mean max min amax amin argsort abs"
    " reciprocal mul div add sub neg pow sqrt clamp pin_memory index_select gather flip roll"
    " dequantize masked_fill round"
)
#: Methods and attributes that are another view of one storage.
VIEWS = words(
    "t transpose permute view view_as reshape narrow detach expand squeeze unsqueeze flatten chunk"
    " split unbind data T mT swapaxes movedim as_strided select unflatten"
)
#: What gives something else when it is done again to its own result.
CHANGES = words(
    "t transpose permute T mT swapaxes movedim flip roll reciprocal mul div add sub neg pow sqrt"
    " repeat repeat_interleave cat concat stack hstack vstack tile einsum matmul bmm mm"
)
NUMBERS = words("shape dtype device ndim size numel dim item stride data_ptr element_size")


@dataclass(frozen=True)
class Value:
    """What is known of the value of an expression."""

    #: It has storage of its own.
    fresh: bool = False
    #: It is wrapped as a parameter.
    parameter: bool = False
    #: The attributes that it was made of.
    reads: frozenset[str] = frozenset()
    #: Made again of its own result it would be another.
    changed: bool = False
    #: It is a callable that holds a tensor.
    captures: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, by what made it or by name."""
        named = (TENSOR_NAME.search(read.rpartition(".")[2]) for read in self.reads)
        return self.fresh or self.parameter or any(named)


def joined(*values: Value) -> Value:
    """What is made of several."""
    return Value(
        fresh=any(value.fresh for value in values),
        reads=frozenset().union(*(value.reads for value in values)),
        changed=any(value.changed for value in values),
        captures=any(value.captures for value in values),
    )


class Values:
    """The names of one function, as far as its statements were read."""

    def __init__(self, returns_fresh: Callable[[ast.Call], bool]) -> None:
        self.names: dict[str, Value] = {}
        #: Functions inside the function that return a fresh tensor.
        self.makers: set[str] = set()
        self.returns_fresh = returns_fresh

    def of(self, node: ast.expr | None) -> Value:
        """The value of an expression."""
        known = Value()
        match node:
            case ast.Name():
                known = self.names.get(node.id, Value())
            case ast.Attribute():
                known = self._attribute(node)
            case ast.Subscript() | ast.Starred() | ast.NamedExpr():
                known = self.of(node.value)
            case ast.BinOp():
                known = computed(joined(self.of(node.left), self.of(node.right)))
            case ast.UnaryOp():
                known = computed(self.of(node.operand))
            case ast.IfExp():
                known = joined(self.of(node.body), self.of(node.orelse))
            case ast.Tuple() | ast.List():
                known = joined(Value(), *map(self.of, node.elts))
            case ast.Lambda():
                known = Value(captures=self.holds_tensor(node))
            case ast.Call():
                known = self._call(node)
        return known

    def holds_tensor(self, node: ast.Lambda | FunctionNode) -> bool:
        """Whether a function keeps a tensor of the one around it.

        One that reads ``layer.weight`` when it is called keeps the layer, not the tensor.
        """
        arguments = node.args
        own = {one.arg for one in (*arguments.args, *arguments.kwonlyargs)}
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        kept = [*arguments.defaults, *(one for one in arguments.kw_defaults if one)]
        inside = {
            name.id
            for part in body
            for name in ast.walk(part)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
        }
        free = (self.names.get(name, Value()) for name in inside - own)
        return any(value.is_tensor for value in (*free, *map(self.of, kept)))

    def _attribute(self, node: ast.Attribute) -> Value:
        inner = self.of(node.value)
        if node.attr in NUMBERS:
            return Value()
        if inner.is_tensor:
            if node.attr in VIEWS:
                return replace(inner, changed=inner.changed or node.attr in CHANGES)
            return Value()
        name = spelled(node)
        return Value(reads=frozenset({name})) if name else Value()

    def _call(self, node: ast.Call) -> Value:
        name = spelled(node.func)
        last = name.rpartition(".")[2] or getattr(node.func, "attr", "")
        given = joined(Value(), *map(self.of, [*node.args, *(one.value for one in node.keywords)]))
        if last == "getattr" and len(node.args) >= 2:
            on = spelled(node.args[0])
            return Value(reads=frozenset({f"{on}.{named(node.args[1])}"})) if on else Value()
        if last.endswith("Parameter"):
            return replace(given, parameter=True)
        if last == "partial":
            return Value(captures=given.is_tensor)
        if name == f"torch.{last}":
            changed = given.changed or last in CHANGES
            return replace(given, fresh=True, changed=changed) if last in MAKES else Value()
        return self._method(node, last) or self._arranged(node, name, last, given)

    def _method(self, node: ast.Call, last: str) -> Value | None:
        """A method of a tensor."""
        on = self.of(node.func.value) if isinstance(node.func, ast.Attribute) else Value()
        if not on.is_tensor or last not in COPIES | VIEWS:
            return None
        changed = on.changed or last in CHANGES
        return replace(on, fresh=on.fresh or last in COPIES, changed=changed)

    def _arranged(self, node: ast.Call, name: str, last: str, given: Value) -> Value:
        """A function that makes a tensor of others, by its name or by what it returns."""
        is_kernel = name.startswith(("ops.", "torch.ops.", "_custom_ops."))
        arranges = given.is_tensor and ARRANGES.search(last)
        if is_kernel or arranges or name in self.makers or self.returns_fresh(node):
            return replace(given, fresh=True, changed=True)
        return Value()


def computed(value: Value) -> Value:
    """The result of arithmetic, where it is on tensors."""
    return replace(value, fresh=True, changed=True) if value.is_tensor else Value()


def named(node: ast.expr) -> str:
    """An attribute's name as an argument: a word, or the variable that has it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        known = (one.value if isinstance(one, ast.Constant) else "*" for one in node.values)
        return f"<{''.join(map(str, known))}>"
    return f"<{spelled(node) or 'computed'}>"
