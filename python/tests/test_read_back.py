"""Slots are read back from named memory, and from nowhere else."""

from __future__ import annotations

import json
from typing import Any

import coldproof
import pytest
import torch
from coldproof import _native, errors


def request(address: int, shape: list[int], **more: Any) -> dict[str, Any]:
    return {
        "address": hex(address),
        "dtype": "F32",
        "logical_shape": shape,
        "packing": {"kind": "plain"},
        "permutation": None,
        "pieces": [],
        "zero_fill": False,
        **more,
    }


def run(requests: list[dict[str, Any]], ranges: list[tuple[int, int, int]]) -> list[Any]:
    replies = json.loads(_native.read_back(json.dumps(requests).encode(), ranges))
    assert isinstance(replies, list)
    return replies


def whole(source: str, shape: list[int]) -> dict[str, Any]:
    spans = [[0, extent] for extent in shape]
    return {
        "source": source,
        "source_shape": shape,
        "piece": {"source_fragment": spans, "slot_fragment": spans},
    }


def test_content_and_source_digest_of_a_slot() -> None:
    w = torch.arange(32.0).reshape(2, 16)
    asked = request(0x1000, [2, 16], pieces=[whole("w", [2, 16])])
    (found,) = run([asked], [(0x1000, w.data_ptr(), 128)])
    assert found["content"] == coldproof.digest(w)
    assert found["shares"][0]["sum"] == coldproof.digest(w, name="w")


def test_an_address_within_a_range_is_read_and_one_beyond_it_is_refused() -> None:
    w = torch.arange(8.0)
    ranges = [(0x1000, w.data_ptr(), 16), (0x2000, w.data_ptr() + 16, 16)]
    inside, tail, beyond, nowhere = run(
        [request(0x1000, [4]), request(0x2008, [2]), request(0x1008, [4]), request(0x3000, [1])],
        ranges,
    )
    assert inside["content"] == coldproof.digest(w[:4])
    assert tail["content"] == coldproof.digest(w[6:])
    assert beyond["content"] is None
    assert nowhere["content"] is None


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(errors.ProtocolError, match="no list of read-back requests"):
        _native.read_back(b"{}", [])
    assert _native.read_back(b"[]", []) == b"[]"
    with pytest.raises(errors.ProtocolError, match="too large"):
        run([request(0x1000, [1 << 62, 1 << 62])], [])
    (found,) = run([request(0x1000, [1 << 40, 0])], [(0x1000, 0, 0)])
    assert found["content"] == _native.content_digest(0, 0)
