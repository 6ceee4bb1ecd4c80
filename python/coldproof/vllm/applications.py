"""What a loader really wrote: copies from a source's storage into a slot's, as it calls them.

No loader is asked. A copy whose source is a view of a delivered tensor and whose destination is a
view of a parameter or a buffer is an application; its fragments are read off the two views. A
loader that computes before it copies (``-exp(A_log)``) leaves no such copy: its source counts as
consumed, its elements are not attributed.

Torch shows a function mode every call from Python. Copies and looks, which are nearly all that a
loader does, are told there; any other call is run under a dispatch mode, which shows the operations
that it is made of and costs several times as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from coldproof.recorder import storage_record, tensors_in

from .boxes import Box, Layout, box_of
from .calls import is_look, taken_apart
from .holders import Holders

COPY = torch.ops.aten.copy_.default
COPY_EACH = torch.ops.aten._foreach_copy_.default
#: The same as a loader calls it.
COPIES = torch.Tensor.copy_
#: Within it, no mode and no class of parameters hears of what is asked of a tensor.
unwatched = torch._C.DisableTorchFunction


def have_storage(tensors: tuple[object, ...]) -> bool:
    """Whether each is a tensor over memory, and no wrapper of other tensors."""
    with unwatched():
        return all(storage_record(tensor) is not None for tensor in tensors)


class Delivered(NamedTuple):
    """A tensor that was passed on. Its memory is the loader's to free."""

    name: str
    layout: Layout
    storage: StorageWeakRef
    """Keeps the storage's record, so that no other storage can be taken for it."""


class Operations(TorchDispatchMode):
    """Shows a recorder the operations of a call."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Applications) -> None:
        super().__init__()
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """A loader is not compiled: torch's guard around every call costs more than the call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation, and has it noted where it is no view: that is not yet a use."""
        result = func(*args, **kwargs) if kwargs else func(*args)
        if not getattr(func, "is_view", False):
            with unwatched():
                if func is COPY:
                    self._recorder.copied(args[0], args[1])
                elif func is COPY_EACH:
                    for target, view in zip(args[0], args[1], strict=True):
                        self._recorder.copied(target, view)
                else:
                    self._recorder.computed((args, kwargs), result)
        return result


class Applications(TorchFunctionMode):
    """Records copies while weights are delivered through :meth:`deliver`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.records: list[tuple[str, Box | None, str, Box | None]] = []
        """(source, its box, slot, its box) of each copy; no box where the view is none."""
        self.consumed: set[str] = set()
        self.sent: list[str] = []
        self._is_reading = False
        self._delivered: dict[int, Delivered] = {}
        self._holders = Holders(model)

    def deliver(
        self, weights: Iterator[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Passes weights on and remembers whose storage is whose."""
        weights = iter(weights)
        while True:
            # What reads a checkpoint is not the loader.
            self._is_reading = True
            try:
                pair = next(weights, None)
            finally:
                self._is_reading = False
            if pair is None:
                return
            name, tensor = pair
            with unwatched():
                storage = StorageWeakRef(tensor.untyped_storage())
                self._delivered[storage.cdata] = Delivered(name, Layout.of(tensor), storage)
            self.sent.append(name)
            yield name, tensor

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the call, and notes what it does with a delivered tensor."""
        kwargs = kwargs or {}
        if self._is_reading or is_look(func, args, kwargs):
            return func(*args, **kwargs)
        if func == COPIES and len(args) > 1 and have_storage(args[:2]):
            result = func(*args, **kwargs)
            with unwatched():
                self.copied(args[0], args[1])
            return result
        if not self._may_read((args, kwargs)):
            return func(*args, **kwargs)
        with Operations(self):
            return func(*args, **kwargs)

    def _may_read(self, given: object) -> bool:
        """Whether a delivered tensor is among what a call is given, or may be inside of it."""
        with unwatched():
            tensors, is_plain = taken_apart(given)
            keys = [storage_record(tensor) for tensor in tensors]
            return not is_plain or any(key is None or key in self._delivered for key in keys)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops noting. A slot that took a delivered storage as its own was written by that."""
        super().__exit__(exc_type, exc, traceback)
        with unwatched():
            self._taken_over()

    def _taken_over(self) -> None:
        for name, tensor in self._state():
            source = self._delivered.get(storage_record(tensor) or 0)
            if source is not None:
                self.consumed.add(source.name)
                taken = box_of(Layout.of(tensor), source.layout)
                whole = tuple((0, extent) for extent in tensor.shape)
                self.records.append((source.name, taken, name, whole))

    def copied(self, target: torch.Tensor, view: torch.Tensor) -> None:
        """Notes a copy of ``view`` into ``target``."""
        if target.is_meta:
            return
        key = storage_record(view)
        source = self._delivered.get(key) if key is not None else None
        if source is None:
            return
        self.consumed.add(source.name)
        slot = self._holders.slot_of(target, source.name)
        if slot is not None:
            name, written = slot
            taken = box_of(Layout.of(view), source.layout)
            self.records.append((source.name, taken, name, written))

    def computed(self, given: object, made: object) -> None:
        """Notes an operation on delivered tensors.

        A view is not yet a use, nor is what has no elements; a computed value is.
        """
        keys = {storage_record(tensor) for tensor in tensors_in(given)}
        read = [(key, source) for key in keys if key and (source := self._delivered.get(key))]
        if not read:
            return
        results = list(tensors_in(made))
        if results and all(tensor.is_meta for tensor in results):
            return
        same = {storage_record(tensor) for tensor in results}
        self.consumed.update(source.name for key, source in read if key not in same)

    def _state(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
