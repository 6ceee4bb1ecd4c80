"""Who owns which memory: every tensor that the object walk reaches, by its path."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from coldproof.tensors import walk

Owner = tuple[str, int, int, str, bool]
"""A path, an address, bytes, a class (``owned``, ``kv``, ``input-output`` or
``library-workspace``), and whether the path is that of a module's parameter or buffer."""

CLASSES = ("owned", "kv", "input-output", "library-workspace")


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first element, and the bytes from there to its last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), 0
    last = sum(
        (extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def has_elements(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has elements of its own: not those of a compiler's, which only trace."""
    if tensor.is_meta or tensor.layout is not torch.strided:
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:
        return False
    return True


def on_device(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has elements of its own on an accelerator."""
    return tensor.is_cuda and has_elements(tensor)


def owners_of(roots: Mapping[str, object]) -> list[Owner]:
    """Return all tensors on an accelerator that can be reached from the roots, by every path.

    A root is named by the class of its memory: ``owned`` for a model, else one of ``CLASSES``.
    """
    owners: list[Owner] = []
    for kind, root in roots.items():
        if kind not in CLASSES:
            raise ValueError(f"`{kind}` is no class of memory; name the root by one of {CLASSES}")
        found = walk(root, name="" if kind == "owned" else kind)
        spans = {path: span(tensor) for path, tensor in found.tensors if on_device(tensor)}
        paths = [(path, path) for path in spans]
        paths += [(path, of) for path, of in found.aliases if of in spans]
        own = registered(root)
        owners += [(path, *spans[of], kind, path in own) for path, of in paths]
    return owners


def registered(root: object) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module, by every path: what registration knows."""
    if not isinstance(root, torch.nn.Module):
        return {}
    parameters = root.named_parameters(remove_duplicate=False)
    return dict([*parameters, *root.named_buffers(remove_duplicate=False)])
