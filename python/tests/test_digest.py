"""The digest over memory equals the one that the command line takes of a file."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import coldproof
import pytest
import torch
from coldproof import _native, errors

SPELLINGS = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}


def save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file without any library."""
    header: dict[str, object] = {}
    body = b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        span = [len(body), len(body) + len(raw)]
        header[name] = {
            "dtype": SPELLINGS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(5, 33),
        "b.weight": torch.randn(7, 64).to(torch.bfloat16),
        "ids": torch.arange(9),
        "bytes": torch.arange(100).to(torch.uint8).reshape(2, 50),
        "scale": torch.randn(3, 17).to(torch.float8_e4m3fn),
    }


def test_it_is_the_digest_of_the_tensor_in_a_file(
    tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    save(tmp_path / "model.safetensors", tensors)
    command = [sys.executable, "-m", "coldproof", "digest", str(tmp_path), "--format", "json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name, tensor in tensors.items():
        assert coldproof.digest(tensor, name=name) in output, name
        assert coldproof.digest(tensor, name=name + "x") not in output


def test_a_view_that_is_not_contiguous_has_the_digest_of_its_copy(
    tensors: dict[str, torch.Tensor],
) -> None:
    whole = tensors["a.weight"]
    for view in [whole.t(), whole[:, ::2], whole[1:, 3:9]]:
        assert not view.is_contiguous()
        assert coldproof.digest(view, name="v") == coldproof.digest(view.clone(), name="v")
        assert coldproof.digest(view) == coldproof.digest(view.contiguous())
        assert coldproof.digest(view) != coldproof.digest(whole)


def test_one_bit_changes_it() -> None:
    tensor = torch.zeros(1000, dtype=torch.bfloat16)
    before = coldproof.digest(tensor)
    assert coldproof.digest(tensor) == before
    tensor.view(torch.int16)[999] ^= 1
    assert coldproof.digest(tensor) != before


def test_empty_tensors_and_scalars_have_one() -> None:
    assert coldproof.digest(torch.zeros(0, 4)) == coldproof.digest(torch.zeros(0))
    assert coldproof.digest(torch.tensor(2.0), name="s") != coldproof.digest(
        torch.tensor([2.0]), name="s"
    )


def test_what_is_refused() -> None:
    with pytest.raises(errors.DigestError, match="meta"):
        coldproof.digest(torch.zeros(2, device="meta"))
    with pytest.raises(errors.DigestError, match="complex64"):
        coldproof.digest(torch.zeros(2, dtype=torch.complex64), name="c")
    with pytest.raises(errors.MemoryRangeError, match="no memory at 0"):
        _native.content_digest(0, 1)
    with pytest.raises(errors.MemoryRangeError, match="address space"):
        _native.content_digest(1, (1 << 64) - 1)
    with pytest.raises(errors.DigestError, match="8 are described"):
        _native.source_digest("a", "F32", [2], torch.zeros(3).data_ptr(), 12)
    with pytest.raises(errors.DigestError, match="2\\^63"):
        _native.source_digest("a", "F32", [1 << 62], 1, 4)
