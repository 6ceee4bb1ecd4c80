"""What observing adds to a real vLLM's reload: with and without the recorder, in turn, in one run.

Usage: ``python python/benches/reload.py CHECKPOINT [ROUNDS]``, with vLLM in the environment. Prints
the medians in milliseconds and the ratio. Digests are no part of either.
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


def timed(worker: Any, folder: Path, observed: bool) -> float:
    """Milliseconds of one reload."""
    from coldproof.vllm import post_load
    from coldproof.vllm.applications import Applications

    began = time.perf_counter()
    if observed:
        recorder = Applications(versions.model_of(worker))
        with recorder:
            versions.reload(worker, weights_iterator=recorder.deliver(tensors(folder)))
        post_load.drain()
    else:
        versions.reload(worker, weights_iterator=tensors(folder))
    return (time.perf_counter() - began) * 1e3


def measure(worker: Any, folder: str, rounds: int) -> tuple[list[float], list[float]]:
    """Both, in turn; the first of each is not counted."""
    plain, observed = [], []
    for _ in range(rounds + 1):
        plain.append(timed(worker, Path(folder), observed=False))
        observed.append(timed(worker, Path(folder), observed=True))
    return plain[1:], observed[1:]


def main() -> None:
    """Starts vLLM on the checkpoint and reloads it."""
    from vllm import LLM

    folder, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=256)
    worker = versions.worker_of(llm)
    [(plain, observed)] = worker.collective_rpc(measure, args=(folder, rounds))
    without, with_it = statistics.median(plain), statistics.median(observed)
    print(f"vLLM {versions.version()}, {folder}, {rounds} rounds each")
    print(f"reload {without:.1f} ms, observed {with_it:.1f} ms, ratio {with_it / without:.4f}")


if __name__ == "__main__":
    main()
