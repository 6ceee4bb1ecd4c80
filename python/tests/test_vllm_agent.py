"""The parts of the vLLM agent that need torch alone: what it sees, and how it answers."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from coldproof import walk
from coldproof.agent import Died, Refused, Unsupported, answer, done, one_line
from coldproof.vllm import unit_vectors
from coldproof.vllm.applications import Applications
from coldproof.vllm.boxes import Layout, box_of
from coldproof.vllm.holders import outward, tied
from coldproof.vllm.rank import Rank
from coldproof.vllm.slots import HANDLES, Census, Serials, in_memory_order
from coldproof.vllm.tensors import TensorRef

Parameter = torch.nn.Parameter


def box(view: torch.Tensor, whole: torch.Tensor) -> Any:
    return box_of(Layout.of(view), Layout.of(whole))


# -- boxes -----------------------------------------------------------------------------------


def test_a_narrowed_or_transposed_view_is_the_box_that_it_covers() -> None:
    whole = torch.arange(24.0).view(4, 6)
    assert box(whole, whole) == ((0, 4), (0, 6))
    assert box(whole.t(), whole) == ((0, 4), (0, 6))
    assert box(whole.view(24), whole) == ((0, 4), (0, 6))
    assert box(whole[1:3], whole) == ((1, 3), (0, 6))
    assert box(whole[1:3, 2:5].t(), whole) == ((1, 3), (2, 5))
    assert box(whole[2], whole) == ((2, 3), (0, 6))
    assert box(whole[:, 5], whole) == ((0, 4), (5, 6))


def test_one_expert_of_a_stack_is_a_box() -> None:
    stack = torch.zeros(3, 4, 6)
    assert box(stack[2, 1:3], stack) == ((2, 3), (1, 3), (0, 6))
    assert box(stack[1].t(), stack) == ((1, 2), (0, 4), (0, 6))


def test_a_slot_that_is_itself_transposed_or_a_part_of_a_storage_has_its_own_boxes() -> None:
    square = torch.zeros(4, 4).t()
    assert box(square[2:4], square) == ((2, 4), (0, 4))
    second = torch.zeros(2, 4, 6)[1]
    assert box(second[1:2], second) == ((1, 2), (0, 6))
    assert box(torch.zeros(2, 4, 6)[0], second) is None


def test_what_is_no_box_is_none() -> None:
    whole = torch.zeros(4, 6)
    assert box(whole[::2], whole) is None
    assert box(whole[0:1].expand(4, 6), whole) is None
    assert box(whole.view(24)[3:9], whole) is None
    assert box(whole.view(torch.int16), whole) is None
    assert box(whole[2:2], whole) is None


# -- applications ----------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.zeros(4, 6), requires_grad=False)
        self.register_buffer("scale", torch.zeros(2))


Load = Callable[[Layer, dict[str, torch.Tensor]], object]


def load(into: Layer, loader: Load, **sources: torch.Tensor) -> Applications:
    recorder = Applications(into)
    with recorder, torch.no_grad():
        loader(into, dict(recorder.deliver(iter(sources.items()))))
    return recorder


def test_copies_of_parts_are_applications() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        layer.weight.data[0:2].copy_(given["q"])
        layer.weight.data.narrow(0, 2, 2).copy_(given["k"].t()[1:3])

    seen = load(Layer(), loader, q=torch.ones(2, 6), k=torch.ones(6, 3))
    assert seen.records == [
        ("q", ((0, 2), (0, 6)), "weight", ((0, 2), (0, 6))),
        ("k", ((0, 6), (1, 3)), "weight", ((2, 4), (0, 6))),
    ]
    assert (seen.sent, seen.consumed) == (["q", "k"], {"q", "k"})


def write_by_index(layer: Layer, w: torch.Tensor) -> None:
    layer.weight.data[1:3] = w[1:3]


def write_in_a_list(layer: Layer, w: torch.Tensor) -> None:
    torch._foreach_copy_([layer.weight.data[1:3]], [w[1:3]])


def write_by_keyword(layer: Layer, w: torch.Tensor) -> None:
    torch.Tensor.copy_(layer.weight.data[1:3], other=w[1:3])


def write_by_operator(layer: Layer, w: torch.Tensor) -> None:
    torch.ops.aten.copy_.default(layer.weight.data[1:3], w[1:3])


def write_from_an_object(layer: Layer, w: torch.Tensor) -> None:
    def copy(target: torch.Tensor, source: Any) -> torch.Tensor:
        return target.copy_(source.tensor)

    overridable = torch.overrides.wrap_torch_function(lambda target, source: (target,))(copy)
    overridable(layer.weight.data[1:3], SimpleNamespace(tensor=w[1:3]))


@pytest.mark.parametrize(
    "write",
    [
        write_by_index,
        write_in_a_list,
        write_by_keyword,
        write_by_operator,
        write_from_an_object,
    ],
)
def test_a_copy_is_seen_however_it_is_called(write: Any) -> None:
    seen = load(Layer(), lambda layer, given: write(layer, given["w"]), w=torch.ones(4, 6))
    assert seen.records == [("w", ((1, 3), (0, 6)), "weight", ((1, 3), (0, 6)))]


def copy_through_vmap(layer: Layer, w: torch.Tensor) -> None:
    torch.vmap(lambda target, view: target.copy_(view))(layer.weight.data[1:3], w[1:3])


def test_a_copy_within_a_transform_is_no_other() -> None:
    seen = load(
        Layer(), lambda layer, given: copy_through_vmap(layer, given["w"]), w=torch.ones(4, 6)
    )
    assert seen.records == [("w", ((1, 3), (0, 6)), "weight", ((1, 3), (0, 6)))]


Cut = Callable[[torch.Tensor, torch.Tensor], object]
CUTS: list[Cut] = [
    lambda w, at: w.narrow(0, at, 1),
    lambda w, at: w[at:],
    lambda w, at: w.tensor_split(at),
]


@pytest.mark.parametrize("cut", CUTS)
def test_a_tensor_that_says_where_a_view_begins_is_read(cut: Cut) -> None:
    seen = load(Layer(), lambda layer, given: cut(layer.weight, given["at"]), at=torch.tensor(2))
    assert seen.consumed == {"at"}


def test_a_list_that_holds_itself_has_an_end() -> None:
    def loader(_: Layer, given: dict[str, torch.Tensor]) -> None:
        circle: list[Any] = [given["w"]]
        circle.append(circle)
        copy.deepcopy(circle)

    assert load(Layer(), loader, w=torch.ones(4, 6)).consumed == {"w"}


def test_a_reader_has_the_device_that_was_chosen() -> None:
    recorder = Applications(Layer())
    made = ((name, torch.empty(2)) for name in ("a", "b"))
    with torch.device("meta"), recorder:
        assert all(tensor.is_meta for _, tensor in recorder.deliver(made))


def test_a_recorder_goes_when_it_is_let_go() -> None:
    recorder = load(Layer(), lambda layer, given: layer.weight.mul_(given["w"]), w=torch.ones(4, 6))
    gone = weakref.ref(recorder)
    del recorder
    assert gone() is None


def test_elements_that_are_gathered_are_consumed_and_not_attributed() -> None:
    for index in ([2, 0], torch.tensor([True, False, True, False]), (slice(None), [1])):

        def loader(layer: Layer, given: dict[str, torch.Tensor], index: Any = index) -> None:
            taken = given["w"][index]
            layer.weight.data[: taken.shape[0], : taken.shape[1]].copy_(taken)

        seen = load(Layer(), loader, w=torch.ones(4, 6))
        assert (seen.records, seen.consumed) == ([], {"w"})


def test_operators_that_take_functions_are_run_as_they_are() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        chosen = (torch.tensor(True), torch.neg, torch.exp, (given["w"],))
        layer.weight.copy_(torch.ops.higher_order.cond(*chosen))

    layer = Layer()
    seen = load(layer, loader, w=torch.ones(4, 6))
    assert (seen.records, seen.consumed) == ([], {"w"})
    assert bool((layer.weight == -1).all())


def test_a_copy_that_torch_refuses_is_no_application() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        with pytest.raises(RuntimeError):
            layer.weight.data.copy_(given["w"])

    seen = load(Layer(), loader, w=torch.ones(5, 7))
    assert (seen.records, seen.consumed) == ([], set())


class Sharded(torch.nn.Parameter):
    """A parameter of a class of its own, as vLLM has them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_parameter_with_a_class_of_its_own_is_a_slot_too() -> None:
    layer = Layer()
    layer.weight = Sharded(torch.zeros(4, 6), requires_grad=False)
    seen = load(layer, lambda layer, given: layer.weight.copy_(given["w"]), w=torch.ones(4, 6))
    assert seen.records == [("w", ((0, 4), (0, 6)), "weight", ((0, 4), (0, 6)))]


def test_what_reads_a_checkpoint_is_not_the_loader() -> None:
    layer, source = Layer(), torch.ones(4, 6)

    def reader() -> Any:
        yield "w", source
        yield "twice", source * 2

    recorder = Applications(layer)
    with recorder, torch.no_grad():
        given = dict(recorder.deliver(reader()))
        layer.weight.copy_(given["twice"])
    assert (recorder.sent, recorder.consumed) == (["w", "twice"], {"twice"})


def test_a_copy_that_converts_is_an_application() -> None:
    source = torch.ones(4, 6, dtype=torch.bfloat16)
    seen = load(Layer(), lambda layer, given: layer.weight.copy_(given["w"]), w=source)
    assert seen.records == [("w", ((0, 4), (0, 6)), "weight", ((0, 4), (0, 6)))]


def test_a_buffer_is_a_slot_too() -> None:
    seen = load(Layer(), lambda layer, given: layer.scale.copy_(given["s"]), s=torch.ones(2))
    assert seen.records == [("s", ((0, 2),), "scale", ((0, 2),))]


def test_a_computed_source_is_consumed_and_not_attributed() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        layer.weight.copy_(torch.cat([-given["a"].exp(), given["b"]]))
        layer.scale.fill_(given["c"].item())

    sources = {"a": torch.ones(2, 6), "b": torch.ones(2, 6), "c": torch.ones(())}
    seen = load(Layer(), loader, **sources)
    assert (seen.records, seen.consumed) == ([], {"a", "b", "c"})


def test_a_source_that_is_only_looked_at_goes_nowhere() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        given["w"].view(24).narrow(0, 0, 3).detach()
        torch.empty(4, 6, device="meta").copy_(given["w"])

    seen = load(Layer(), loader, w=torch.ones(4, 6))
    assert (seen.sent, seen.records, seen.consumed) == (["w"], [], set())


def test_names_follow_a_parameter_that_was_replaced() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        layer.weight.copy_(given["w"])
        layer.weight = Parameter(torch.zeros(6, 4), requires_grad=False)
        layer.weight[1:2].copy_(given["row"])

    seen = load(Layer(), loader, w=torch.ones(4, 6), row=torch.ones(1, 4))
    assert [record[2:] for record in seen.records] == [
        ("weight", ((0, 4), (0, 6))),
        ("weight", ((1, 2), (0, 4))),
    ]


def test_a_copy_into_a_temporary_is_no_application() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        torch.empty(4, 6).copy_(given["w"])

    seen = load(Layer(), loader, w=torch.ones(4, 6))
    assert (seen.records, seen.consumed) == ([], {"w"})


def test_a_slot_that_takes_the_delivered_memory_was_written_by_it() -> None:
    def loader(layer: Layer, given: dict[str, torch.Tensor]) -> None:
        layer.weight.data = given["w"]

    seen = load(Layer(), loader, w=torch.ones(4, 6))
    assert seen.records == [("w", ((0, 4), (0, 6)), "weight", ((0, 4), (0, 6)))]
    assert seen.consumed == {"w"}


def test_slots_that_are_parts_of_one_storage_are_told_apart() -> None:
    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.zeros(8)
            self.first = Parameter(flat[:4], requires_grad=False)
            self.second = Parameter(flat[4:], requires_grad=False)

    model = Flat()
    recorder = Applications(model)
    with recorder, torch.no_grad():
        for _, tensor in recorder.deliver(iter([("s", torch.ones(4))])):
            model.second.copy_(tensor)
    assert recorder.records == [("s", ((0, 4),), "second", ((0, 4),))]


def test_delivered_memory_is_the_loaders_to_free() -> None:
    recorder = Applications(Layer())
    with recorder:
        for _, tensor in recorder.deliver(iter([("w", torch.ones(4, 6))])):
            storage = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
        del tensor
        gc.collect()
        assert storage.expired()
        # Memory at the same address is another tensor's now.
        Layer().weight.data.copy_(torch.ones(4, 6))
    assert (recorder.records, recorder.consumed) == ([], set())


# -- slots -----------------------------------------------------------------------------------


class Linear(torch.nn.Module):
    """A layer whose weight went into a closure, as on CPU."""

    def __init__(self, weight: torch.Tensor, *, keep: bool) -> None:
        super().__init__()
        packed = weight.clone().t().contiguous()
        self.output_size, self.input_size = weight.shape
        left = weight if keep else torch.empty(0, dtype=weight.dtype)
        self.weight = Parameter(left, requires_grad=False)
        self.cpu_linear = lambda x, weight, bias: x @ packed


def census(model: torch.nn.Module, caches: list[torch.Tensor] | None = None) -> Census:
    taken = Census(model, set(), caches or [])
    taken.reached(walk(model).tensors, [path for path, _ in model.named_modules()])
    return taken


def bare_rank(model: torch.nn.Module) -> Rank:
    """A rank of a worker that has a model and nothing else."""
    runner = SimpleNamespace(get_model=lambda: model, kv_caches=())
    return Rank(SimpleNamespace(model_runner=runner))


def facts(taken: Census) -> dict[str, dict[str, Any]]:
    serials = Serials()
    found = [slot.fact(serials, 1) for slot in taken.slots.values()]
    return {fact["slot"]: fact for fact in found if fact is not None}


def test_names_that_share_a_storage_are_one_slot_with_aliases() -> None:
    model = torch.nn.ModuleDict({"embed": Layer(), "head": Layer()})
    model["head"].weight = Parameter(model["embed"].weight.data, requires_grad=False)
    found = facts(census(model))
    assert found["embed.weight"]["slot_kind"] == "parameter"
    assert found["embed.weight"]["aliases"] == ["head.weight"]
    assert found["head.weight"]["slot_kind"] == "alias"
    assert found["head.weight"]["aliases"] == ["embed.weight"]
    assert found["head.scale"]["slot_kind"] == "buffer"


def test_a_slot_on_meta_has_no_memory() -> None:
    model = Layer()
    model.weight = Parameter(torch.empty(4, 6, device="meta"), requires_grad=False)
    fact = facts(census(model))["weight"]
    assert (fact["fingerprint"], fact["logical_shape"]) == (None, [4, 6])


def test_what_the_walk_reaches_is_derived_and_caches_are_left_out() -> None:
    model = Layer()
    cache = torch.zeros(2, 3)
    model.kernel = {"scales": torch.ones(3), "cache": cache, "view": model.weight.data[1:]}
    assert sorted(census(model, [cache]).slots) == ["/kernel['scales']", "scale", "weight"]
    assert "/kernel['cache']" in census(model).slots


def test_a_transposed_tensor_is_read_in_the_order_of_its_memory() -> None:
    model = Layer()
    model.absorbed = torch.arange(24.0).view(2, 3, 4).permute(1, 2, 0)
    model.weight = Parameter(torch.zeros(6, 4).t(), requires_grad=False)
    found = facts(census(model))
    assert found["/absorbed"]["fingerprint"]["shape"] == [2, 3, 4]
    assert found["weight"]["packing"] == {"kind": "opaque"}
    assert in_memory_order(model.absorbed).is_contiguous()


def test_a_tensor_with_gaps_is_read_row_by_row_through_a_copy() -> None:
    model = Layer()
    both = torch.arange(24.0).view(4, 6)
    model.even, model.odd = both[:, ::2], both[:, 1::2]
    rank = bare_rank(model)
    found = {fact["slot"]: fact for fact in rank.slots() if fact["kind"] == "slot"}
    for name, view in (("/even", model.even), ("/odd", model.odd)):
        assert found[name]["packing"] == {"kind": "plain"}
        address = int(found[name]["fingerprint"]["address"], 16)
        whole = rank.read(address, view.numel() * 4)
        assert whole == bytes(view.contiguous().view(torch.uint8).flatten().tolist())
        assert rank.read(address + 4, 8) == whole[4:12]
        with pytest.raises(Refused):
            rank.read(address, len(whole) + 1)
        with pytest.raises(Unsupported):
            rank.write(address, b"1234")


def test_what_cannot_be_a_slot_is_said_with_the_reason() -> None:
    model = Layer()
    model.register_buffer("phases", torch.zeros(3, dtype=torch.complex64))
    model.mask = torch.zeros(1).expand(1000, 1000)
    stated = [fact for fact in bare_rank(model).slots() if fact["kind"] == "claim"]
    assert [fact["value"] for fact in stated if fact["what"] == "unseen"] == [
        "phases (torch.complex64 has no name in the evidence)",
        "/mask (its elements share memory with each other)",
    ]
    assert [fact for fact in bare_rank(Layer()).slots() if fact["kind"] == "claim"] == []


def test_a_slot_that_loses_the_sign_of_zeros_is_named() -> None:
    model = torch.nn.ModuleDict({"proj": Linear(torch.ones(3, 5), keep=False), "norm": Layer()})
    stated = [fact for fact in bare_rank(model).slots() if fact["kind"] == "claim"]
    assert [(fact["what"], fact["value"]) for fact in stated] == [
        ("zero-sign-unseen", "proj.weight")
    ]


def test_a_handle_is_a_slot_and_has_another_serial_once_it_is_replaced() -> None:
    model = torch.nn.ModuleDict({"proj": Linear(torch.ones(3, 5), keep=False)})
    serials = Serials()
    fact = census(model).slots["proj.weight"].fact(serials, 1)
    assert fact is not None
    assert (fact["slot_kind"], fact["logical_shape"]) == ("derived", [3, 5])
    assert int(fact["fingerprint"]["address"], 16) > HANDLES
    before = model["proj"].cpu_linear
    assert serials.of_handle(before) == fact["fingerprint"]["storage"]
    model["proj"].cpu_linear = lambda x, weight, bias: before(x, weight, bias)
    assert serials.of_handle(model["proj"].cpu_linear) != fact["fingerprint"]["storage"]


def test_a_kept_weight_and_the_copy_that_multiplies_are_two_slots() -> None:
    model = torch.nn.ModuleDict({"proj": Linear(torch.ones(3, 5), keep=True)})
    found = facts(census(model))
    assert found["proj.weight"]["slot_kind"] == "parameter"
    assert found["proj/cpu_linear"]["inputs"] == ["proj.weight"]


# -- unit vectors ----------------------------------------------------------------------------


def test_a_layer_is_read_exactly_through_its_multiplication() -> None:
    bits = torch.arange(0x0080, 0x7F80, 3, dtype=torch.int32).to(torch.int16)
    weight = bits[: 3 * 1500].reshape(3, 1500).view(torch.bfloat16)
    layer = Linear(weight, keep=False)
    assert unit_vectors.is_opaque(layer)
    assert not unit_vectors.is_copied(layer)
    read = unit_vectors.read(layer)
    assert torch.equal(read.view(torch.int16), weight.view(torch.int16))


def test_zeros_are_read_as_positive_whatever_the_kernel_keeps() -> None:
    weight = torch.tensor([[-0.0, 1.0], [0.0, -0.0]])
    layer = Linear(weight, keep=False)
    layer.cpu_linear = lambda x, packed, bias: weight.t().clone()
    assert not unit_vectors.read(layer).signbit().any()


def test_a_layer_that_reads_its_own_weight_needs_no_unit_vectors() -> None:
    layer = Linear(torch.ones(3, 5), keep=True)
    assert unit_vectors.is_copied(layer)
    layer.cpu_linear = torch.nn.functional.linear
    assert not unit_vectors.is_copied(layer)
    assert not unit_vectors.is_opaque(layer)


# -- files -----------------------------------------------------------------------------------


def test_a_tensor_is_read_from_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    values = torch.arange(6, dtype=torch.bfloat16)
    file.write_bytes(b"header" + bytes(values.view(torch.uint8)) + b"rest")
    fields = {"name": "w", "file": str(file), "offset": 6, "bytes": 12, "dtype": "BF16"}
    read = TensorRef.of({**fields, "shape": [2, 3]}).read()
    assert torch.equal(read, values.view(2, 3))
    empty = TensorRef.of({**fields, "bytes": 0, "shape": [0, 3]}).read()
    assert tuple(empty.shape) == (0, 3)


def test_a_file_that_ends_early_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"12345678")
    ref = TensorRef("w", str(file), 2, 8, "F32", (2,))
    with pytest.raises(Refused, match=r"model\.safetensors` ends within `w`"):
        ref.read()
    with pytest.raises(Refused, match=r"other` cannot be opened"):
        TensorRef("w", str(tmp_path / "other"), 0, 8, "F32", (2,)).read()
    with pytest.raises(Refused, match="`w` is of dtype F4"):
        TensorRef("w", str(file), 0, 8, "F4", (2,)).read()


# -- answers ---------------------------------------------------------------------------------


class Adapter:
    name = "not a command"

    def resume(self) -> dict[str, Any]:
        return done()

    def refuse(self) -> dict[str, Any]:
        raise Refused("no such slot\nsecond line")

    def sleep(self, level: int) -> dict[str, Any]:
        raise Unsupported(f"no sleep at level {level}")

    def die(self) -> dict[str, Any]:
        raise Died("the engine core ended\ntraceback")

    def fail(self) -> dict[str, Any]:
        raise ValueError("first\nsecond")

    def _hidden(self) -> dict[str, Any]:
        return done()


def error_of(command: str, **fields: object) -> Any:
    return answer(Adapter(), {"command": command, **fields}).get("error")


def test_each_way_of_saying_no_has_its_own_answer() -> None:
    assert answer(Adapter(), {"command": "resume"}) == {"answer": "done"}
    assert error_of("refuse") == {"error": "refused", "text": "no such slot"}
    assert error_of("sleep", level=2) == {"error": "unsupported", "what": "no sleep at level 2"}
    died = {"error": "died", "text": "the engine core ended", "kernel": None, "address": None}
    assert error_of("die") == died


def test_what_the_engine_raises_is_a_refusal_of_one_line_in_its_own_words() -> None:
    assert error_of("fail") == {"error": "refused", "text": "ValueError: first"}
    assert error_of("sleep", depth=1)["error"] == "refused"
    assert one_line(KeyError()) == "KeyError"


@pytest.mark.parametrize("command", ["unknown", "_hidden", "name", ""])
def test_what_is_no_command_is_unsupported(command: str) -> None:
    assert error_of(command) == {"error": "unsupported", "what": command}


@pytest.mark.parametrize("start", [0, 2, 4])
def test_a_search_goes_outward_and_leaves_nothing_out(start: int) -> None:
    found = list(outward(start, 5))
    assert sorted(found) == list(range(5))
    assert [abs(index - start) for index in found] == sorted(abs(n - start) for n in range(5))


def test_a_tied_parameter_is_known_by_its_first_name() -> None:
    model = torch.nn.ModuleDict({"embed": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)})
    assert tied(model) == {}
    model["head"].weight = model["embed"].weight
    assert tied(model) == {"head.weight": "embed.weight"}
    recorder = Applications(model)
    with recorder, torch.no_grad():
        for _, tensor in recorder.deliver(iter([("source", torch.ones(2, 2))])):
            model["head"].weight.copy_(tensor)
    assert [(source, slot) for source, _, slot, _ in recorder.records] == [
        ("source", "embed.weight")
    ]
