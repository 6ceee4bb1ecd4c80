"""Slots of one rank: parameters, buffers, and every tensor that the object walk reaches.

What no module registers follows a slash after the module that leads to it:
``model.layers.0.mlp.gate/cpu_linear.<closure>.packed_weight``.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import unit_vectors, versions
from .tensors import dtype_name

#: Addresses of handles that only a multiplication reads. No process has memory there.
HANDLES = 1 << 62
#: Addresses of tensors with gaps, which are read through a copy.
COPIES = 1 << 61
#: Addresses between two of either.
STEP = 1 << 44


class Serials:
    """Serial numbers of storages: never used again, unlike addresses."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._handles: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._views: dict[tuple[Any, ...], int] = {}
        self._next = 1

    def of(self, tensor: torch.Tensor) -> int:
        """The serial of the tensor's storage."""
        ref = StorageWeakRef(tensor.untyped_storage())
        known = self._known.get(ref.cdata)
        if known is not None and not known[0].expired():
            return known[1]
        self._known[ref.cdata] = (ref, self._take())
        return self._known[ref.cdata][1]

    def of_view(self, tensor: torch.Tensor) -> int:
        """The number of a view of a storage."""
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        view = (self.of(tensor), tensor.storage_offset(), shape, stride)
        return self._views.setdefault(view, len(self._views))

    def of_handle(self, handle: Any) -> int:
        """The serial of a function that holds weights out of sight. It may go: it is not kept."""
        known = self._handles.get(id(handle))
        if known is None or known[0]() is not handle:
            known = (weakref.ref(handle), self._take())
            self._handles[id(handle)] = known
        return known[1]

    def _take(self) -> int:
        self._next += 1
        return self._next - 1


@dataclass
class Slot:
    """One slot and where its bytes are."""

    name: str
    kind: str
    tensor: torch.Tensor | None = None
    layer: Any = None
    inputs: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    packed: bool = False
    preserved: bool = False
    gaps: bool = False
    """Whether it is read through a row-major copy."""

    def first(self, serials: Serials) -> int | None:
        """The address by which the protocol reads it; nothing where it has no memory."""
        if self.layer is not None:
            return HANDLES + serials.of_handle(self.layer.cpu_linear) * STEP
        if self.tensor is None or self.tensor.is_meta:
            return None
        return COPIES + serials.of_view(self.tensor) * STEP if self.gaps else self.tensor.data_ptr()

    def fact(self, serials: Serials, epoch: int) -> dict[str, Any] | None:
        """The slot as evidence has it; nothing where its dtype has no name there."""
        tensor = self.tensor
        if self.layer is not None:
            rows, columns = unit_vectors.shape(self.layer) or (0, 0)
            dtype = dtype_name(self.layer.weight)
            layout: dict[str, Any] = {
                "storage": serials.of_handle(self.layer.cpu_linear),
                "address": hex(self.first(serials) or 0),
                "storage_bytes": rows * columns * self.layer.weight.element_size(),
                "shape": [rows, columns],
                "stride": [columns, 1],
                "offset": 0,
                "dtype": dtype,
                "device": "cpu (a handle, read by unit vectors)",
            }
        elif tensor is not None and tensor.is_meta:
            # Where a failed reload left it: the layer has no memory for it.
            return self._described(None, list(tensor.shape), epoch)
        elif tensor is not None:
            dtype = dtype_name(tensor)
            layout = {
                "storage": serials.of(tensor),
                "address": hex(self.first(serials) or 0),
                "storage_bytes": tensor.untyped_storage().nbytes(),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "offset": tensor.storage_offset(),
                "dtype": dtype,
                "device": str(tensor.device),
            }
        else:
            return None
        if dtype is None:
            return None
        return self._described(layout, layout["shape"], epoch)

    def _described(
        self, layout: dict[str, Any] | None, shape: list[int], epoch: int
    ) -> dict[str, Any]:
        return {
            "kind": "slot",
            "slot": self.name,
            "slot_kind": self.kind,
            "fingerprint": layout,
            "packing": {"kind": "opaque" if self.packed else "plain"},
            "logical_shape": shape,
            "aliases": self.aliases,
            "policy": "preserve" if self.preserved else "refresh",
            "inputs": self.inputs,
            "epoch": epoch,
            "replaceable": True,
        }


Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


def storage_key(tensor: torch.Tensor) -> Key:
    """What two names of one slot share."""
    # Without gaps the steps follow from the shape, but for axes of extent 1.
    steps = () if tensor.is_contiguous() else tuple(tensor.stride())
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), steps


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its axes by falling stride: contiguous, unless it has gaps or repeats."""
    if tensor.is_contiguous():
        return tensor
    return tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))


def unreadable(tensor: torch.Tensor) -> str | None:
    """Why a tensor cannot be a slot; nothing where it can."""
    if dtype_name(tensor) is None:
        return f"{tensor.dtype} has no name in the evidence"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return "its elements share memory with each other"
    return None


class Census:
    """All slots of a model, taken anew at each call."""

    def __init__(
        self, model: torch.nn.Module, packed: set[str], caches: list[torch.Tensor]
    ) -> None:
        self.slots: dict[str, Slot] = {}
        self.left_out: dict[str, str] = {}
        """Tensors that cannot be slots, and why."""
        self._unread: set[int] = set()
        self._first: dict[Key, Slot] = {}
        self._caches = {tensor.untyped_storage()._cdata for tensor in caches}
        for path, module in model.named_modules():
            self._module(versions.slot_path(path), module, packed)

    def _module(self, path: str, module: torch.nn.Module, packed: set[str]) -> None:
        def join(name: str) -> str:
            return f"{path}.{name}" if path else name

        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            slot = join(name)
            if name == "weight" and unit_vectors.is_opaque(module):
                # What multiplies is a packed copy that post-load made of the weight.
                self.slots[slot] = Slot(slot, "derived", layer=module)
                continue
            self._tensor(Slot(slot, "parameter", parameter.data, packed=slot in packed))
            if name == "weight" and unit_vectors.is_copied(module):
                copy = f"{path}/cpu_linear"
                self.slots[copy] = Slot(copy, "derived", layer=module, inputs=[slot])
        for name, buffer in module._buffers.items():
            if buffer is not None:
                lost = name in module._non_persistent_buffers_set
                self._tensor(Slot(join(name), "buffer", buffer, preserved=lost))

    def _tensor(self, slot: Slot) -> None:
        tensor = slot.tensor
        if tensor is None or tensor.is_meta or tensor.numel() == 0:
            if tensor is not None and tensor.is_meta:
                self.slots[slot.name] = slot
            return
        if tensor.untyped_storage()._cdata in self._caches:
            return
        why = unreadable(tensor)
        if why is not None:
            self.left_out[slot.name] = why
            self._unread.add(tensor.untyped_storage()._cdata)
            return
        ordered = in_memory_order(tensor)
        if not ordered.is_contiguous():
            slot.gaps, slot.packed = True, slot.packed and slot.kind == "parameter"
        elif not tensor.is_contiguous():
            # Memory is read in its own order, which is then not that of the elements.
            slot.tensor, slot.packed = ordered, True
            tensor = ordered
        first = self._first.setdefault(storage_key(tensor), slot)
        if first is not slot:
            first.aliases.append(slot.name)
            alias = Slot(slot.name, "alias", tensor, aliases=[first.name], packed=first.packed)
            alias.gaps = first.gaps
            slot = alias
        self.slots[slot.name] = slot

    def reached(
        self,
        tensors: list[tuple[str, torch.Tensor]],
        modules: list[str],
        scratch: frozenset[str] = frozenset(),
    ) -> None:
        """Adds what the walk found and no module registers; of that, ``scratch`` is known so."""
        registered = {key[0] for key in self._first} | self._caches | self._unread
        for path, tensor in tensors:
            if tensor.is_meta or tensor.numel() == 0:
                continue
            if tensor.untyped_storage()._cdata in registered:
                continue
            owner = max((m for m in modules if path.startswith(f"{m}.")), key=len, default="")
            inside = path[len(owner) :].lstrip(".")
            owner = versions.slot_path(owner)
            name = f"{owner}/{inside}"
            if versions.is_handle(inside):
                self.slots[name] = Slot(name, "opaque", tensor, packed=True)
            else:
                # What a layer keeps beside its weight was made of it.
                weight = f"{owner}.weight"
                inputs = [weight] if weight in self.slots else []
                kind = "scratch" if name in scratch else "derived"
                self._tensor(Slot(name, kind, tensor, inputs=inputs, packed=True))
