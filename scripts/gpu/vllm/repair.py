"""Keeping the old tensors of a model alive, and putting the new values into their storage."""

from __future__ import annotations

import re
from typing import Any

import torch
from coldproof import walk
from torch._subclasses.fake_tensor import FakeTensor

_STEP = re.compile(r"\.?(?P<name>[^.\[\]<>]+)|\[(?P<index>\d+)\]|\['(?P<key>[^']*)'\]")


def on_card(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has bytes on the card: what a compiler traces with has none."""
    return bool(tensor.is_cuda) and not isinstance(tensor, FakeTensor)


Places = dict[str, tuple[int, int]]
"""The address of each tensor, and where its memory ends, by path."""


def places(model: object) -> Places:
    """Return where each tensor on the card lies, by every path that leads there."""
    found = {}
    for path, tensor in _tensors(model).items():
        storage = tensor.untyped_storage()
        found[path] = (tensor.data_ptr(), storage.data_ptr() + storage.nbytes())
    return found


def moved(before: Places, after: Places) -> tuple[list[str], list[str]]:
    """Return the paths that lead elsewhere now, and those that are gone: an attribute walk."""
    elsewhere = [p for p, (at, _) in before.items() if p in after and after[p][0] != at]
    return elsewhere, [path for path in before if path not in after]


class Held:
    """The tensors of a model as they were, and the objects that kept them."""

    def __init__(self, model: object) -> None:
        self.tensors = _tensors(model)
        self._objects: dict[str, Any] = {}
        for path in self.tensors:
            for prefix in _prefixes(path):
                if prefix not in self._objects:
                    self._objects[prefix] = _resolve(model, prefix)

    def repair(self, model: object) -> list[str]:
        """Copy new values into the old storage and let the model use that; say what was left.

        A tensor that has the layout of the old one is made a view of the old storage, wherever
        it is kept. Where a whole object was dropped, the old object is put back.
        """
        now, left = _tensors(model), []
        with torch.inference_mode():
            for path, old in self.tensors.items():
                new = now.get(path)
                if new is None:
                    if not self._put_back(model, path):
                        left.append(f"{path} is gone")
                elif new.data_ptr() == old.data_ptr():
                    continue
                elif (new.shape, new.stride(), new.dtype) == (old.shape, old.stride(), old.dtype):
                    old.copy_(new)
                    at = (old.storage_offset(), old.size(), old.stride())
                    torch.Tensor.set_(new, old.untyped_storage(), *at)
                else:
                    left.append(f"{path} has another layout")
        torch.cuda.synchronize()
        return left

    def _put_back(self, model: object, path: str) -> bool:
        """Hang the old object where the first step of a path that is gone now leads nowhere."""
        for prefix, parent in zip(_prefixes(path), ["", *_prefixes(path)], strict=False):
            if _resolve(model, prefix) is not None:
                continue
            owner, old = _resolve(model, parent), self._objects.get(prefix)
            step = _STEP.fullmatch(prefix[len(parent) :])
            if owner is None or old is None or step is None or step["name"] is None:
                return False
            setattr(owner, step["name"], old)
            return True
        return True


def _tensors(model: object) -> dict[str, torch.Tensor]:
    found = walk(model)
    tensors = {path: tensor for path, tensor in found.tensors if on_card(tensor)}
    aliases = {path: tensors[target] for path, target in found.aliases if target in tensors}
    return {**tensors, **aliases}


def _prefixes(path: str) -> list[str]:
    """Return the path after each of its steps; nothing behind a step that cannot be taken."""
    ends, at = [], 0
    while step := _STEP.match(path, at):
        at = step.end()
        ends.append(path[:at])
    return ends


def _resolve(root: object, path: str) -> Any:
    """Follow a path of attributes, items and keys; ``None`` where it leads nowhere."""
    here: Any = root
    for step in _STEP.finditer(path):
        if step["name"] is not None:
            here = getattr(here, step["name"], None)
        else:
            key = int(step["index"]) if step["index"] is not None else step["key"]
            try:
                here = here[key]
            except (KeyError, IndexError, TypeError):
                return None
        if here is None:
            return None
    return here
