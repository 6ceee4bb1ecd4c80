"""Who knew what a captured graph retains, with and without ``torch.compile``.

A small model keeps its tensors in the ways that engines do: parameters, an object that no module
registers, a closure, a dictionary of the module. The census must find all of them in the graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from coldproof import Recorder
from coldproof.torch import Report, Retention
from torch import Tensor, nn
from torch.nn import functional

TOKENS, HIDDEN, HEADS = 16, 256, 4
SOURCES = ("registry", "walk", "recorder")

SHARED: dict[str, Tensor] = {}
"""What a module keeps by itself: a table of workspaces, for example."""


@triton.jit
def _scale(source, factors, target, width: tl.constexpr) -> None:
    """Multiply a row by factors."""
    at = tl.arange(0, width)
    row = tl.program_id(0) * width
    tl.store(target + row + at, tl.load(source + row + at) * tl.load(factors + at))


def permutation() -> Callable[[Tensor], Tensor]:
    """Return a function that permutes columns, and alone holds how."""
    order = torch.randperm(HIDDEN, device="cuda")

    def permute(x: Tensor) -> Tensor:
        return x.index_select(1, order)

    return permute


class Factors:
    """What a kernel object keeps: registered nowhere."""

    def __init__(self) -> None:
        self.scale = torch.rand(HIDDEN, device="cuda").bfloat16() + 0.5


class Model(nn.Module):
    """A linear layer, a kernel of Triton's, attention and a permutation."""

    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, **options)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False, **options)
        self.norm = nn.Parameter(torch.ones(HIDDEN, **options))
        self.factors = Factors()
        self.permute = permutation()

    def forward(self, x: Tensor) -> Tensor:
        """Run on tokens."""
        x = self.permute(functional.rms_norm(x, (HIDDEN,), self.norm))
        parts = self.qkv(x).view(TOKENS, 3, HEADS, -1).permute(1, 2, 0, 3).unsqueeze(1)
        query, key, value = parts.unbind(0)
        x = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x.squeeze(0).transpose(0, 1).reshape(TOKENS, HIDDEN)
        scaled = torch.empty_like(x)
        _scale[(TOKENS,)](x, self.factors.scale, scaled, HIDDEN)
        return self.out(scaled) + SHARED["shift"]

    def known(self) -> dict[str, Tensor]:
        """Return every tensor that a run reads, and that outlives it."""
        (order,) = [cell.cell_contents for cell in self.permute.__closure__ or ()]
        return {
            **dict(self.named_parameters()),
            "kernel object": self.factors.scale,
            "closure": order,
            "module dictionary": SHARED["shift"],
        }


def observed(*, compiled: bool) -> tuple[Report, Model]:
    """Capture one run and take the census of it."""
    torch.manual_seed(0)
    SHARED["shift"] = torch.randn(HIDDEN, device="cuda").bfloat16()
    watch, stream = Retention(), torch.cuda.Stream()
    watch.name_workspaces(stream)
    model, x = Model(), torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
    run: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False) if compiled else model
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            run(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        y = run(x)
    with torch.no_grad(), Recorder() as recorder:
        run(x)
    recorded = [entry.tensor for entry in recorder.tensors]
    io = {"input-output": [x, y]}
    return watch.capture({"decode": graph}, recorded, owned=model, **io), model


def shown(report: Report, model: Model, mode: str) -> bool:
    """Print the rows of one mode; return whether the census found every known tensor."""
    missing = []
    for name, tensor in model.known().items():
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        found = [row for row in report.rows if start <= row.address < end]
        marks = [source for source in SOURCES if found and source in found[0].known_to]
        if not found:
            missing.append(name)
        print(
            "pass" if found else "FAIL",
            mode,
            name,
            f"census {'yes' if found else 'no'}",
            *[f"{source} {'yes' if source in marks else 'no'}" for source in SOURCES],
            found[0].kernel[:48] if found else "",
            sep="\t",
        )
    addresses = {row.address: row for row in report.rows}
    outside = [row for row in addresses.values() if row.kind not in ("graph-pool",)]
    misses = {s: sum(s not in row.known_to for row in outside) for s in SOURCES}
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.addresses().items()))
    # Inductor names its kernels so.
    fused = {row.kernel for row in report.rows if row.kernel.startswith("triton_")}
    ok = not report.undecided and not report.stale and bool(fused) is (mode != "eager")
    print(
        "pass" if ok else "FAIL",
        mode,
        f"{len(fused)} fused kernels",
        f"{report.nodes} nodes, {len(addresses)} addresses: {kinds}",
        f"of {len(outside)} outside of the graph's pool",
        *[f"{source} misses {count}" for source, count in misses.items()],
        *[str(row) for row in (report.stale + report.unknown)[:4]],
        *report.undecided,
        sep="\t",
    )
    return ok and not missing


def main() -> int:
    """Print all rows; exit with 1 where the census misses a tensor."""
    done = []
    for mode, compiled in (("eager", False), ("torch.compile", True)):
        report, model = observed(compiled=compiled)
        done.append(shown(report, model, mode))
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
