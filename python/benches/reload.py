"""What observing adds to a real vLLM's reload: with and without the recorder, in turn, in one run.

Usage: ``python python/benches/reload.py CHECKPOINT [ROUNDS]``, with vLLM in the environment. Prints
the medians in milliseconds and the ratios. Digests are no part of any. Between the two stand the
floors of every recorder that torch calls in Python: a dispatch mode and a function mode that do
nothing.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from coldproof.vllm import versions

versions.set_environment()


def tensors(folder: Path) -> Any:
    """Name and tensor, file by file."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dictionary)
                yield name, opened.get_tensor(name)


def plain(worker: Any, folder: Path) -> None:
    """A reload that nobody observes."""
    versions.reload(worker, weights_iterator=tensors(folder))


def under(base: Any, method: str, worker: Any, folder: Path) -> None:
    """A reload under a mode of torch that passes everything on."""

    def passed_on(_: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))

    with type("Idle", (base,), {method: passed_on})():
        versions.reload(worker, weights_iterator=tensors(folder))


def idle(worker: Any, folder: Path) -> None:
    """A reload under a dispatch mode that does nothing."""
    from torch.utils._python_dispatch import TorchDispatchMode

    under(TorchDispatchMode, "__torch_dispatch__", worker, folder)


def idle_functions(worker: Any, folder: Path) -> None:
    """A reload under a function mode that does nothing: it sees calls from Python alone."""
    from torch.overrides import TorchFunctionMode

    under(TorchFunctionMode, "__torch_function__", worker, folder)


def observed(worker: Any, folder: Path) -> None:
    """A reload with the recorder."""
    from coldproof.vllm import post_load
    from coldproof.vllm.applications import Applications

    recorder = Applications(versions.model_of(worker))
    with recorder:
        versions.reload(worker, weights_iterator=recorder.deliver(tensors(folder)))
    post_load.drain()


def timed(reload: Any, worker: Any, folder: Path) -> float:
    """Milliseconds of one reload."""
    began = time.perf_counter()
    reload(worker, folder)
    return (time.perf_counter() - began) * 1e3


def measure(worker: Any, folder: str, rounds: int) -> list[float]:
    """The medians of each kind, in turn; the first of each is not counted."""
    kinds = [plain, idle, idle_functions, observed]
    times = [[timed(kind, worker, Path(folder)) for kind in kinds] for _ in range(rounds + 1)]
    return [statistics.median(of_kind) for of_kind in zip(*times[1:], strict=True)]


def main() -> None:
    """Starts vLLM on the checkpoint and reloads it."""
    from vllm import LLM

    folder, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=256)
    worker = versions.worker_of(llm)
    [(without, *empty, with_it)] = worker.collective_rpc(measure, args=(folder, rounds))
    print(f"vLLM {versions.version()}, {folder}, {rounds} rounds each")
    print(f"reload {without:.1f} ms, observed {with_it:.1f} ms, ratio {with_it / without:.4f}")
    for kind, took in zip(("dispatch", "function"), empty, strict=True):
        print(f"under an empty {kind} mode {took:.1f} ms, ratio {took / without:.4f}")


if __name__ == "__main__":
    main()
