"""Digests on the device equal those of the CPU, bit for bit, over dtypes, shapes and strides."""

from __future__ import annotations

import sys

import torch
from coldproof import digest
from coldproof.torch import digests

DTYPES = [
    torch.uint8,
    torch.bool,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int32,
    torch.float32,
    torch.int64,
    torch.float64,
]
SHAPES = [
    [],
    [1],
    [31],
    [32],
    [33],
    [1000],
    [40_001],
    [1 << 20],
    [(1 << 20) + 5],
    [0, 7],
    [5, 1],
    [300, 3],
    [64, 2880],
    [129, 257],
    [3, 5, 7, 11],
    [8, 128, 96],
]


def noise(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Return random bits of a shape and element type."""
    size = torch.empty((), dtype=dtype).element_size()
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, [*shape, size], dtype=torch.uint8, device="cuda")
    return raw.view(dtype).reshape(shape)


def views(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return views of a tensor: as it is, transposed, with gaps, shifted, expanded."""
    found = {"plain": tensor}
    if tensor.dim() >= 2:
        found["transposed"] = tensor.transpose(0, -1)
        found["permuted"] = tensor.permute(*reversed(range(tensor.dim())))
        found["columns"] = tensor[..., : max(1, tensor.shape[-1] // 2)]
        found["every second"] = tensor[::2]
    if tensor.dim() == 1 and tensor.numel() > 3:
        found["shifted"] = tensor[1:]
        found["every third"] = tensor[::3]
        found["expanded"] = tensor[:3].expand(5, 3)
        found["repeated"] = tensor[:1].expand(70)
    return found


def main() -> int:
    """Print one row, and exit with 1 where any digest differs."""
    torch.manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            for kind, view in views(noise(shape, dtype)).items():
                tensors[f"{dtype} {shape} {kind}"] = view
    found = digests(tensors)
    wrong = [name for name, tensor in tensors.items() if found[name] != digest(tensor, name=name)]
    changed = torch.zeros(1 << 20, dtype=torch.bfloat16, device="cuda")
    before = digests({"w": changed})["w"]
    changed[777_777] = 1
    seen = digests({"w": changed})["w"] != before
    status = "pass" if not wrong and seen else "FAIL"
    print(
        status,
        "digest equals the CPU's",
        f"{len(tensors) - len(wrong)} of {len(tensors)}",
        f"one changed element seen: {seen}",
        *wrong[:5],
        sep="\t",
    )
    return 0 if status == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())
