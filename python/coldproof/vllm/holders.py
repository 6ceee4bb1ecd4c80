"""Which parameter or buffer of a model a storage belongs to, while a loader replaces them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import torch

from coldproof.recorder import storage_record

from .boxes import Box, Layout, box_of

#: A name, and where a module has the tensor of that name: its parameters or buffers, and the leaf.
Place = tuple[str, dict[str, "torch.Tensor | None"], str]


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


class Holders:
    """The modules of a model, and what was found where."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._modules = list(model.named_modules())
        self._index = {path: index for index, (path, _) in enumerate(self._modules)}
        self._tied = tied(model)
        self._places: dict[int, list[Place]] = {}
        self._last = 0

    def slot_of(self, target: torch.Tensor, source: str) -> tuple[str, Box | None] | None:
        """The parameter or buffer that ``target`` is a view of, and what it covers of it.

        What the source is called says where to look first, and nothing else.
        """
        key = storage_record(target)
        if key is None:
            return None
        found = self._held(key)
        if not found:
            # A loader has replaced parameters since.
            self._places[key] = self._placed(key, source)
            found = self._held(key)
        boxes = [(name, box_of(Layout.of(target), Layout.of(tensor))) for name, tensor in found]
        return next((pair for pair in boxes if pair[1] is not None), boxes[0] if boxes else None)

    def _placed(self, key: int, source: str) -> list[Place]:
        """Where a storage is in the first module that has it; parameters before buffers."""
        start = self._near(source)
        for kind in ("_parameters", "_buffers"):
            for index in outward(start, len(self._modules)):
                path, module = self._modules[index]
                held = getattr(module, kind)
                leaves = [leaf for leaf, tensor in held.items() if is_held(tensor, key)]
                if leaves and self._is_in_model(path, module):
                    self._last = index
                    found = [(f"{path}.{leaf}" if path else leaf, held, leaf) for leaf in leaves]
                    first = [(self._tied[name], *at) for name, *at in found if name in self._tied]
                    return first + found
        return []

    def _near(self, source: str) -> int:
        """The module that a source is called after; where there is none, the last that was found.

        What comes next is near what came last.
        """
        path = source
        while path := path.rpartition(".")[0]:
            index = self._index.get(path)
            if index is not None:
                return index
        return self._last

    def _is_in_model(self, path: str, module: torch.nn.Module) -> bool:
        """Whether a loader has left the module where it was."""
        found: torch.nn.Module | None = self.model
        for name in path.split(".") if path else ():
            found = found._modules.get(name) if found is not None else None
        return found is module

    def _held(self, key: int) -> list[tuple[str, torch.Tensor]]:
        """Which of the names that are known for a storage still have it."""
        places = self._places.get(key, ())
        pairs = [(name, tensors.get(leaf)) for name, tensors, leaf in places]
        return [(name, tensor) for name, tensor in pairs if is_held(tensor, key)]
