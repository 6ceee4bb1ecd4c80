"""The gate as one writes it in Python: a dictionary of fingerprints against that of the capture."""

import sys
import time
from typing import NamedTuple

SLOTS = 1_000_000


class Fingerprint(NamedTuple):
    """Where and how a slot is stored."""

    storage: int
    address: int
    storage_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    device: str


def fingerprint(slot: int) -> Fingerprint:
    """The fingerprint of the slot of this number."""
    rows = 64 * (1 + slot % 7)
    return Fingerprint(
        slot, slot * 0x1000, rows * 128 * 2, (rows, 128), (128, 1), 0, "BF16", "cuda:0"
    )


def state() -> dict[str, Fingerprint]:
    """All fingerprints by name."""
    return {f"model.layers.{slot}.weight": fingerprint(slot) for slot in range(SLOTS)}


def main() -> None:
    """Compares as often as it is told."""
    captured, now = state(), state()
    for line in sys.stdin:
        began = time.perf_counter_ns()
        for _ in range(int(line)):
            changed = [name for name, before in captured.items() if now.get(name) != before]
            assert not changed
        print(time.perf_counter_ns() - began, flush=True)


main()
