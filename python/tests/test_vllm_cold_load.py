"""The cold load is recorded by its loader, which needs torch alone to be shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from coldproof.vllm import cold_load, versions
from coldproof.vllm.applications import Applications

Weights = Iterator[tuple[str, torch.Tensor]]


def weights() -> Weights:
    yield "w", torch.ones(2)
    yield "left.out", torch.ones(3)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.zeros(2))


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A loader as vLLM has one, watched."""

    class Loader:
        def get_all_weights(self) -> Weights:
            return weights()

        def load_weights(self, model: torch.nn.Module) -> str:
            buffers = dict(model.named_buffers())
            for name, tensor in self.get_all_weights():
                if name in buffers:
                    buffers[name].copy_(tensor)
            return "loaded"

    monkeypatch.setattr(versions, "default_loader", lambda: Loader)
    monkeypatch.setattr(cold_load, "_LOADS", [])
    cold_load.install()
    cold_load.install()
    return Loader


def test_a_cold_load_says_what_it_wrote_and_what_it_left_out(loader: Any) -> None:
    model = Model()
    assert loader().load_weights(model) == "loaded"
    recorder = cold_load.of(model)
    assert recorder is not None
    assert recorder.records == [("w", ((0, 2),), "w", ((0, 2),))]
    assert set(recorder.sent) - recorder.consumed == {"left.out"}


def test_the_first_load_of_each_model_is_its_cold_load(loader: Any) -> None:
    first, second = Model(), Model()
    for model in (first, first, second):
        loader().load_weights(model)
    assert cold_load.of(first) is not cold_load.of(second)
    assert len(cold_load._LOADS) == 2
    assert cold_load.of(Model()) is None


def test_a_load_that_fails_leaves_the_loader_as_it_was(loader: Any) -> None:
    original = loader.get_all_weights
    with pytest.raises(RuntimeError), cold_load.delivering(Applications(Model())):
        assert loader.get_all_weights is not original
        raise RuntimeError
    assert loader.get_all_weights is original
