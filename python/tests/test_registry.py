"""The registry over real tensors: each outcome, and the nearest change that is none."""

from __future__ import annotations

import coldproof
import pytest
import torch
from coldproof import _native, errors


def sealed(hold: str = "weak", stable: bool = True, **slots: torch.Tensor) -> _native.Snapshot:
    registry = coldproof.Registry(hold)  # type: ignore[arg-type]
    for name, tensor in slots.items():
        registry.register(name, tensor, stable=stable)
    return registry.seal()


def test_what_did_not_change_gives_nothing() -> None:
    w = torch.arange(6.0).reshape(2, 3)
    snapshot = sealed(w=w, v=w.t())
    w.fill_(7)
    assert snapshot.compare({"w": w, "v": w.t()}) == []
    assert (len(snapshot), snapshot.names) == (2, ["v", "w"])


def test_a_slot_that_is_not_there_is_missing() -> None:
    w = torch.zeros(2)
    (found,) = sealed(w=w).compare({})
    assert (found.name, found.outcome, found.now) == ("w", "missing", None)


def test_another_storage_while_the_old_one_lives_is_rebound() -> None:
    w = torch.zeros(2)
    snapshot = sealed(w=w)
    (found,) = snapshot.compare({"w": torch.zeros(2)})
    assert (found.outcome, found.fields) == ("rebound", ["storage", "address"])
    assert snapshot.compare({"w": w}) == []


def test_a_freed_storage_is_expired_although_its_address_is_used_again() -> None:
    address, tries = 0, []
    snapshot = None
    for _ in range(1000):
        w = torch.zeros(1 << 10)
        address = w.data_ptr()
        snapshot = sealed(w=w)
        del w
        again = torch.zeros(1 << 10)
        if again.data_ptr() == address:
            break
        tries.append(again)
    else:
        pytest.skip("the allocator never gave the address again")
    (found,) = snapshot.compare({"w": again})
    assert found.outcome == "expired"
    assert found.now is not None
    assert found.now.address == found.captured.address == address
    assert found.now.storage != found.captured.storage


def test_a_strong_hold_keeps_the_storage_and_a_weak_one_does_not() -> None:
    for hold, outcome in [("strong", "rebound"), ("weak", "expired")]:
        w = torch.zeros(1 << 10)
        reference = w.untyped_storage()._weak_ref()
        snapshot = sealed(hold, w=w)
        del w
        assert torch.UntypedStorage._expired(reference) == (hold == "weak")
        (found,) = snapshot.compare({"w": torch.zeros(1 << 10)})
        assert found.outcome == outcome
        torch.UntypedStorage._free_weak_ref(reference)


def test_the_same_storage_described_otherwise_is_respecified() -> None:
    w = torch.zeros(2, 3)
    snapshot = sealed(w=w)
    changes = {
        "shape": (w.view(3, 2), ["shape", "stride"]),
        "stride": (w.t(), ["shape", "stride"]),
        "dtype": (w.view(torch.int32), ["dtype"]),
    }
    for now, fields in changes.values():
        (found,) = snapshot.compare({"w": now})
        assert (found.outcome, found.fields) == ("respecified", fields)
    (found,) = snapshot.compare({"w": w[1:]})
    assert (found.outcome, found.fields) == ("rebound", ["address", "shape", "offset"])
    assert snapshot.compare({"w": w.view(2, 3)}) == []


def test_all_eight_fields_are_read() -> None:
    w = torch.zeros(4, 3, dtype=torch.bfloat16)[1:, ::2]
    (found,) = sealed(w=w).compare({})
    print_ = found.captured
    assert print_.storage == 1
    assert print_.address == w.data_ptr()
    assert print_.storage_bytes == 24
    assert (print_.shape, print_.stride, print_.offset) == ([3, 2], [3, 2], 3)
    assert (print_.dtype, print_.device) == ("BF16", "cpu")


def test_a_slot_that_nothing_retains_may_get_another_storage_of_its_layout() -> None:
    w = torch.zeros(2, 3)
    snapshot = sealed(w=w, stable=False)
    assert snapshot.compare({"w": torch.zeros(2, 3)}) == []
    (found,) = snapshot.compare({"w": torch.zeros(3, 2)})
    assert (found.outcome, found.fields) == ("respecified", ["shape", "stride"])


def test_serials_stay_over_many_comparisons() -> None:
    w = torch.zeros(2)
    snapshot = sealed(w=w)
    for _ in range(5):
        snapshot.compare({"w": torch.zeros(2)})
        assert snapshot.compare({"w": w}) == []


def test_what_is_refused() -> None:
    registry = coldproof.Registry()
    registry.register("w", torch.zeros(2))
    with pytest.raises(errors.RegistryError, match="registered twice"):
        registry.register("w", torch.zeros(2))
    with pytest.raises(errors.RegistryError, match="complex64"):
        registry.register("c", torch.zeros(2, dtype=torch.complex64))
    snapshot = registry.seal()
    with pytest.raises(errors.RegistryError, match="sealed"):
        registry.register("v", torch.zeros(2))
    with pytest.raises(errors.RegistryError, match="appeared after"):
        snapshot.compare({"v": torch.zeros(2)})
    with pytest.raises(ValueError, match="weak"):
        coldproof.Registry("loose")  # type: ignore[arg-type]
