"""The audit of the vLLM of this interpreter names what the RFC lists as unproven candidates."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from coldproof.audit import Report, audit

FOLDERS = (
    "model_executor/layers/fused_moe",
    "model_executor/layers/quantization/compressed_tensors",
)
#: A file, and the objects that it holds.
LISTED = [
    ("cutlass_moe.py", {"self.ab_strides1", "self.ab_strides2", "self.c_strides1"}),
    ("cutlass_moe.py", {"self.a_strides1", "self.s_strides1", "self.s_strides2"}),
    ("compressed_tensors_moe_w4a8_fp8.py", {"self.b_strides1", "self.b_strides2"}),
    ("flashinfer_cutlass_moe.py", {"self.gemm1_alpha", "self.gemm1_beta"}),
    ("flashinfer_b12x_moe.py", {"self._fc2_input_scale", "self.w1_sf_mma", "self.w2_sf_mma"}),
    ("trtllm_fp8_moe.py", {"self.gemm1_alpha", "self.gemm1_clamp_limit"}),
    ("trtllm_mxfp4_moe.py", {"self.gemm1_alpha", "self.gemm1_clamp_limit"}),
    ("trtllm_nvfp4_moe.py", {"self.g1_scale_c"}),
    ("compressed_tensors_wNa8o8.py", {"self._input_scale", "self._output_scale"}),
]


@pytest.fixture(scope="module")
def report() -> Report:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return audit(Path(spec.origin).parent / folder for folder in FOLDERS)


@pytest.mark.parametrize(("file", "objects"), LISTED, ids=[file for file, _ in LISTED])
def test_a_listed_candidate_is_named(report: Report, file: str, objects: set[str]) -> None:
    found = {one.about for one in report.candidates if Path(one.file).name == file}
    assert objects <= found


def test_every_file_is_read(report: Report) -> None:
    assert report.unread == ()
    assert report.roots > 20
