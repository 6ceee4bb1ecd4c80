"""Reads a linear layer whose weight lies in a handle that no address leads to.

On CPU vLLM hands a weight to oneDNN or to a packed kernel and frees the parameter. The layer's own
multiplication is then the only door: with a unit vector for each input it returns the weight,
column by column, as the forward sees it. The result is exact: every other product is a zero. The
sign of a zero is lost (sums begin at a positive zero), and all zeros are given as positive; what
the kernel flushes (subnormal values on some units) is lost too. Neither shows in a forward. A row
with an infinity or a NaN is read as NaN elsewhere too: zero times either is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Unit vectors of one multiplication.
BATCH = 1024


def is_opaque(layer: Any) -> bool:
    """Whether the layer's ``weight`` is gone and only its multiplication knows the values."""
    weight = getattr(layer, "weight", None)
    return weight is not None and weight.numel() == 0 and _keeps(layer) and shape(layer) is not None


def is_copied(layer: Any) -> bool:
    """Whether the layer keeps its ``weight`` and multiplies by a packed copy of it."""
    weight = getattr(layer, "weight", None)
    return weight is not None and weight.dim() == 2 and weight.numel() > 0 and _keeps(layer)


def _keeps(layer: Any) -> bool:
    """Whether the layer's multiplication is a closure over something of its own."""
    return bool(getattr(getattr(layer, "cpu_linear", None), "__closure__", None))


def shape(layer: Any) -> tuple[int, int] | None:
    """Rows (outputs) and columns (inputs) on this rank."""
    weight = getattr(layer, "weight", None)
    if weight is not None and weight.dim() == 2 and weight.numel():
        return int(weight.shape[0]), int(weight.shape[1])
    rows = getattr(layer, "output_size_per_partition", getattr(layer, "output_size", None))
    columns = getattr(layer, "input_size_per_partition", getattr(layer, "input_size", None))
    if isinstance(rows, int) and isinstance(columns, int):
        return rows, columns
    return None


def read(layer: Any) -> torch.Tensor:
    """The weight, ``[rows, columns]``, as the layer multiplies by it."""
    import torch

    rows, columns = shape(layer) or (0, 0)
    weight = torch.empty(rows, columns, dtype=layer.weight.dtype)
    with torch.no_grad():
        for first in range(0, columns, BATCH):
            count = min(BATCH, columns - first)
            units = torch.zeros(count, columns, dtype=weight.dtype)
            units[torch.arange(count), torch.arange(first, first + count)] = 1
            weight[:, first : first + count] = layer.cpu_linear(units, layer.weight, None).t()
    # A kernel that keeps the sign of some zeros would make two readings differ.
    return torch.where(weight == 0, torch.zeros_like(weight), weight)
