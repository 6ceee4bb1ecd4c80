"""Checkpoint tensors by reference: positioned reads into tensors that torch owns.

Files are not mapped: a trainer may rewrite or truncate them while they are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coldproof.agent import Refused

if TYPE_CHECKING:
    import torch

#: safetensors' spelling of element types, as torch spells them.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}
NAMES = {torch_name: name for name, torch_name in DTYPES.items()}


@dataclass(frozen=True)
class TensorRef:
    """One tensor of a checkpoint file."""

    name: str
    file: str
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, fields: dict[str, Any]) -> TensorRef:
        """From the protocol's JSON."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def read(self) -> torch.Tensor:
        """Reads the tensor into memory of its own.

        Raises:
            Refused: the file is gone or shorter than its header says, or torch has no such dtype.
        """
        import torch

        dtype = getattr(torch, DTYPES.get(self.dtype, ""), None)
        if dtype is None:
            raise Refused(f"`{self.name}` is of dtype {self.dtype}, which torch cannot hold")
        raw = torch.empty(self.bytes, dtype=torch.uint8)
        view = memoryview(raw.numpy())
        try:
            file = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"`{self.file}` cannot be opened: {error.strerror}") from error
        try:
            at = 0
            while at < self.bytes:
                count = os.preadv(file, [view[at:]], self.offset + at)
                if count == 0:
                    raise Refused(f"`{self.file}` ends within `{self.name}`; write it again")
                at += count
        finally:
            os.close(file)
        return raw.view(dtype).view(self.shape)


def dtype_name(tensor: torch.Tensor) -> str | None:
    """The element type as safetensors spells it, where it has a name there."""
    return NAMES.get(str(tensor.dtype).removeprefix("torch."))
