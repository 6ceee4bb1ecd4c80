"""Which engines are updated, and what is known of each: one cell is one model in one form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORCE_MARLIN = {"VLLM_TEST_FORCE_FP8_MARLIN": "1"}
NO_MACHETE = {"VLLM_DISABLED_KERNELS": "MacheteLinearKernel"}
TRITON_MLA = {"attention_backend": "TRITON_MLA"}


@dataclass(frozen=True)
class Cell:
    """A model, the form of its weights, and how the engine is started on it."""

    name: str
    model: str
    """``llama``, ``qwen3_moe`` or ``deepseek_v2``."""
    form: str = "bf16"
    """How the checkpoint is quantised; the engine may quantise on load instead (``options``)."""
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    sleep: bool = False
    """Whether the update goes through sleep level 2."""
    compiled: bool = False
    """Whether the engine compiles the model and captures it in pieces too."""
    configured: bool = False
    """Whether a reload needs the engine's configuration set, without which it raises."""
    stale: int | None = None
    """Stale addresses that a probe by hand saw; 0 for a clean cell, ``None`` for a new one."""
    outlives: bool = False
    """Whether what was captured serves as well old as new, as scratch does: held, it is right."""
    row: str = ""
    """The candidate of the RFC that a new cell decides."""

    @property
    def is_known(self) -> bool:
        """Whether a probe by hand saw this cell."""
        return self.stale is not None

    @property
    def is_plain(self) -> bool:
        """Whether every parameter is used as it was loaded."""
        return self.form == "bf16" and "quantization" not in self.options

    @property
    def checkpoint(self) -> str:
        """The checkpoint that it is started on; cells share them."""
        return f"{self.model}-{self.form}"


def _asleep(cell: Cell) -> Cell:
    """Return the same cell, updated through sleep level 2."""
    return Cell(
        name=f"{cell.name}, sleep 2",
        model=cell.model,
        form=cell.form,
        options={**cell.options, "enable_sleep_mode": True},
        environment=cell.environment,
        sleep=True,
        configured=cell.configured,
        row=cell.row,
    )


KNOWN = [
    Cell("dense bf16", "llama", stale=0),
    Cell("MoE bf16", "qwen3_moe", stale=0),
    Cell("dense bf16, sleep 2", "llama", options={"enable_sleep_mode": True}, sleep=True, stale=0),
    Cell(
        "dense FP8 Marlin",
        "llama",
        options={"quantization": "fp8"},
        environment=FORCE_MARLIN,
        stale=12,
        outlives=True,
    ),
    Cell(
        "MoE FP8 Marlin",
        "qwen3_moe",
        options={"quantization": "fp8"},
        environment=FORCE_MARLIN,
        stale=9,
        outlives=True,
    ),
    Cell("GPTQ act-order, Machete", "llama", "gptq", stale=12),
    Cell("GPTQ act-order, Marlin", "llama", "gptq", environment=NO_MACHETE, stale=24),
    Cell(
        "MoE FP8 CUTLASS",
        "qwen3_moe",
        options={"quantization": "fp8_per_channel"},
        stale=30,
        outlives=True,
    ),
]
"""What a probe by hand saw on an H200."""

_NEW = [
    Cell("MLA bf16, triton_mla", "deepseek_v2", options=TRITON_MLA, row="F1.01"),
    Cell(
        "MLA FP8, triton_mla",
        "deepseek_v2",
        options={**TRITON_MLA, "quantization": "fp8"},
        row="F1.01",
    ),
    Cell("MoE W4A8 grouped", "qwen3_moe", "w4a8", configured=True, row="F1.13"),
    Cell("MoE WNA16 Marlin", "qwen3_moe", "wna16", row="WNA16 Marlin MoE"),
    Cell("MoE NVFP4 Marlin", "qwen3_moe", "nvfp4", row="FP4 Marlin MoE"),
]

NEW = [*_NEW, *(_asleep(cell) for cell in _NEW)]
"""What nobody has seen yet: their truth comes from arms without a gate."""

NO_CACHE = {"VLLM_DISABLE_COMPILE_CACHE": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

COMPILED = [
    Cell(
        "dense FP8 Marlin, compiled",
        "llama",
        options={"quantization": "fp8"},
        environment=FORCE_MARLIN,
        compiled=True,
        stale=12,
        outlives=True,
    ),
    Cell(
        "dense FP8 Marlin, compiled, no cache",
        "llama",
        options={"quantization": "fp8"},
        environment={**FORCE_MARLIN, **NO_CACHE},
        compiled=True,
        stale=12,
        outlives=True,
    ),
    Cell(
        "GPTQ act-order, Machete, compiled, no cache",
        "llama",
        "gptq",
        environment=NO_CACHE,
        compiled=True,
        stale=12,
    ),
]
"""The compile cache decides what a replay shows; the gate must not care."""

CELLS = [*KNOWN, *NEW, *COMPILED]

ARMS = ("cold", "gated", "fix", "hold", "warm")
"""What is done with a cell, each in a process of its own.

``cold`` starts on B: the reference. ``gated`` updates A to B and asks the gate before the first
replay. ``fix`` keeps every old tensor alive, copies the new values into what the graphs captured,
and asks the gate again. ``hold`` keeps every old tensor alive and replays: what the graphs read is
then old and not gone. ``warm`` updates and replays without asking anybody.
"""


def named(name: str) -> Cell:
    """Return a cell by its name."""
    return next(cell for cell in CELLS if cell.name == name)
