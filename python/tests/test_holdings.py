"""Digests and holdings of tensors of which some cannot be read as they lie."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from coldproof import _native, digest  # noqa: E402
from coldproof.errors import DeviceError, DigestError  # noqa: E402
from coldproof.torch import digesting, holdings  # noqa: E402
from coldproof.torch import digests as digests_of  # noqa: E402
from coldproof.torch import owners as owners_module  # noqa: E402


class Plan:
    def __init__(self, sums: list[str]) -> None:
        self.sums = sums

    def run(self, stream: int) -> list[str]:
        return self.sums


class Device:
    """A reader that refuses a table with a tensor of eight axes, or one without memory."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.launches: list[list[str]] = []

    def digests(self, tensors: list[tuple[str, str, list[int], list[int], int]]) -> Plan:
        for _, _, shape, _, address in tensors:
            if len(shape) > 7:
                raise DigestError("more than seven axes")
            if address in self.gone:
                raise DeviceError("no memory lies there")
        self.launches.append([tensor[0] for tensor in tensors])
        return Plan([f"sum of {tensor[0]}" for tensor in tensors])

    def allocation(self, address: int) -> tuple[int, int] | None:
        return None if address in self.gone else (address, 1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device()
    stream = type("Stream", (), {"cuda_stream": 0})
    monkeypatch.setattr(digesting, "on_device", owners_module.has_elements)
    monkeypatch.setattr(digesting, "reader", lambda ordinal: device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda ordinal: stream)
    yield device


def test_one_tensor_that_the_kernel_does_not_take_is_copied_alone(device: Device) -> None:
    tensors = {name: torch.ones(2) for name in "abc"}
    assert digests_of(tensors) == {name: f"sum of {name}" for name in "abc"}
    assert device.launches == [["a", "b", "c"]]
    tensors["b"] = torch.ones([1] * 8)
    expected = {"a": "sum of a", "b": digest(tensors["b"], name="b"), "c": "sum of c"}
    assert digests_of(tensors) == expected


def test_one_without_memory_is_not_copied_and_the_others_are_held(device: Device) -> None:
    tensors = {name: torch.ones(2) for name in "ab"}
    device.gone.add(tensors["a"].data_ptr())
    with pytest.raises(DeviceError):
        digests_of(tensors)
    held = {path: own.digest for path, own in holdings(tensors).items()}
    assert held == {"['a']": None, "['b']": "sum of ['b']"}


def test_elements_without_a_name_in_safetensors_are_held_too() -> None:
    names = ["complex64", "float8_e4m3fnuz", "float4_e2m1fn_x2"]
    dtypes = [getattr(torch, name) for name in names if hasattr(torch, name)]
    for dtype in dtypes:
        own, same, other = (torch.zeros(16, dtype=torch.uint8) for _ in range(3))
        other[3] = 0x3C
        (first,), (again,), (changed,) = (
            holdings({"w": bytes_.view(dtype)}).values() for bytes_ in (own, same, other)
        )
        assert first.digest is not None
        assert (first == again, first.digest == changed.digest) == (True, False)
        assert first.dtype == str(dtype).removeprefix("torch.")
    conjugate = torch.tensor([1 + 2j]).conj()
    (lazy,) = holdings({"w": conjugate}).values()
    (resolved,) = holdings({"w": conjugate.resolve_conj()}).values()
    assert lazy == resolved


def test_a_platform_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(_native, "Device", lambda ordinal, platform: opened.append(platform))
    for hip in (None, "6.4"):
        monkeypatch.setattr(torch.version, "hip", hip)
        digesting.reader.__wrapped__(0)
    assert opened == ["cuda", "rocm"]
