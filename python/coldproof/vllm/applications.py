"""What a loader really wrote: copies from a source's storage into a slot's, seen at dispatch.

No loader is asked. A copy whose source is a view of a delivered tensor and whose destination is a
view of a parameter or a buffer is an application; its fragments are read off the two views. A
loader that computes before it copies (``-exp(A_log)``) leaves no such copy: its source counts as
consumed, its elements are not attributed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeGuard

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from coldproof.recorder import storage_record, tensors_in

Box = list[list[int]]
#: A name, and where a module has the tensor of that name: its parameters or buffers, and the leaf.
Place = tuple[str, dict[str, "torch.Tensor | None"], str]
COPY = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    itemsize: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """The layout of a tensor."""
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(shape, stride, int(tensor.storage_offset()), int(tensor.element_size()))

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill one run of memory, each once, in whatever order of axes."""
        step = 1
        for stride, extent in sorted(zip(self.stride, self.shape, strict=True)):
            if extent > 1:
                if stride != step:
                    return False
                step *= extent
        return True


def box_of(view: Layout, whole: Layout) -> Box | None:
    """The box of ``whole`` that ``view`` covers, if it is one.

    The view may be transposed or may lack axes of extent 1. One that joins axes is a box only where
    it is everything; one that repeats elements is none, and neither is one of another element size.
    """
    if view.itemsize != whole.itemsize or not whole.is_dense:
        return None
    volume = math.prod(view.shape)
    rest = view.offset - whole.offset
    if rest == 0 and volume == math.prod(whole.shape) and view.is_dense:
        return [[0, extent] for extent in whole.shape]
    if rest < 0 or volume == 0:
        return None
    lengths = {step: size for step, size in zip(view.stride, view.shape, strict=True) if size > 1}
    box: Box = [[0, extent] for extent in whole.shape]
    axes = [axis for axis, extent in enumerate(whole.shape) if extent > 1]
    for axis in sorted(axes, key=lambda axis: -whole.stride[axis]):
        step = whole.stride[axis]
        first, rest = divmod(rest, step)
        last = first + lengths.get(step, 1)
        if last > whole.shape[axis]:
            return None
        box[axis] = [first, last]
    covered = math.prod(last - first for first, last in box)
    return box if rest == 0 and covered == volume else None


@dataclass(frozen=True)
class Delivered:
    """A tensor that was passed on. Its memory is the loader's to free."""

    name: str
    layout: Layout
    storage: StorageWeakRef
    """Keeps the storage's record, so that no other storage can be taken for it."""


def tied(model: torch.nn.Module) -> dict[str, str]:
    """The first name of each parameter that has several, by each of the others."""
    first: dict[int, str] = {}
    pairs = model.named_parameters(remove_duplicate=False)
    names = {name: first.setdefault(id(tensor), name) for name, tensor in pairs}
    return {name: other for name, other in names.items() if name != other}


def is_held(tensor: torch.Tensor | None, key: int) -> TypeGuard[torch.Tensor]:
    """Whether this is a tensor over that storage, with elements."""
    return tensor is not None and storage_record(tensor) == key and not tensor.is_meta


def outward(start: int, count: int) -> Iterator[int]:
    """All of ``range(count)``, the nearest to ``start`` first."""
    for step in range(count):
        for index in (start + step, start - step)[: 1 + (step > 0)]:
            if 0 <= index < count:
                yield index


class Applications(TorchDispatchMode):
    """Records copies while weights are delivered through :meth:`deliver`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.records: list[tuple[str, Box | None, str, Box | None]] = []
        """(source, its box, slot, its box) of each copy; no box where the view is none."""
        self.consumed: set[str] = set()
        self.sent: list[str] = []
        self._delivered: dict[int, Delivered] = {}
        self._modules = list(model.named_modules())
        self._tied = tied(model)
        self._places: dict[int, list[Place]] = {}
        self._cursor = 0

    def deliver(
        self, weights: Iterator[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Passes weights on and remembers whose storage is whose."""
        for name, tensor in weights:
            self.sent.append(name)
            storage = StorageWeakRef(tensor.untyped_storage())
            self._delivered[storage.cdata] = Delivered(name, Layout.of(tensor), storage)
            yield name, tensor

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """A loader is not compiled: torch's guard around every call costs more than the call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation, and notes it where it read a delivered tensor."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        # Views are most of what a loader does, and not yet a use.
        if getattr(func, "is_view", False):
            return result
        if func is COPY:
            self._copied(args[0], args[1])
            return result
        read: dict[int, Delivered] = {}
        for tensor in tensors_in((args, kwargs)):
            key = storage_record(tensor)
            if key is not None and key in self._delivered:
                read[key] = self._delivered[key]
        if read:
            self._computed(read, list(tensors_in(result)))
        return result

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops noting. A slot that took a delivered storage as its own was written by that."""
        super().__exit__(exc_type, exc, traceback)
        for name, tensor in self._state():
            source = self._delivered.get(storage_record(tensor) or 0)
            if source is not None:
                self.consumed.add(source.name)
                taken = box_of(Layout.of(tensor), source.layout)
                whole = [[0, extent] for extent in tensor.shape]
                self.records.append((source.name, taken, name, whole))

    def _copied(self, target: torch.Tensor, view: torch.Tensor) -> None:
        key = storage_record(view)
        source = self._delivered.get(key) if key is not None else None
        if source is None or target.is_meta:
            return
        self.consumed.add(source.name)
        slot = self._slot_of(target)
        if slot is not None:
            name, written = slot
            taken = box_of(Layout.of(view), source.layout)
            self.records.append((source.name, taken, name, written))

    def _computed(self, read: dict[int, Delivered], results: list[torch.Tensor]) -> None:
        """A view is not yet a use, nor is what has no elements; a computed value is."""
        if results and all(tensor.is_meta for tensor in results):
            return
        made = {storage_record(tensor) for tensor in results}
        self.consumed.update(source.name for key, source in read.items() if key not in made)

    def _slot_of(self, target: torch.Tensor) -> tuple[str, Box | None] | None:
        """The parameter or buffer that ``target`` is a view of, and what it covers of it."""
        key = storage_record(target)
        if key is None:
            return None
        found = self._held(key)
        if not found:
            # A loader has replaced parameters since.
            self._places[key] = self._placed(key)
            found = self._held(key)
        boxes = [(name, box_of(Layout.of(target), Layout.of(tensor))) for name, tensor in found]
        return next((pair for pair in boxes if pair[1] is not None), boxes[0] if boxes else None)

    def _placed(self, key: int) -> list[Place]:
        """Where a storage is in the first module that has it; parameters before buffers.

        What comes next is near what came last, so the search goes outward from there.
        """
        for kind in ("_parameters", "_buffers"):
            for index in outward(self._cursor, len(self._modules)):
                path, module = self._modules[index]
                held = getattr(module, kind)
                leaves = [leaf for leaf, tensor in held.items() if is_held(tensor, key)]
                if leaves and self._is_in_model(path, module):
                    self._cursor = index
                    found = [(f"{path}.{leaf}" if path else leaf, held, leaf) for leaf in leaves]
                    first = [(self._tied[name], *at) for name, *at in found if name in self._tied]
                    return first + found
        return []

    def _is_in_model(self, path: str, module: torch.nn.Module) -> bool:
        """Whether a loader has left the module where it was."""
        try:
            return self.model.get_submodule(path) is module
        except AttributeError:
            return False

    def _held(self, key: int) -> list[tuple[str, torch.Tensor]]:
        """Which of the names that are known for a storage still have it."""
        places = self._places.get(key, ())
        pairs = [(name, tensors.get(leaf)) for name, tensors, leaf in places]
        return [(name, tensor) for name, tensor in pairs if is_held(tensor, key)]

    def _state(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
