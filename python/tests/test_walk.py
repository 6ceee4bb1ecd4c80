"""Every kind of container, each with what must be found in it and what must not."""

from __future__ import annotations

import collections
import functools
import gc
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import coldproof
import pytest
import torch
from coldproof import _native


def tensor() -> torch.Tensor:
    return torch.zeros(1)


def paths(root: object, name: str = "r", **keywords: Any) -> list[str]:
    return [path for path, _ in coldproof.walk(root, name=name, **keywords).tensors]


class Plain:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("__own", "first", "unset")

    def __init__(self, first: object, own: object = None) -> None:
        self.first = first
        self.__own = own


class SlottedChild(Slotted):
    __slots__ = ("second",)

    def __init__(self, first: object, second: object) -> None:
        super().__init__(first)
        self.second = second


@dataclass
class Data:
    inner: torch.Tensor
    number: int = 3


@dataclass(frozen=True)
class SlottedData:
    __slots__ = ("inner",)
    inner: torch.Tensor


@dataclass
class Node:
    others: list[object] = field(default_factory=list)


Pair = collections.namedtuple("Pair", "left right")


class MyDict(dict[Any, Any]):
    def items(self) -> Any:
        raise AssertionError("the walk ran code of the object")

    __iter__ = keys = values = items


class MySet(set[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("the walk ran code of the object")


def closing_over(held: object) -> Callable[[], object]:
    def inner() -> object:
        return held

    return inner


def with_defaults(held: object) -> Callable[..., object]:
    def inner(a: object = held, *, b: object = held) -> object:
        return a, b

    return inner


def wrapping(held: object) -> Callable[[], object]:
    @functools.wraps(closing_over(held))
    def outer() -> None: ...

    return outer


def hung(held: object) -> torch.Tensor:
    weight = tensor()
    weight.weight_loader = closing_over(held)
    return weight


def cached(held: object) -> Callable[[], object]:
    cache = functools.lru_cache(maxsize=4)(lambda: held)
    cache()
    return cache


class Owner(Plain):
    def method(self) -> None: ...


CASES: dict[str, tuple[Callable[[Any], object], str]] = {
    "attribute": (lambda t: Plain(a=t), "r.a"),
    "list": (lambda t: [0, t], "r[1]"),
    "tuple": (lambda t: (t,), "r[0]"),
    "named tuple": (lambda t: Pair(1, t), "r[1]"),
    "deque": (lambda t: collections.deque([0, t]), "r[1]"),
    "set": (lambda t: {t}, "r.<set>[0]"),
    "frozenset": (lambda t: frozenset([t]), "r.<set>[0]"),
    "set of another class": (lambda t: MySet([t]), "r.<set>[0]"),
    "dict": (lambda t: {"k": t}, "r['k']"),
    "dict by number": (lambda t: {7: t}, "r[7]"),
    "dict by tuple": (lambda t: {(1, "x"): t}, "r[(1, 'x')]"),
    "dict by object": (lambda t: {"a": 0, Plain(): t}, "r[<key 1>]"),
    "dict of another class": (lambda t: MyDict(k=t), "r['k']"),
    "key of a dict": (lambda t: {t: 1}, "r.<keys>[0]"),
    "ordered dict": (lambda t: collections.OrderedDict(k=t), "r['k']"),
    "default dict": (lambda t: collections.defaultdict(None, k=t), "r['k']"),
    "default factory": (
        lambda t: collections.defaultdict(closing_over(t)),
        "r.default_factory.<closure>.held",
    ),
    "mapping proxy": (lambda t: types.MappingProxyType({"k": t}), "r['k']"),
    "slot": (lambda t: SlottedChild(0, t), "r.second"),
    "slot of a base": (lambda t: SlottedChild(t, 0), "r.first"),
    "private slot": (lambda t: Slotted(0, t), "r._Slotted__own"),
    "dataclass": (lambda t: Data(t), "r.inner"),
    "dataclass with slots": (lambda t: SlottedData(t), "r.inner"),
    "namespace": (lambda t: types.SimpleNamespace(a=t), "r.a"),
    "partial": (lambda t: functools.partial(print, t), "r.<partial>.args[0]"),
    "keywords of a partial": (
        lambda t: functools.partial(print, end=t),
        "r.<partial>.keywords['end']",
    ),
    "function of a partial": (
        lambda t: functools.partial(closing_over(t)),
        "r.<partial>.func.<closure>.held",
    ),
    "closure": (closing_over, "r.<closure>.held"),
    "defaults": (with_defaults, "r.__defaults__[0]"),
    "wrapped": (wrapping, "r.__wrapped__.<closure>.held"),
    "bound method": (lambda t: Owner(a=t).method, "r.__self__.a"),
    "bound method of a list": (lambda t: [t].append, "r.__self__[0]"),
    "cell": (lambda t: closing_over(t).__closure__, "r[0].<cell>"),
    "hung on a tensor": (hung, "r.weight_loader.<closure>.held"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_tensor_in_it_is_found_and_a_number_is_not(case: str) -> None:
    make, path = CASES[case]
    held = tensor()
    walked = coldproof.walk(make(held), name="r")
    assert [p for p, found in walked.tensors if found is held] == [path]
    assert not walked.capped
    walked = coldproof.walk(make(1.5), name="r")
    assert [path for path, _ in walked.tensors if path != "r"] == []


def test_keyword_defaults_are_another_way_to_the_same_tensor() -> None:
    walked = coldproof.walk(with_defaults(tensor()), name="r")
    assert walked.aliases == [("r.__kwdefaults__['b']", "r.__defaults__[0]")]


def test_a_cache_of_results_is_entered() -> None:
    (path,) = [path for path in paths(cached(tensor())) if "<referent>" in path]
    assert path.startswith("r.<referent>[")
    assert not [path for path in paths(cached(1)) if "<referent>" in path]


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(tensor())
        self.register_buffer("scale", tensor())
        self.plain = tensor()


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Inner(), Inner()])
        self.head = torch.nn.Linear(1, 1, bias=False)
        self.head.weight = self.layers[1].weight
        self.method = Owner(kernel=Slotted({"workspace": tensor()}))


def test_modules_have_the_names_that_torch_gives() -> None:
    model = Outer()
    walked = coldproof.walk(model)
    named = [name for name, _ in model.named_parameters()]
    named += [name for name, _ in model.named_buffers()]
    found = dict(walked.tensors)
    assert set(named) <= set(found)
    assert set(found) - set(named) == {
        "layers.0.plain",
        "layers.1.plain",
        "method.kernel.first['workspace']",
    }
    assert walked.aliases == [("head.weight", "layers.1.weight")]
    assert all(found[name] is held for name, held in model.named_parameters())


def test_parameters_come_first_by_their_own_names() -> None:
    model = Outer()
    root = Plain(context={"layers.0": model.layers[0]}, model=model)
    found = paths(model, name="", max_objects=None)
    assert found[0] == "layers.0.weight"
    assert "r.context['layers.0'].weight" in paths(root)


class Hostile:
    """Everything that the walk could run fails."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @property
    def trap(self) -> Any:
        raise AssertionError("a property ran")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"__getattr__ ran for {name}")

    def __getattribute__(self, name: str) -> Any:
        if name in {"held", "__dict__"}:
            raise AssertionError(f"__getattribute__ ran for {name}")
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        raise AssertionError("__repr__ ran")

    def __iter__(self) -> Any:
        raise AssertionError("__iter__ ran")

    def __len__(self) -> int:
        raise AssertionError("__len__ ran")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise AssertionError("__class__ ran")


def test_no_code_of_the_objects_runs() -> None:
    assert paths([Hostile(tensor())]) == ["r[0].held"]


def test_cycles_end_and_every_object_is_entered_once() -> None:
    a, b = Node(), Node()
    a.others += [b, a]
    b.others += [a, tensor()]
    walked = coldproof.walk(a, name="r")
    assert [path for path, _ in walked.tensors] == ["r.others[0].others[1]"]
    assert walked.objects == 5
    loop: list[object] = []
    loop.append(loop)
    assert coldproof.walk(loop).objects == 1


def test_depth_has_no_limit() -> None:
    depth = 100_000
    chain: list[object] = [tensor()]
    for _ in range(depth):
        chain = [chain]
    walked = coldproof.walk(chain)
    assert [path for path, _ in walked.tensors] == ["[0]" * (depth + 1)]
    while chain and isinstance(chain[0], list):
        chain = chain[0]


def test_a_cap_that_was_hit_is_reported_and_one_that_fits_is_not() -> None:
    root = [tensor(), tensor(), tensor()]
    capped = coldproof.walk(root, max_objects=3)
    assert (len(capped.tensors), capped.objects, capped.capped) == (2, 3, True)
    whole = coldproof.walk(root, max_objects=4)
    assert (len(whole.tensors), whole.objects, whole.capped) == (3, 4, False)


def test_what_is_not_entered_by_rule() -> None:
    held = tensor()
    owner = Owner(a=held)
    module = types.ModuleType("somewhere")
    module.held = held  # type: ignore[attr-defined]
    cls = type("Class", (), {"held": held})
    for root in [weakref.ref(owner), weakref.proxy(owner), module, cls, print]:
        walked = coldproof.walk([root])
        assert (walked.tensors, walked.opaque) == ([], [])
    assert paths([owner]) == ["r[0].a"]


def test_what_cannot_be_entered_is_listed_and_plain_values_are_not() -> None:
    def running() -> Any:
        held = tensor()
        yield held

    generator = running()
    next(generator)
    handle = torch._C.Generator()
    shut = {"generator": generator, "handle": handle}
    walked = coldproof.walk(shut, name="r")
    assert [path for path, _ in walked.opaque] == ["r['generator']", "r['handle']"]
    plain = [
        object(),
        torch.float16,
        torch.device("cpu"),
        threading.Lock(),
        1,
        "x",
        b"x",
        None,
        torch.Size([1]),
        range(3),
        slice(1),
        1j,
        Plain(),
        Slotted(1),
        Data(tensor()),
        Owner().method,
        closing_over(1),
        functools.partial(print),
        iter([1]),
        {}.keys(),
    ]
    assert coldproof.walk(plain).opaque == []


def test_a_subclass_of_an_extension_type_shows_what_is_hung_on_it() -> None:
    class Handle(torch._C.Generator):
        pass

    handle = Handle()
    handle.held = tensor()
    walked = coldproof.walk([handle], name="r")
    assert [path for path, _ in walked.tensors] == ["r[0].held"]
    assert [path for path, _ in walked.opaque] == ["r[0]"]


def test_any_type_can_be_the_tensor_type_and_subclasses_count() -> None:
    class Fake:
        pass

    class Child(Fake):
        pass

    root = {"a": Fake(), "b": Child(), "c": Plain()}
    found = _native.walk(root, tensor_type=Fake).tensors
    assert [path for path, _ in found] == ["['a']", "['b']"]


def test_nothing_is_kept_after_the_walk() -> None:
    root = Owner(a=[Plain(b=tensor())])
    reference = weakref.ref(root)
    walked = coldproof.walk(root)
    del root
    assert reference() is None
    assert len(walked.tensors) == 1
    ring: list[object] = [tensor()]
    ring.append(coldproof.walk(ring))
    held = weakref.ref(ring[0])
    del ring
    gc.collect()
    assert held() is None


def test_a_type_that_is_gone_leaves_no_plan_to_one_at_its_address() -> None:
    addresses = set()
    for turn in range(50):
        base = (list, dict, Plain)[turn % 3]
        made: Any = type("Made", (base,), {})
        addresses.add(id(made))
        root = made()
        if base is list:
            root.append(tensor())
        elif base is dict:
            root["k"] = tensor()
        else:
            root.held = tensor()
        assert paths(root) == [{list: "r[0]", dict: "r['k']", Plain: "r.held"}[base]]
        reference = weakref.ref(made)
        del made, root
        gc.collect()
        assert reference() is None, "a walk keeps no type"
    assert len(addresses) < 50, "an address is used again"


def test_another_tensor_type_is_another_walk() -> None:
    class Fake:
        pass

    root = Plain(real=tensor(), fake=Fake())
    for _ in range(2):
        assert paths(root) == ["r.real"]
        found = _native.walk(root, tensor_type=Fake, name="r").tensors
        assert [path for path, _ in found] == ["r.fake"]
