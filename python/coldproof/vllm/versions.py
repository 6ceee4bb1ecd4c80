"""Everything that differs between versions of vLLM, and nothing else.

Written against 0.30 to 0.32 as published for CPU, with 0.25 and 0.33 in mind: each function looks
for what it needs and says what is missing, instead of comparing version numbers.
"""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any

from coldproof.agent import Unsupported

#: Set before vLLM is imported. One process keeps the model where the probe can read it at tp 1.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One thread a rank, bound to no core: ranks outnumber the cores of a small machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

#: Classes whose subclasses convert weights after loading, by module. Where a version lacks one, its
#: layers are not watched.
POST_LOAD_BASES = (
    ("vllm.model_executor.layers.quantization.base_config", "QuantizeMethodBase"),
    ("vllm.model_executor.layers.fused_moe.modular_kernel", "FusedMoEExperts"),
    ("vllm.model_executor.layers.fused_moe.modular_kernel", "FusedMoEPermuteExpertsUnpermute"),
    ("vllm.v1.attention.backend", "AttentionImplBase"),
    ("vllm.v1.attention.backend", "AttentionImpl"),
)

#: Levels of the module tree that one version has and another has not, and that hold no weights.
WRAPPERS = (".routed_experts",)


#: Attributes whose tensor is a pointer into a library: other in every process, and no value.
HANDLES = ("handler_tensor",)


def is_handle(path: str) -> bool:
    """Whether the tensor at this path is a library's handle."""
    return path.rpartition(".")[2] in HANDLES


def set_environment() -> None:
    """Sets what must be set before the import; what the user set stays."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def version() -> str:
    """The version of vLLM."""
    from vllm import __version__  # noqa: PLC0415

    return str(__version__)


def post_load_bases() -> list[type]:
    """The classes of :data:`POST_LOAD_BASES` that this version has."""
    found = []
    for module, name in POST_LOAD_BASES:
        try:
            base = getattr(importlib.import_module(module), name, None)
        except ImportError:
            base = None
        if isinstance(base, type):
            found.append(base)
    return found


def slot_path(path: str) -> str:
    """A module path without the wrappers that only some versions have."""
    for wrapper in WRAPPERS:
        path = path.replace(wrapper, "")
    return path


def start_options(options: dict[str, Any]) -> dict[str, Any]:
    """Keeps the options that this version's ``LLM`` and engine arguments know."""
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415

    known = set(inspect.signature(EngineArgs).parameters)
    return {name: value for name, value in options.items() if name in known}


def worker_of(llm: Any) -> Any:
    """The object that runs ``collective_rpc`` on all ranks."""
    return llm.llm_engine if hasattr(llm.llm_engine, "collective_rpc") else llm


def model_of(worker: Any) -> Any:
    """The model of a worker."""
    return worker.model_runner.get_model()


def layerwise() -> Any:
    """The module that reloads layer by layer.

    Raises:
        Unsupported: this version has none.
    """
    try:
        return importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
    except ImportError as error:
        raise Unsupported(f"vLLM {version()} has no layerwise reload") from error


def buffered(model: Any) -> list[str]:
    """Parameters for which a layer still holds tensors that it has not loaded."""
    info_of = getattr(layerwise(), "get_layerwise_info", None)
    if info_of is None:
        return []
    held = []
    for path, layer in model.named_modules():
        loaded = getattr(info_of(layer), "loaded_weights", ())
        held.extend(f"{path}.{name}" for name, _ in loaded)
    return held


def supports_sleep() -> bool:
    """Whether the platform frees memory in sleep: the CPU worker does not."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    available = getattr(current_platform, "is_sleep_mode_available", None)
    return bool(available()) if callable(available) else False


def default_loader() -> Any:
    """The class whose ``get_all_weights`` reads a checkpoint folder."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader  # noqa: PLC0415

    return DefaultModelLoader
