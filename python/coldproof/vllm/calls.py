"""What can be told of a call of torch before it runs: whether it reads, and which tensors."""

from __future__ import annotations

from types import EllipsisType, NoneType
from typing import Any

import torch

_PROPERTIES = (
    "T data device dtype grad_fn is_cpu is_cuda is_leaf is_meta is_nested is_quantized is_sparse "
    "itemsize layout mT nbytes ndim output_nr requires_grad shape"
)
_METHODS = (
    "__len__ as_strided chunk data_ptr detach diagonal dim element_size expand expand_as "
    "get_device is_complex is_contiguous is_floating_point is_signed movedim narrow ndimension "
    "nelement numel permute requires_grad_ select size split split_with_sizes squeeze "
    "storage_offset stride swapaxes t tensor_split transpose unbind unflatten unfold unsqueeze "
    "untyped_storage view view_as"
)
_FUNCTIONS = (
    "as_strided chunk detach diagonal is_complex is_floating_point movedim narrow numel permute "
    "select split squeeze swapaxes t tensor_split transpose unbind unflatten unsqueeze"
)
_INDEX = torch.Tensor.__getitem__
#: What an index may be made of that gives a view. A bool is a mask, a list gathers.
_PLACES = frozenset({int, slice, NoneType, EllipsisType})


def _those(of: object, names: str) -> list[Any]:
    """What a version of torch has of them."""
    return [getattr(of, name) for name in names.split() if hasattr(of, name)]


_LOOKS: frozenset[Any] = frozenset(
    [found.__get__ for found in _those(torch.Tensor, _PROPERTIES)]
    + _those(torch.Tensor, _METHODS)
    + _those(torch, _FUNCTIONS)
)


_PLAIN = (
    bool,
    complex,
    EllipsisType,
    float,
    int,
    NoneType,
    slice,
    str,
    torch.device,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)


def taken_apart(value: object) -> tuple[list[torch.Tensor], bool]:
    """All tensors in nested tuples, lists and dictionaries, and whether the rest is plain values.

    What is neither may hold a tensor as well, or a function that has one.
    """
    tensors: list[torch.Tensor] = []
    pending: list[object] = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, torch.Tensor):
            tensors.append(found)
        elif isinstance(found, (list, tuple)):
            pending.extend(found)
        elif isinstance(found, dict):
            pending.extend(found.values())
        elif not isinstance(found, _PLAIN):
            return tensors, False
    return tensors, True


def is_look(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call gives a view or says something of a tensor, whatever its elements are."""
    if function in _LOOKS:
        return True
    if function != _INDEX or len(args) != 2:
        return False
    index = args[1]
    parts = index if type(index) is tuple else (index,)
    return all(type(part) in _PLACES for part in parts)
