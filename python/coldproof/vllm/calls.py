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
    "__len__ as_strided chunk data_ptr detach diagonal dim element_size expand "
    "get_device is_complex is_contiguous is_floating_point is_signed movedim narrow ndimension "
    "nelement numel permute requires_grad_ select size split split_with_sizes squeeze "
    "storage_offset stride swapaxes t tensor_split transpose unbind unflatten unfold unsqueeze "
    "untyped_storage view"
)
_FUNCTIONS = (
    "as_strided chunk detach diagonal is_complex is_floating_point movedim narrow numel permute "
    "select split squeeze swapaxes t tensor_split transpose unbind unflatten unsqueeze"
)
_INDEX = torch.Tensor.__getitem__
_ENDS = frozenset({int, NoneType})
_PLACES = frozenset({int, NoneType, EllipsisType})


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
    str,
    torch.device,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)


#: More values than this are not taken apart; a list that holds itself has no end of them.
VALUES_MAX = 10_000


def taken_apart(value: object) -> tuple[list[torch.Tensor], bool]:
    """All tensors in nested tuples, lists and dictionaries, and whether the rest is plain values.

    What is neither may hold a tensor as well, or a function that has one.
    """
    tensors: list[torch.Tensor] = []
    pending: list[object] = [value]
    for _ in range(VALUES_MAX):
        if not pending:
            return tensors, True
        found = pending.pop()
        if isinstance(found, torch.Tensor):
            tensors.append(found)
        elif isinstance(found, (list, tuple)):
            pending.extend(found)
        elif isinstance(found, dict):
            pending.extend(found.values())
        elif isinstance(found, slice):
            pending.extend((found.start, found.stop, found.step))
        elif not isinstance(found, _PLAIN):
            return tensors, False
    return tensors, False


def is_look(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call gives a view or says something of a tensor, whatever its elements are.

    One that is given another tensor reads where the view begins from it.
    """
    if function in _LOOKS:
        others = (*args[1:], *kwargs.values()) if kwargs else args[1:]
        return not any(isinstance(other, torch.Tensor) for other in others)
    if function != _INDEX or len(args) != 2:
        return False
    index = args[1]
    return all(map(_is_place, index if type(index) is tuple else (index,)))


def _is_place(part: object) -> bool:
    """Whether this part of an index gives a view. A bool is a mask, a list gathers."""
    if isinstance(part, slice):
        return all(type(end) in _ENDS for end in (part.start, part.stop, part.step))
    return type(part) in _PLACES
