"""One rank of a live vLLM: what is done in the worker process, next to the model."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from coldproof import _native
from coldproof.agent import Refused, Unsupported
from coldproof.recorder import tensors_in

from . import cold_load, post_load, unit_vectors, versions
from .applications import Applications
from .forwards import Forwards
from .scratch import Scratch
from .slots import COPIES, STEP, Census, Serials, Slot
from .tensors import TensorRef

Facts = list[dict[str, Any]]


class Trace:
    """Counts the rows that the model's forward computes, at its embedding.

    It knows nothing but its counts: what hangs on a module is reached by the object walk.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.request = ""
        self.counts: dict[str, list[int]] = {}
        for module in model.modules():
            # Where it may serve adapters, a wrapper computes past the call of what it wraps.
            weights = module._parameters or hasattr(module, "base_layer")
            if "Embedding" in type(module).__name__ and weights:
                module.register_forward_hook(self._count)
                break

    def _count(self, _module: Any, _args: Any, output: Any) -> None:
        if self.request and isinstance(output, torch.Tensor):
            count = self.counts.setdefault(self.request, [0, 0])
            count[0] += 1
            count[1] += int(output.shape[0])

    def drain(self) -> Facts:
        """The counts since the last call."""
        facts = [
            {"request": name, "kernel": "embedding", "launches": launches, "rows": rows}
            for name, (launches, rows) in sorted(self.counts.items())
        ]
        self.counts = {}
        return facts


class Rank:
    """The probe and the hands of one rank."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.model = versions.model_of(worker)
        self.serials = Serials()
        self.generation = 1
        self.transaction = 1
        self.sources: list[TensorRef] = []
        self.pending: Facts = []
        self.trace = Trace(self.model)
        self.forwards = Forwards(self.model)
        self.scratch = Scratch()
        self.garbage: list[torch.Tensor] = []
        self.census: Census | None = None
        self.recorder: Applications | None = None
        converted = post_load.drain()
        self.expected = [self._label(owner, layer) for owner, layer in converted]
        """What converted weights at the cold load: words, for objects keep old weights alive."""
        experts = {id(layer) for owner, layer in converted if "Experts" in type(owner).__name__}
        self.packed = [path for path, m in self.model.named_modules() if id(m) in experts]
        """Layers whose experts object converted their weights at the cold load."""
        first = cold_load.of(self.model)
        if first is not None:
            self._applied(first)
            self._receipt(first)

    def only(self, tp: int, method: str, *args: Any) -> Any:
        """Calls a method where this is rank ``tp``; elsewhere nothing."""
        own = getattr(self.worker, "rank", 0) == tp
        return getattr(self, method)(*args) if own else None

    # -- observation -------------------------------------------------------------------------

    def serving(self, request: str) -> None:
        """Names the request whose rows are counted from now on."""
        self.trace.request = request

    def drain_launches(self) -> Facts:
        """Forward passes since the last call, by request."""
        return self.trace.drain()

    def slots(self) -> Facts:
        """All slots as of now."""
        packed = {
            versions.slot_path(f"{path}.{name}")
            for path in self.packed
            for name, tensor in self.model.get_submodule(path).named_parameters(recurse=False)
            if tensor.dim() > 2
        }
        caches = list(self._caches())
        census = Census(self.model, packed, caches)
        walk = _native.walk(self.model, tensor_type=torch.Tensor)
        modules = [path for path, _ in self.model.named_modules()]
        census.reached(walk.tensors, modules, self.scratch.names)
        self.census = census
        facts = [slot.fact(self.serials, self.generation) for slot in census.slots.values()]
        blind = [slot.name for slot in census.slots.values() if slot.layer is not None]
        unseen = [f"{name} ({why})" for name, why in census.left_out.items()]
        unseen += [f"{name} (forwards write it)" for name in sorted(self.scratch.names)]
        stated = [*claims("zero-sign-unseen", blind), *claims("unseen", unseen)]
        return [*(fact for fact in facts if fact is not None), *stated]

    def before_forward(self) -> None:
        """Notes all slots, to be compared after a forward."""
        self.slots()
        self.scratch.before(self._slots())

    def after_forward(self) -> None:
        """Learns from a forward which slots are scratch."""
        self.scratch.after(self._slots())

    def _slots(self) -> Iterable[Slot]:
        return self.census.slots.values() if self.census else ()

    def _caches(self) -> Iterator[torch.Tensor]:
        yield from tensors_in(getattr(self.worker.model_runner, "kv_caches", ()))
        for module in self.model.modules():
            yield from tensors_in(getattr(module, "kv_cache", ()))

    def _slot_at(self, address: int) -> Slot | None:
        for slot in self._slots():
            if slot.layer is not None or slot.gaps:
                first = slot.first(self.serials)
                if first is not None and first <= address < first + STEP:
                    return slot
            elif slot.tensor is not None and not slot.tensor.is_meta:
                storage = slot.tensor.untyped_storage()
                if storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
                    return slot
        return None

    def _memory(self, address: int) -> tuple[int, int, int, Any]:
        """(protocol address, pointer, bytes, what keeps them alive) around ``address``."""
        slot = self._slot_at(address)
        if slot is None:
            raise Refused(f"no slot of this rank lies at {address:#x}; ask for the claims again")
        if slot.layer is not None:
            weight = unit_vectors.read(slot.layer).contiguous()
            return slot.first(self.serials) or 0, weight.data_ptr(), weight.nbytes, weight
        assert slot.tensor is not None  # `_slot_at` returns slots that have one of the two.
        if slot.gaps:
            copy = slot.tensor.contiguous()
            return slot.first(self.serials) or 0, copy.data_ptr(), copy.nbytes, copy
        storage = slot.tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr(), storage.nbytes(), storage

    def read(self, address: int, count: int) -> bytes:
        """Bytes of a slot, as they are."""
        first, pointer, length, _alive = self._memory(address)
        offset = address - first
        if offset + count > length:
            raise Refused(f"{count} bytes at {address:#x} leave the slot's storage")
        return ctypes.string_at(pointer + offset, count)

    def write(self, address: int, data: bytes | bytearray) -> None:
        """Positive control."""
        first, pointer, length, _alive = self._memory(address)
        if first >= COPIES:
            raise Unsupported("what is read through a handle or a copy cannot be written")
        offset = address - first
        if offset + len(data) > length:
            raise Refused(f"{len(data)} bytes at {address:#x} leave the slot's storage")
        ctypes.memmove(pointer + offset, bytes(data), len(data))

    def read_back(self, requests: str) -> str:
        """Reads slots back in the native module, without a copy of what has an address."""
        asked = json.loads(requests)
        memory = []
        for request in asked:
            try:
                memory.append(self._memory(int(request["address"], 16)))
            except Refused:
                continue
        ranges = [(first, pointer, length) for first, pointer, length, _alive in memory]
        return bytes(_native.read_back(requests.encode(), ranges)).decode()

    def state(self) -> Facts:
        """Configuration and the selected method of each layer."""
        config = self.worker.vllm_config
        facts = [
            ("engine", "dtype", str(config.model_config.dtype)),
            ("engine", "quantization", str(config.model_config.quantization)),
            ("engine", "enforce_eager", str(config.model_config.enforce_eager)),
            ("engine", "block_size", str(config.cache_config.block_size)),
            ("engine", "load_format", str(config.load_config.load_format)),
            ("engine", "capture_sizes", str(config.compilation_config.cudagraph_capture_sizes)),
        ]
        for path, module in self.model.named_modules():
            method = getattr(module, "quant_method", None)
            if method is not None:
                facts.append((versions.slot_path(path), "method", method_name(module, method)))
        return [
            {"kind": "state", "owner": owner, "name": name, "value": value, "policy": "preserve"}
            for owner, name, value in facts
        ]

    # -- updates -----------------------------------------------------------------------------

    def begin(self, transaction: int) -> None:
        """Starts collecting, and lets go of all memory that the engine may replace."""
        self.transaction = transaction
        self.sources = []
        self.census = None
        self.recorder = None
        post_load.drain()
        for label in self.expected:
            self._stage(label, "expected")

    def apply(self, bucket: list[dict[str, Any]]) -> None:
        """Takes references; the files are read when the engine asks for the tensors."""
        self.sources.extend(TensorRef.of(fields) for fields in bucket)

    def finish(self, way: str) -> None:
        """Delivers everything the way a user would, and records what the loaders wrote."""
        recorder = Applications(self.model)
        weights = recorder.deliver((ref.name, ref.read()) for ref in self.sources)
        try:
            with recorder:
                self._deliver(way, weights)
        finally:
            self._record(recorder)

    def _deliver(self, way: str, weights: Any) -> None:
        if way == "reload-iterator":
            versions.reload(self.worker, weights_iterator=weights)
        elif way == "load-weights":
            # As the worker extensions of RL frameworks do it.
            for pair in weights:
                self.model.load_weights([pair])
        elif way == "transfer":
            from . import transfer

            transfer.deliver(self.worker, weights)
        else:
            raise Unsupported(f"an update by `{way}`")

    def reload_path(self, directory: str) -> None:
        """The reload by path: vLLM reads the files itself."""
        recorder = Applications(self.model)
        try:
            with cold_load.delivering(recorder), recorder:
                versions.reload(self.worker, weights_path=directory)
        finally:
            self._record(recorder)

    def _record(self, recorder: Applications) -> None:
        self._applied(recorder)
        for owner, layer in post_load.drain():
            self._stage(self._label(owner, layer), "processed")
        self.recorder = recorder

    def _applied(self, recorder: Applications) -> None:
        for source, taken, slot, written in recorder.records:
            if taken is not None and written is not None:
                fact = {
                    "kind": "application",
                    "transaction": self.transaction,
                    "source": source,
                    "source_fragment": taken,
                    "slot": versions.slot_path(slot),
                    "slot_fragment": written,
                }
                self.pending.append(fact)

    def commit(self) -> None:
        """States what this rank saw, as a receipt."""
        for fact in [fact for fact in self.pending if fact.get("stage") == "processed"]:
            self._stage(fact["layer"], "finalised")
        self.generation += 1
        self._receipt(self.recorder)
        self.record_forward()

    def record_forward(self) -> None:
        """Has the next forward recorded: which tensors it reads that no attribute leads to."""
        self.forwards.asked = True

    def _receipt(self, recorder: Applications | None) -> None:
        sent = set(recorder.sent) if recorder else set()
        consumed = recorder.consumed if recorder else set()
        receipt = {
            "kind": "receipt",
            "transaction": self.transaction,
            "generation": self.generation,
            "applications": len(recorder.records) if recorder else 0,
            "unrouted": sorted(sent - consumed),
            "buffered": versions.buffered(self.model),
            "committed": True,
        }
        self.pending.append(receipt)

    def _label(self, owner: Any, layer: Any) -> str:
        """The module path of the layer, then what converted it where that is no module's method."""
        layers = {id(m): path for path, m in self.model.named_modules()}
        for path, module in self.model.named_modules():
            layers.setdefault(id(getattr(module, "impl", None)), path)
        path = versions.slot_path(layers.get(id(layer), layers.get(id(owner), "")))
        method = getattr(layer, "quant_method", None)
        if owner is method or owner is layer or id(owner) in layers:
            return path or type(owner).__name__
        return f"{path}/{type(owner).__name__}"

    def _stage(self, layer: str, stage: str) -> None:
        seen = {"layer": layer, "stage": stage}
        if any(fact.items() >= seen.items() for fact in self.pending):
            return
        fact = {"kind": "post-load", "transaction": self.transaction, **seen, "prerequisites": []}
        self.pending.append(fact)

    def generation_now(self) -> int:
        """How many weights this rank has had."""
        return self.generation

    def drain_claims(self) -> Facts:
        """Applications, post-load stages and receipts since the last call."""
        facts = [*self.pending, *claims("unseen", self.forwards.take())]
        self.pending = []
        return facts

    # -- pressure ----------------------------------------------------------------------------

    def pressure(self) -> None:
        """Takes freed memory and fills it with garbage, so that a stale reader cannot be right."""
        sizes = {p.untyped_storage().nbytes() for p in self.model.parameters() if not p.is_meta}
        for size in sorted(size for size in sizes if size):
            for _ in range(4):
                self.garbage.append(torch.full((size,), 0xFF, dtype=torch.uint8))

    def release_pressure(self) -> None:
        """Gives that memory back."""
        self.garbage = []


def claims(what: str, values: list[str]) -> Facts:
    """Claims of one kind."""
    return [{"kind": "claim", "what": what, "value": value} for value in values]


def method_name(module: Any, method: Any) -> str:
    """The selected method and, for experts, the kernel behind it."""
    names = [type(method).__name__]
    kernel = getattr(method, "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    if experts is not None:
        names.append(type(experts).__name__)
    if unit_vectors.is_opaque(module):
        names.append("packed")
    return "/".join(names)
