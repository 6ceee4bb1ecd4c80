"""The object walk of a real vLLM model, beside the same walk in Python, in turn, in one run.

Usage: ``python python/benches/walk.py CHECKPOINT [ROUNDS]``, with vLLM in the environment. Prints
the medians in milliseconds, the ratio, and what each of them reached.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
import types
from typing import Any

import torch
from coldproof.vllm import versions

versions.set_environment()

LEAVES = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType)


def python_walk(root: object) -> tuple[int, int]:
    """What a careful collector in Python does: how many tensors and how many objects it reaches."""
    seen: set[int] = set()
    kept: list[object] = []
    tensors = 0
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, found = stack.pop()
        if isinstance(found, LEAVES) or id(found) in seen:
            continue
        seen.add(id(found))
        kept.append(found)
        if isinstance(found, torch.Tensor):
            tensors += 1
            continue
        stack.extend((f"{path}{step}", value) for step, value in children(found))
    return tensors, len(seen)


def children(found: Any) -> list[tuple[str, Any]]:
    """Everything that an object holds, with the step of a path that leads there."""
    if isinstance(found, dict):
        return [(f"[{key!r}]", value) for key, value in found.items()]
    if isinstance(found, list | tuple | set | frozenset):
        return [(f"[{index}]", value) for index, value in enumerate(found)]
    if isinstance(found, functools.partial):
        held = [(f".args[{index}]", value) for index, value in enumerate(found.args)]
        held += [(f".keywords[{name!r}]", value) for name, value in found.keywords.items()]
        return [(".func", found.func), *held]
    if isinstance(found, types.MethodType):
        return [(".__self__", found.__self__), (".__func__", found.__func__)]
    if isinstance(found, types.FunctionType):
        cells = zip(found.__code__.co_freevars, found.__closure__ or (), strict=True)
        return [(f".<closure>.{name}", value) for name, cell in cells for value in inside(cell)]
    held = list(getattr(found, "__dict__", {}).items())
    for base in type(found).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        held += [(name, getattr(found, name, None)) for name in names]
    return [(f".{name}", value) for name, value in held]


def inside(cell: types.CellType) -> list[Any]:
    """What a cell holds, if it holds anything."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def timed(walk: Any) -> float:
    """Milliseconds of one walk."""
    began = time.perf_counter()
    walk()
    return (time.perf_counter() - began) * 1e3


def measure(worker: Any, rounds: int) -> tuple[list[float], list[float], str]:
    """Both, in turn; the first of each is not counted."""
    from coldproof.tensors import walk

    model = versions.model_of(worker)
    own, plain = [], []
    for _ in range(rounds + 1):
        own.append(timed(lambda: walk(model)))
        plain.append(timed(lambda: python_walk(model)))
    found = walk(model)
    tensors, objects = python_walk(model)
    reached = f"{len(found.tensors)} tensors in {found.objects} objects"
    return own[1:], plain[1:], f"{reached}; in Python {tensors} in {objects}"


def main() -> None:
    """Starts vLLM on the checkpoint and walks its model."""
    from vllm import LLM

    folder, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=256)
    worker = versions.worker_of(llm)
    [(own, plain, reached)] = worker.collective_rpc(measure, args=(rounds,))
    first, second = statistics.median(own), statistics.median(plain)
    print(f"walk {first:.1f} ms, in Python {second:.1f} ms: {second / first:.1f} times")
    print(reached)


if __name__ == "__main__":
    main()
