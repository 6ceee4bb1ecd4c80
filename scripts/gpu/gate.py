"""What a gate costs: 1,000 parameters that a captured graph retains, updated in place."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from coldproof.torch import Retention, digests, holdings
from coldproof.torch.owners import owners_of

PARAMETERS = 1_000
SIDE = 1_024
REPEATS = 5


class Stack(torch.nn.Module):
    """Parameters that are added one after the other."""

    def __init__(self) -> None:
        super().__init__()
        made = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in range(PARAMETERS))
        own = (torch.nn.Parameter(tensor, requires_grad=False) for tensor in made)
        self.weights = torch.nn.ParameterList(own)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add all of them."""
        for weight in self.weights:
            x = x + weight
        return x


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median wall time of some work."""
    times = []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def main() -> int:
    """Print one row; exit with 1 where the gate does not let a right update through."""
    model, x = Stack(), torch.zeros(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    watch = Retention()
    model(x)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = model(x)
    io = {"input-output": [x, y]}
    began = time.perf_counter()
    first = watch.capture({"decode": graph}, owned=model, **io)
    noted = 1000 * (time.perf_counter() - began)
    for weight in model.weights:
        weight.mul_(2)
    expected = holdings(model)
    tensors = dict(model.named_parameters())
    seen = watch.verify(expected, owned=model, **io)
    ok = first.may_resume and seen.may_resume and len(seen.verified) == PARAMETERS
    whole = milliseconds(lambda: watch.verify(expected, owned=model, **io))
    parts = {
        "synchronise": milliseconds(torch.cuda.synchronize),
        "owners": milliseconds(lambda: owners_of({"owned": model, **io})),
        "log": milliseconds(watch.log.read),
        "judgement": milliseconds(lambda: watch.judge(owned=model, **io)),
        "digests": milliseconds(lambda: digests(tensors)),
    }
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(
        "pass" if ok else "FAIL",
        f"gate, {PARAMETERS} parameters, {size / 1e9:.1f} GB",
        f"{whole:.1f} ms",
        "of which " + ", ".join(f"{name} {took:.1f} ms" for name, took in parts.items()),
        f"census and owners, once: {noted:.0f} ms",
        f"{len(seen.verified)} slots hold what is expected",
        *[str(row) for row in (first.stale + seen.report.stale)[:3]],
        *[str(finding) for finding in seen.findings[:3]],
        *first.undecided,
        sep="\t",
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
