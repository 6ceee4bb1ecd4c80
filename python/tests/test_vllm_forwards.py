"""What a forward reads and no attribute leads to is found, and nothing else."""

from __future__ import annotations

import pytest
import torch
from coldproof.vllm import versions
from coldproof.vllm.forwards import Forwards

#: As kernels keep their workspaces.
WORKSPACES: dict[str, torch.Tensor] = {}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.ones(3))

    def forward(self, x: torch.Tensor, *, positions: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = (x + positions) * self.w
        for space in WORKSPACES.values():
            y = torch.mul(y, space)
        if x[0] < 0:
            raise ValueError
        return y


@pytest.fixture(autouse=True)
def _nothing_global(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "forward_context", lambda: None)
    WORKSPACES.clear()


def forward(model: Model, first: float = 1.0) -> torch.Tensor:
    x: torch.Tensor = model(torch.tensor([first, 1.0, 1.0]), positions=torch.arange(3.0))
    return x


def test_a_tensor_in_a_module_level_dictionary_is_named_once_it_is_read() -> None:
    model = Model()
    watch = Forwards(model)
    watch.asked = True
    forward(model)
    assert watch.take() == []
    WORKSPACES.update(a=torch.ones(3), b=torch.ones(3), c=torch.ones(1))
    watch.asked = True
    forward(model)
    assert watch.take() == [
        "float32 [3] of aten.mul.Tensor: a forward reads it and no attribute leads to it (2 times)",
        "float32 [1] of aten.mul.Tensor: a forward reads it and no attribute leads to it",
    ]
    assert watch.take() == []


def test_one_forward_is_recorded_and_only_when_asked() -> None:
    model = Model()
    watch = Forwards(model)
    WORKSPACES["a"] = torch.ones(3)
    forward(model)
    assert watch.take() == []
    watch.asked = True
    forward(model)
    forward(model)
    assert len(watch.take()) == 1


def test_a_forward_that_fails_ends_the_recording() -> None:
    model = Model()
    watch = Forwards(model)
    watch.asked = True
    with pytest.raises(ValueError):
        forward(model, -1.0)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_what_belongs_to_the_request_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = torch.ones(3)
    WORKSPACES["slots"] = slots
    monkeypatch.setattr(versions, "forward_context", lambda: {"layer": {"slots": slots}})
    model = Model()
    watch = Forwards(model)
    watch.asked = True
    forward(model)
    assert watch.take() == []
