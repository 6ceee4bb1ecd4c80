"""Which conversions leave a layer as it was, and which do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from coldproof.vllm.effects import Picture

Parameter = torch.nn.Parameter


class Method:
    """What converts a layer."""


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.ones(4, 6), requires_grad=False)
        self.register_buffer("scale", torch.ones(2))
        self.held = {"table": torch.ones(3)}
        self.factor = 1.0


def has_effect(convert: Callable[[Any, Any], object]) -> bool:
    layer, method = Layer(), Method()
    before = Picture(layer, method)
    convert(layer, method)
    return before != Picture(layer, method)


def chosen(layer: Any, _: Any) -> None:
    """As a layer whose kernel takes the weight as it is."""
    layer.multiply = lambda x, weight: x @ weight.t()


def the_same_again(layer: Any, _: Any) -> None:
    layer.scale.fill_(1.0)
    layer.weight.data.copy_(layer.weight.clone())
    layer.factor = 1.0


@pytest.mark.parametrize("convert", [lambda *_: None, chosen, the_same_again])
def test_a_conversion_that_leaves_all_as_it_was_has_no_effect(convert: Any) -> None:
    assert not has_effect(convert)


def packed(layer: Any, _: Any) -> None:
    weight = layer.weight.t().contiguous()
    layer.multiply = lambda x: x @ weight


def emptied(layer: Any, _: Any) -> None:
    layer.weight = Parameter(torch.empty(0), requires_grad=False)


def replaced_by_the_same(layer: Any, _: Any) -> None:
    layer.weight = Parameter(layer.weight.clone(), requires_grad=False)


def turned(layer: Any, _: Any) -> None:
    layer.weight.data = layer.weight.data.view(6, 4)


def written_past_the_counter(layer: Any, _: Any) -> None:
    layer.weight.data.mul_(2)


def written_elsewhere(layer: Any, _: Any) -> None:
    layer.held["table"].mul_(2)


def rescaled(layer: Any, _: Any) -> None:
    layer.factor = 0.5


def kept_by_the_method(layer: Any, method: Any) -> None:
    method.scale = float(layer.scale[0]) * 3


@pytest.mark.parametrize(
    "convert",
    [
        packed,
        emptied,
        replaced_by_the_same,
        turned,
        written_past_the_counter,
        written_elsewhere,
        rescaled,
        kept_by_the_method,
    ],
)
def test_a_conversion_that_leaves_something_has_an_effect(convert: Any) -> None:
    assert has_effect(convert)


def test_what_has_no_content_is_told_by_its_place() -> None:
    layer = Layer()
    layer.weight = Parameter(torch.empty(4, 6, device="meta"), requires_grad=False)
    layer.table = torch.eye(3).to_sparse()
    with torch.inference_mode():
        layer.counted = torch.ones(2)
    assert Picture(layer, layer) == Picture(layer, layer)
