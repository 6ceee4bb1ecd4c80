"""The census of graphs of 100, 1,000 and 10,000 kernel nodes, and of each kind of node."""

from __future__ import annotations

import ctypes
import sys
import time

import torch
from coldproof import ColdproofError, _native
from coldproof.torch import Retention

SIDE = 64
PINNED, DEVICE = 1, 1
KINDS = ["graph", "host", "kernel", "mem-alloc", "mem-free", "memcpy", "memset", "order"]


class Fill(ctypes.Structure):
    """``CUDA_MEMSET_NODE_PARAMS_v1``, of 40 bytes."""

    _fields_ = (
        ("target", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class Side(ctypes.Structure):
    """One side of ``CUDA_MEMCPY3D``, up to its pitch and height."""

    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("z", ctypes.c_size_t),
        ("level", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class Copy(ctypes.Structure):
    """``CUDA_MEMCPY3D``, of 200 bytes."""

    _fields_ = (
        ("source", Side),
        ("target", Side),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    )


class Function(ctypes.Structure):
    """``CUDA_HOST_NODE_PARAMS_v1``, of 16 bytes."""

    _fields_ = (("function", ctypes.c_void_p), ("data", ctypes.c_void_p))


class Allocation(ctypes.Structure):
    """``CUDA_MEM_ALLOC_NODE_PARAMS_v1``, of 120 bytes, of which 88 are ``CUmemPoolProps``."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("security", ctypes.c_void_p),
        ("largest", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
        ("access", ctypes.c_void_p),
        ("accesses", ctypes.c_size_t),
        ("bytes", ctypes.c_size_t),
        ("address", ctypes.c_uint64),
    )


class Built:
    """A graph that is built over the driver, node by node, and never launched."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._graph = ctypes.c_void_p()
        self._context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(self._context))
        self.call("cuGraphCreate", ctypes.byref(self._graph), ctypes.c_uint(0))

    @property
    def handle(self) -> int:
        """The raw graph."""
        return self._graph.value or 0

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver; raise with its word for an error."""
        status = getattr(self._driver, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown').decode()} ({status})")

    def add(
        self, kind: str, *arguments: object, after: ctypes.c_void_p | None = None
    ) -> ctypes.c_void_p:
        """Add a node, behind another one where it is given."""
        node = ctypes.c_void_p()
        before = ctypes.byref(after) if after else ctypes.c_void_p()
        count = ctypes.c_size_t(1 if after else 0)
        name = f"cuGraphAdd{kind}Node"
        self.call(name, ctypes.byref(node), self._graph, before, count, *arguments)
        return node

    def fill(self, address: int, elements: int) -> None:
        """Fill words of four bytes with 0."""
        params = Fill(target=address, element=4, width=elements, height=1)
        self.add("Memset", ctypes.byref(params), self._context)

    def copy(self, target: Side, source: Side) -> None:
        """Copy two rows of 16 bytes."""
        params = Copy(source=source, target=target, width=16, height=2, depth=1)
        self.add("Memcpy", ctypes.byref(params), self._context)

    def scratch(self, ordinal: int, size: int) -> int:
        """Allocate memory of the graph's own and free it again; return its address."""
        params = Allocation(kind=PINNED, location=DEVICE, device=ordinal, bytes=size)
        node = self.add("MemAlloc", ctypes.byref(params))
        self.add("MemFree", ctypes.c_uint64(params.address), after=node)
        return int(params.address)

    def destroy(self) -> None:
        """Give the graph back."""
        self.call("cuGraphDestroy", self._graph)


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
    """Print a row for a captured graph: a product, a copy, a kernel that fills, and pointers."""
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
        "kinds of node that torch captures",
        ", ".join(names),
        f"missing {missing}",
        f"{len(early.nodes)} nodes read while the capture was under way",
        kernels[0],
        *unread,
        sep="\t",
    )
    return ok


def part(tensor: torch.Tensor, place: int) -> Side:
    """Return a side that begins in the second slice: 4 rows of 64 bytes are a slice."""
    start = tensor.data_ptr()
    return Side(x=8 + 8 * place, y=1, z=1, kind=2, device=start, pitch=64, height=4)


def over_the_driver(device: _native.Device) -> bool:
    """Print a row for a graph with each kind of node that is read: all of their addresses."""
    filled, source, target = (torch.zeros(256, device="cuda") for _ in range(3))
    child, weights, x = chain(1)
    data = ctypes.create_string_buffer(64)
    nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _data: None)
    graph = Built()
    graph.fill(filled.data_ptr(), 16)
    graph.copy(part(target, 1), part(source, 0))
    called = Function(ctypes.cast(nothing, ctypes.c_void_p), ctypes.addressof(data))
    graph.add("Host", ctypes.byref(called))
    graph.add("Empty")
    graph.add("ChildGraph", ctypes.c_void_p(child.raw_cuda_graph()))
    scratch = graph.scratch(torch.cuda.current_device(), 4096)
    # No table is followed: nothing backs the graph's own memory before a launch.
    known = [(ctypes.addressof(data), 64), (scratch, 4096)]
    census = device.census(graph.handle, known, 0)
    slice_and_row = 5 * 64
    wanted = {
        "memset": {filled.data_ptr()},
        "memcpy": {
            target.data_ptr() + slice_and_row + 16,
            source.data_ptr() + slice_and_row + 8,
        },
        "host": {ctypes.addressof(data)},
        "kernel": {weights[0].data_ptr(), x.data_ptr()},
        "mem-alloc": {scratch},
        "mem-free": {scratch},
    }
    found: dict[str, set[int]] = {}
    for node, _, _, address, _ in census.addresses:
        found.setdefault(census.nodes[node][1], set()).add(address)
    missing = [kind for kind, those in wanted.items() if not those <= found.get(kind, set())]
    names = sorted({node[1] for node in census.nodes})
    nested = [node[1] for node in census.nodes if len(node[0]) == 2]
    unread = [node[4] for node in census.nodes if node[4]]
    backing = device.allocation(scratch)
    graph.destroy()
    ok = not missing and not unread and names == KINDS and nested == ["kernel"]
    print(
        "pass" if ok else "FAIL",
        "each kind of node, built over the driver",
        ", ".join(names),
        f"missing {missing}",
        f"in the child graph {nested}",
        f"the graph's own memory before a launch {backing}",
        *unread,
        sep="\t",
    )
    return ok


def built(device: _native.Device) -> bool:
    """Print the row, or the driver's word for what it refused."""
    try:
        return over_the_driver(device)
    except (ColdproofError, RuntimeError, AttributeError, OSError, ctypes.ArgumentError) as error:
        print("FAIL", "each kind of node, built over the driver", error, sep="\t")
        return False


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
        built(device),
        library(),
        table(device),
        *(timed(device, n) for n in (100, 1_000, 10_000)),
    ]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
