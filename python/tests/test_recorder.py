"""What no attribute path leads to is caught by the recorder and missed by the walk."""

from __future__ import annotations

import torch
from coldproof import Recorder, walk

WORKSPACES: dict[str, torch.Tensor] = {"a": torch.ones(4)}
LAZY: dict[str, torch.Tensor] = {}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + WORKSPACES["a"]


class LazyModel(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "b" not in LAZY:
            LAZY["b"] = torch.ones(4)
        return x * self.weight + LAZY["b"]


class HonestModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.workspace = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.workspace


def record(model: Model) -> tuple[Recorder, torch.Tensor]:
    x = torch.ones(4)
    with torch.inference_mode(), Recorder() as recorder:
        model(x)
    return recorder, x


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def test_a_tensor_of_a_module_level_dict_is_caught_and_the_walk_misses_it() -> None:
    model = Model()
    recorder, x = record(model)
    walked = walk({"model": model, "x": x})
    assert [path for path, _ in walked.tensors] == ["['x']", "['model'].weight"]
    (missed,) = recorder.missed_by(walked)
    assert same(missed.tensor, WORKSPACES["a"])
    assert (missed.operation, missed.made) == ("aten.add.Tensor", False)


def test_one_that_the_model_holds_is_caught_and_not_missed() -> None:
    model = HonestModel()
    recorder, x = record(model)
    assert any(same(entry.tensor, model.workspace) for entry in recorder.tensors)
    assert recorder.missed_by(walk({"model": model, "x": x})) == []


def test_one_that_is_made_on_first_use_is_caught_and_activations_are_not() -> None:
    model = LazyModel()
    recorder, x = record(model)
    (missed,) = recorder.missed_by(walk({"model": model, "x": x}))
    assert same(missed.tensor, LAZY["b"])
    assert missed.made
    assert len(recorder.tensors) == 3


def test_a_storage_is_noted_once_with_its_first_operation() -> None:
    weight = torch.ones(4)
    with Recorder() as recorder:
        weight.view(2, 2).sum()
        weight.mul(2)
        torch.cat([weight, weight])
    (only,) = recorder.tensors
    assert same(only.tensor, weight)
    assert only.operation == "aten.view.default"


def test_activations_are_freed_while_recording() -> None:
    weight = torch.ones(4)
    with Recorder() as recorder:
        product = weight * 2
        product.sum()
        reference = product.untyped_storage()._weak_ref()
        del product
        assert torch.UntypedStorage._expired(reference)
        torch.UntypedStorage._free_weak_ref(reference)
    assert len(recorder.tensors) == 1


def test_an_operator_that_takes_functions_runs_and_is_noted() -> None:
    class Choosing(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            given = (torch.tensor(True), torch.neg, torch.exp, (WORKSPACES["a"],))
            return x + torch.ops.higher_order.cond(*given)

    recorder, given = record(Choosing())
    assert any(entry.tensor.data_ptr() == WORKSPACES["a"].data_ptr() for entry in recorder.tensors)
    assert bool((given == 1).all())
