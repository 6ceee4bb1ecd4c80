"""Proves that an engine that took a live weight update is the one that a cold load would build.

What needs torch imports it when it is used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coldproof import errors
from coldproof._native import (
    Ledger,
    Receipt,
    Registry,
    Transaction,
    Walk,
    reconcile,
)
from coldproof.errors import ColdproofError

if TYPE_CHECKING:
    from coldproof.recorder import Recorder
    from coldproof.tensors import digest, walk

__all__ = [
    "ColdproofError",
    "Ledger",
    "Receipt",
    "Recorder",
    "Registry",
    "Transaction",
    "Walk",
    "digest",
    "errors",
    "reconcile",
    "walk",
]

_LAZY = {
    "Recorder": "coldproof.recorder",
    "digest": "coldproof.tensors",
    "walk": "coldproof.tensors",
}


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'coldproof' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name the public surface."""
    return sorted(__all__)
