"""What observing adds to a real vLLM's reload: with and without the recorder, in turn, in one run.

Usage: ``python python/benches/reload.py CHECKPOINT [ROUNDS]``, with vLLM in the environment. Prints
the least and the median of each in milliseconds, and the median of what it took beside the plain
reload of the same round. Digests are no part of any. Between the two stand the floors of every
recorder that torch calls in Python: a dispatch mode and a function mode that do nothing.
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


KINDS = {
    "plain": plain,
    "under an empty dispatch mode": idle,
    "under an empty function mode": idle_functions,
    "observed": observed,
}


def measure(worker: Any, folder: str, rounds: int) -> list[tuple[float, ...]]:
    """The times of each kind, in turn; the first round is not counted."""
    run = KINDS.values()
    times = [[timed(kind, worker, Path(folder)) for kind in run] for _ in range(rounds + 1)]
    return list(zip(*times[1:], strict=True))


def main() -> None:
    """Starts vLLM on the checkpoint and reloads it."""
    from vllm import LLM

    folder, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=256)
    worker = versions.worker_of(llm)
    [times] = worker.collective_rpc(measure, args=(folder, rounds))
    print(f"vLLM {versions.version()}, {folder}, {rounds} rounds each")
    for kind, took in zip(KINDS, times, strict=True):
        least, median = min(took), statistics.median(took)
        ratio = statistics.median(one / bare for one, bare in zip(took, times[0], strict=True))
        print(f"{kind}: least {least:.1f} ms, median {median:.1f} ms, ratio {ratio:.4f}")


if __name__ == "__main__":
    main()
