"""The census of graphs of 100, 1,000 and 10,000 kernel nodes, and of each kind of node."""

from __future__ import annotations

import sys
import time

import torch
from coldproof import _native
from coldproof.torch import Retention

SIDE = 64


def chain(nodes: int) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor], torch.Tensor]:
    """Capture a chain of kernels, each with a weight of its own."""
    weights = [torch.randn(SIDE, device="cuda") for _ in range(nodes)]
    x = torch.zeros(SIDE, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for weight in weights:
            torch.add(x, weight, out=x)
    return graph, weights, x


def timed(device: _native.Device, nodes: int) -> bool:
    """Print a row for one length; return whether it is as it should be."""
    watch = Retention()
    graph, weights, x = chain(nodes)
    known = watch.log.read().known
    device.census(graph.raw_cuda_graph(), known)
    began = time.perf_counter()
    census = device.census(graph.raw_cuda_graph(), known)
    took = time.perf_counter() - began
    began = time.perf_counter()
    bare = device.census(graph.raw_cuda_graph(), known, 0)
    plain = time.perf_counter() - began
    found = {entry[3] for entry in census.addresses}
    missing = sum(weight.data_ptr() not in found for weight in weights)
    began = time.perf_counter()
    report = watch.capture({"g": graph}, owned={"weights": weights}, **{"input-output": [x]})
    resolved = time.perf_counter() - began
    ok = missing == 0 and len(census.nodes) == nodes and took <= 1 and not report.stale
    print(
        "pass" if ok else "FAIL",
        f"census, {len(census.nodes)} nodes",
        f"{1000 * took:.1f} ms",
        f"without tables {1000 * plain:.1f} ms",
        f"census, log and owners {1000 * resolved:.0f} ms",
        f"{len(found)} addresses, {missing} of {nodes} weights missing",
        f"{len(bare.addresses)} without tables",
        sep="\t",
    )
    return ok


def kinds(device: _native.Device) -> bool:
    """Print a row for a graph with a matrix product, a copy, a fill and a table of pointers."""
    a, b = (
        torch.randn(256, 256, device="cuda", dtype=torch.bfloat16),
        torch.randn(256, 256, device="cuda", dtype=torch.bfloat16),
    )
    c, d = torch.empty_like(a), torch.empty_like(a)
    parts = [torch.randn(64, device="cuda") for _ in range(4)]
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.mm(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        torch.mm(a, b, out=c)
        d.copy_(c)
        d.zero_()
        under_way = device.capture_under_way(torch.cuda.current_stream().cuda_stream)
        early = device.census(under_way, [], 0)
        torch._foreach_add_(parts, 1.0)
    census = device.census(graph.raw_cuda_graph())
    found = {entry[3] for entry in census.addresses}
    wanted = [t.data_ptr() for t in (a, b, c, d, *parts)]
    missing = [hex(address) for address in wanted if address not in found]
    names = sorted({node[1] for node in census.nodes})
    unread = [node[4] for node in census.nodes if node[4]]
    ok = not missing and not unread and a.data_ptr() in {entry[3] for entry in early.addresses}
    kernels = [node[2][:40] for node in census.nodes if node[1] == "kernel"]
    print(
        "pass" if ok else "FAIL",
        "kinds of node",
        ", ".join(names),
        f"missing {missing}",
        f"{len(early.nodes)} nodes read while the capture was under way",
        kernels[0],
        *unread,
        sep="\t",
    )
    return ok


def library() -> bool:
    """Print a row for a product that is split along its inner axis, in cuBLAS's workspace."""
    watch, stream = Retention(), torch.cuda.Stream()
    blocks = watch.name_workspaces(stream)
    a, b = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((16, 1 << 16), (1 << 16, 16))
    )
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        c = torch.mm(a, b)
    report = watch.capture({"g": graph}, owned={"a": a, "b": b}, **{"input-output": [c]})
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.addresses().items()))
    ok = report.may_resume and blocks > 0
    kernels = sorted({row.kernel[:40] for row in report.rows})
    print(
        "pass" if ok else "FAIL",
        "a product in a library's workspace",
        f"{blocks} blocks named",
        kinds,
        *kernels[:2],
        *[str(row) for row in (report.stale + report.unknown)[:2]],
        sep="\t",
    )
    return ok


def table(device: _native.Device) -> bool:
    """Print a row for pointers that stand in device memory, as a grouped product's do."""
    weights = [torch.randn(64, device="cuda") for _ in range(8)]
    pointers = torch.tensor([w.data_ptr() for w in weights], dtype=torch.int64, device="cuda")
    out = torch.empty_like(pointers)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        torch.add(pointers, 0, out=out)
    known = [(w.data_ptr(), 256) for w in weights]
    census = device.census(graph.raw_cuda_graph(), known)
    through = {entry[3] for entry in census.addresses if entry[4] is not None}
    missing = sum(w.data_ptr() not in through for w in weights)
    print(
        "pass" if not missing else "FAIL", "a table of 8 pointers", f"{missing} missing", sep="\t"
    )
    return not missing


def main() -> int:
    """Print all rows; exit with 1 where one is not as it should be."""
    device = _native.Device(torch.cuda.current_device())
    done = [
        kinds(device),
        library(),
        table(device),
        *(timed(device, n) for n in (100, 1_000, 10_000)),
    ]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
