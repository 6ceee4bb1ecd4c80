"""The dispatch recorder: every tensor that any operation receives.

A tensor that no attribute path leads to (a module-level dictionary of workspaces, for example) is
missed by the walk and caught here, once an operation reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from coldproof._native import Walk


@dataclass(frozen=True)
class Recorded:
    """A storage that an operation received."""

    tensor: torch.Tensor
    """A tensor over this storage. It keeps the storage alive."""
    operation: str
    """The operation that received it first, such as ``aten.mm.default``."""
    made: bool
    """Whether an operation under the recorder gave it, and something keeps it: its own workspace
    or output, or one that was made lazily and will be used again."""


@dataclass
class _Made:
    """A storage that an operation gave, held weakly: activations go when they would have gone."""

    reference: int
    operation: str | None = None


class Recorder(TorchDispatchMode):
    """Notes every tensor that any operation receives, while it is entered.

    It sees what is dispatched in its own thread. A kernel that a captured graph replays, a compiled
    program or an extension that is called past the dispatcher is not seen, nor is what an operator
    that takes functions (``torch.cond``) runs within them.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._recorded: dict[int, Recorded] = {}
        self._made: dict[int, _Made] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Note what the operation receives and what it gives."""
        kwargs = kwargs or {}
        for tensor in tensors_in((args, kwargs)):
            self._note_received(tensor, str(func))
        result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            self._note_made(tensor)
        return result

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop noting; what was made, received and is still alive joins ``tensors``."""
        super().__exit__(exc_type, exc, traceback)
        for record, made in self._made.items():
            storage = torch.UntypedStorage._new_with_weak_ptr(made.reference)
            if made.operation is not None and storage is not None:
                tensor = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                self._recorded[record] = Recorded(tensor, made.operation, made=True)
            torch.UntypedStorage._free_weak_ref(made.reference)
        self._made.clear()

    @property
    def tensors(self) -> list[Recorded]:
        """Distinct storages that operations received, without activations that are gone.

        Those that were there before come first, in the order in which they were received; those
        that were made meanwhile join when the recorder is left.
        """
        return list(self._recorded.values())

    def missed_by(self, walk: Walk) -> list[Recorded]:
        """Those of ``tensors`` over whose storage the walk has no tensor."""
        walked = {storage_record(tensor) for _, tensor in walk.tensors}
        return [entry for entry in self.tensors if storage_record(entry.tensor) not in walked]

    def _note_received(self, tensor: torch.Tensor, operation: str) -> None:
        record = storage_record(tensor)
        if record is None or record in self._recorded:
            return
        made = self._made.get(record)
        if made is None:
            self._recorded[record] = Recorded(tensor.detach(), operation, made=False)
        elif made.operation is None:
            made.operation = operation

    def _note_made(self, tensor: torch.Tensor) -> None:
        record = storage_record(tensor)
        if record is None or record in self._recorded or record in self._made:
            return
        self._made[record] = _Made(tensor.untyped_storage()._weak_ref())


def storage_record(tensor: object) -> int | None:
    """Torch's own record of a storage: the same for all tensors over it, as long as it lives."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        # A wrapper of other tensors has no storage; they are received in their turn.
        return None


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists and dictionaries, in order."""
    pending: list[object] = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, dict):
            pending.extend(reversed(list(found.values())))
        elif isinstance(found, (list, tuple)):
            pending.extend(reversed(found))
