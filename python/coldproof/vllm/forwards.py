"""Tensors that a forward reads and no attribute of the model leads to.

A module-level dictionary of workspaces, for example, is missed by the object walk. Such a tensor
may hold anything, activations of the last request among it, so it is named and not compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from coldproof import _native
from coldproof.recorder import Recorded, Recorder, storage_record, tensors_in

from . import versions


class Forwards:
    """Records the next forward of a model, when it is asked to."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.asked = False
        self.found: list[str] = []
        """What was found since it was last taken, in words that do not depend on the process."""
        self._recorder: Recorder | None = None
        self._given: set[int | None] = set()
        model.register_forward_pre_hook(self._enter, with_kwargs=True)
        model.register_forward_hook(self._leave, always_call=True)

    def take(self) -> list[str]:
        """What was found since the last call."""
        found, self.found = self.found, []
        return found

    def _enter(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not self.asked:
            return
        self.asked = False
        # What belongs to the request: tokens, positions, and where its keys and values lie.
        context = _native.walk(versions.forward_context(), tensor_type=torch.Tensor)
        self._given = {storage_record(tensor) for tensor in tensors_in((args, kwargs))}
        self._given |= {storage_record(tensor) for _, tensor in context.tensors}
        self._recorder = Recorder()
        self._recorder.__enter__()

    def _leave(self, model: torch.nn.Module, args: Any, output: Any) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.__exit__(None, None, None)
        known = self._given | {storage_record(tensor) for tensor in tensors_in(output)}
        self._given = set()
        missed = recorder.missed_by(_native.walk(model, tensor_type=torch.Tensor))
        own = [entry for entry in missed if storage_record(entry.tensor) not in known]
        for text, count in Counter(map(described, own)).items():
            times = f" ({count} times)" if count > 1 else ""
            self.found.append(f"{text}: a forward reads it and no attribute leads to it{times}")


def described(entry: Recorded) -> str:
    """What was read, without anything that differs between two processes."""
    if entry.made:
        return f"{entry.tensor.untyped_storage().nbytes()} bytes made for {entry.operation}"
    kind = str(entry.tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(entry.tensor.shape)} of {entry.operation}"
