"""The object walk against a Python walk of the same rules, over one model, in one run.

Usage: ``python python/benches/walk.py [LAYERS]``. Prints objects, milliseconds and the ratio.
"""

from __future__ import annotations

import collections
import functools
import gc
import sys
import time
import types
import weakref
from typing import Any

import torch
from coldproof import _native

PLAIN: tuple[type, ...] = (
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    range,
    slice,
    type(None),
    type,
    weakref.ref,
    types.ModuleType,
    types.CodeType,
    torch.dtype,
    torch.device,
)
MEMBER = types.MemberDescriptorType


class Layer(torch.nn.Module):
    """What a layer of an inference engine looks like to a walk."""

    def __init__(self, context: dict[str, Any], index: int) -> None:
        super().__init__()
        for name in ("q", "k", "v", "o", "gate", "up", "down"):
            linear = torch.nn.Linear(1, 1, bias=False)
            linear.weight.weight_loader = functools.partial(self.load, name, {"shard": 0})
            linear.sizes = [1, 2, 3]
            linear.quant_method = types.SimpleNamespace(
                config={"bits": 8}, prefix=f"{name}.{index}"
            )
            setattr(self, name, linear)
        self.register_buffer("scale", torch.ones(1))
        self.tables = {(index, i): torch.zeros(1) for i in range(4)}
        context[f"layers.{index}"] = self

    def load(self, *arguments: object) -> None:
        """Do nothing."""


def model(layers: int) -> dict[str, Any]:
    """Make a model of so many layers, and the context that names them."""
    context: dict[str, Any] = {}
    return {"model": torch.nn.ModuleList(Layer(context, i) for i in range(layers)), "c": context}


@functools.cache
def slots(cls: Any) -> list[tuple[str, Any]]:
    """Slots of all classes of a class."""
    found = []
    for base in cls.__mro__:
        found += [(n, d) for n, d in vars(base).items() if isinstance(d, MEMBER)]
    return found


def edges(value: Any) -> Any:  # noqa: PLR0912
    """Everything that an object holds, with how it is reached."""
    if isinstance(value, dict):
        for key, held in value.items():
            yield f"[{key!r}]", held
    elif isinstance(value, (list, tuple, collections.deque)):
        for index, held in enumerate(value):
            yield f"[{index}]", held
    elif isinstance(value, (set, frozenset)):
        for index, held in enumerate(value):
            yield f".<set>[{index}]", held
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f".<closure>.{name}", cell.cell_contents
        yield ".__defaults__", value.__defaults__
        yield ".__kwdefaults__", value.__kwdefaults__
        return
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
        return
    kind: Any = type(value)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        for registry in ("_parameters", "_buffers", "_modules"):
            for name, held in own.get(registry, {}).items():
                yield f".{name}", held
        for name, held in own.items():
            yield f".{name}", held
    for name, descriptor in slots(kind):
        try:
            yield f".{name}", descriptor.__get__(value)
        except AttributeError:
            continue


def python_walk(root: object) -> tuple[list[tuple[str, torch.Tensor]], int]:
    """Walk with the same rules in Python."""
    seen = {id(root)}
    kept = [root]
    pending = collections.deque([("", root)])
    tensors = []
    while pending:
        path, value = pending.popleft()
        if isinstance(value, torch.Tensor):
            tensors.append((path, value))
        for edge, held in edges(value):
            if isinstance(held, PLAIN) or id(held) in seen:
                continue
            seen.add(id(held))
            kept.append(held)
            pending.append((path + edge, held))
    return tensors, len(seen)


def main() -> None:
    """Time both, processor time, best of fifteen."""
    root = model(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
    # What the model itself costs the garbage collector is neither's.
    gc.collect()
    gc.freeze()
    times: dict[str, float] = {}
    found: dict[str, set[int]] = {}
    for _ in range(15):
        start = time.process_time()
        slow, _objects = python_walk(root)
        middle = time.process_time()
        fast = _native.walk(root, tensor_type=torch.Tensor)
        end = time.process_time()
        times["python"] = min(times.get("python", middle - start), middle - start)
        times["coldproof"] = min(times.get("coldproof", end - middle), end - middle)
        found["python"] = {id(held) for _, held in slow}
        found["coldproof"] = {id(held) for _, held in fast.tensors}
    if found["python"] != found["coldproof"]:
        sys.exit("the walks found other tensors")
    print(f"{fast.objects} objects, {len(fast.tensors)} tensors")
    for name, seconds in times.items():
        print(f"{name}: {seconds * 1000:.2f} ms")
    print(f"ratio: {times['python'] / times['coldproof']:.1f}")


if __name__ == "__main__":
    main()
