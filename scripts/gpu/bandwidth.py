"""Digest bandwidth against a copy of the same run, SHA-256 and a hash for each tensor."""

from __future__ import annotations

import hashlib
import statistics
import sys
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from coldproof import _native
from coldproof.torch.digesting import descriptor

TOTAL = 4 << 30
REPEATS = 9
SAMPLE = 256 << 20


@triton.jit
def _hash(source, target, count, block: tl.constexpr) -> None:
    """Add up mixed words of one tensor: what an engine without a table of tensors launches."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    words = tl.load(source + at, mask=at < count, other=0)
    tl.atomic_add(target, tl.sum(words * 0x1E3779B1 + at, axis=0))


def device_ms(work: Callable[[], object]) -> float:
    """Return the median device time of some work."""
    times = []
    for _ in range(REPEATS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def copy_ms(source: torch.Tensor) -> float:
    """Return the device time of a copy to other memory of the device."""
    target = torch.empty_like(source)
    return device_ms(lambda: target.copy_(source))


def wall_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median wall time of some work that ends in a synchronisation."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def per_tensor(tensors: list[torch.Tensor]) -> None:
    """Hash tensor by tensor, with a synchronisation each."""
    for tensor in tensors:
        words = tensor.view(torch.int32)
        target = torch.zeros(1, dtype=torch.int32, device="cuda")
        grid = (triton.cdiv(words.numel(), 8192),)
        _hash[grid](words, target, words.numel(), 8192)
        target.item()


def sha256(tensors: list[torch.Tensor]) -> None:
    """Hash on the CPU, as a checker without a device digest does."""
    for tensor in tensors:
        hashlib.sha256(memoryview(tensor.cpu().numpy()))


def main() -> int:
    """Print a row for each number of tensors; exit with 1 where a target is missed."""
    pool = torch.randint(0, 2**31 - 1, (TOTAL // 4,), dtype=torch.int32, device="cuda")
    pool = pool.view(torch.uint8)
    copy = 2 * TOTAL / copy_ms(pool) / 1e6
    print("value", "copy, read plus write", f"{copy:.0f} GB/s", sep="\t")
    failed = False
    device = _native.Device(torch.cuda.current_device())
    for count, target in ((1, 0.0), (1_000, 0.9), (100_000, 0.8)):
        size = TOTAL // count // 256 * 256
        tensors = [pool[i * size : (i + 1) * size] for i in range(count)]
        began = time.perf_counter()
        plan = device.digests([descriptor(f"t{i}", tensor) for i, tensor in enumerate(tensors)])
        prepared = 1000 * (time.perf_counter() - began)
        launches = []
        for _ in range(REPEATS):
            plan.run()
            launches.append(plan.last_ms())
        whole = wall_ms(plan.run)
        rate = plan.bytes / statistics.median(launches[2:]) / 1e6
        ok = rate >= target * copy
        failed |= not ok
        print(
            "pass" if ok else "FAIL",
            f"digest, {count} tensors",
            f"{rate:.0f} GB/s",
            f"{100 * rate / copy:.1f} % of the copy (at least {100 * target:.0f})",
            f"whole call {whole:.2f} ms, table prepared in {prepared:.0f} ms",
            sep="\t",
        )
        if count == 1_000:
            each = plan.bytes / wall_ms(lambda t=tensors: per_tensor(t), 3) / 1e6
            part = tensors[: SAMPLE // size]
            slow = sum(t.numel() for t in part) / wall_ms(lambda p=part: sha256(p), 1) / 1e6
            print(
                "value",
                "a Triton hash and a synchronisation for each of 1000 tensors",
                f"{each:.0f} GB/s",
                f"digest {plan.bytes / whole / 1e6 / each:.1f} times",
                sep="\t",
            )
            print(
                "value",
                "SHA-256 on the CPU",
                f"{slow:.2f} GB/s",
                f"digest {plan.bytes / whole / 1e6 / slow:.0f} times",
                sep="\t",
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
