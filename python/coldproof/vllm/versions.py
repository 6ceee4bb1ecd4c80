"""Everything that differs between versions of vLLM, and nothing else.

Written against 0.30 to 0.32 as published for CPU, with 0.25 and 0.33 in mind: each function looks
for what it needs and says what is missing, instead of comparing version numbers.
"""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any, get_args

from coldproof.agent import Refused, Unsupported

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

#: What an engine without compilation is spared: of all that it runs, only the rank of a logprob is
#: compiled then, and the first compilation of a process takes as long as the start of the rest.
EAGER = {"TORCHDYNAMO_DISABLE": "1"}

#: Classes whose subclasses convert weights after loading, by module. Where a version lacks one, its
#: layers are not watched.
POST_LOAD_BASES = (
    ("vllm.model_executor.layers.quantization.base_config", "QuantizeMethodBase"),
    ("vllm.model_executor.layers.fused_moe.modular_kernel", "FusedMoEExperts"),
    ("vllm.model_executor.layers.fused_moe.modular_kernel", "FusedMoEPermuteExpertsUnpermute"),
    ("vllm.v1.attention.backend", "AttentionImplBase"),
    ("vllm.v1.attention.backend", "AttentionImpl"),
)

#: Engine arguments without which the adapter can neither reach the ranks nor force a token.
REQUIRED_OPTIONS = (
    "model",
    "tensor_parallel_size",
    "worker_extension_cls",
    "logits_processors",
    "logprobs_mode",
    "max_logprobs",
)

#: Levels of the module tree that are there in one version or configuration and not in another: no
#: checkpoint names them. What may serve adapters holds its weights in a ``base_layer``.
WRAPPERS = (".routed_experts", ".base_layer")

#: Attributes whose tensor is a pointer into a library: other in every process, and no value.
HANDLES = ("handler_tensor",)


def is_handle(path: str) -> bool:
    """Whether the tensor at this path is a library's handle."""
    return path.rpartition(".")[2] in HANDLES


def set_environment(*, eager: bool = True) -> None:
    """Sets what must be set before the import; what the user set stays."""
    for name, value in {**ENVIRONMENT, **(EAGER if eager else {})}.items():
        os.environ.setdefault(name, value)


def version() -> str:
    """The version of vLLM."""
    from vllm import __version__

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


def start_options(own: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The adapter's own options, as far as this version knows them, and what the user asked for.

    Raises:
        Unsupported: this version lacks an option without which nothing can be observed.
        Refused: the user's option is none of this version's, or is the adapter's to set.
    """
    from vllm.engine.arg_utils import EngineArgs

    known = set(inspect.signature(EngineArgs).parameters)
    for name in REQUIRED_OPTIONS:
        if name not in known:
            raise Unsupported(f"vLLM {version()} has no engine argument `{name}`")
        if name in asked:
            raise Refused(f"`{name}` is the adapter's to set; leave out --engine-arg {name}")
    for name in asked:
        if name not in known:
            raise Refused(f"vLLM {version()} has no engine argument `{name}`; mend --engine-arg")
    return {**{name: value for name, value in own.items() if name in known}, **asked}


def adapter_options(rank: int) -> dict[str, Any]:
    """The options of an engine that serves adapters of at most this rank; for none, none.

    Raises:
        Unsupported: this version serves no adapters, or none of this rank.
    """
    if not rank:
        return {}
    from vllm.engine.arg_utils import EngineArgs

    if "enable_lora" not in inspect.signature(EngineArgs).parameters:
        raise Unsupported(f"adapters (vLLM {version()} has no `enable_lora`)")
    ranks = getattr(importlib.import_module("vllm.config.lora"), "MaxLoRARanks", None)
    known = sorted(get_args(ranks)) or [rank]
    fitting = next((size for size in known if size >= rank), None)
    if fitting is None:
        raise Unsupported(f"adapters of rank {rank} (vLLM {version()} takes at most {known[-1]})")
    return {"enable_lora": True, "max_lora_rank": fitting}


def adapter_request(name: str, number: int, folder: str, *, again: bool) -> Any:
    """An adapter as a request names it, or as it is loaded ``again`` under a name that is taken.

    Raises:
        Unsupported: this version cannot load an adapter in place.
    """
    from vllm.lora.request import LoRARequest

    request = LoRARequest(name, number, folder)
    if again:
        if not hasattr(request, "load_inplace"):
            raise Unsupported(f"an adapter in place (vLLM {version()} has no `load_inplace`)")
        request.load_inplace = True
    return request


def reload(worker: Any, **how: Any) -> None:
    """Calls ``reload_weights``.

    Raises:
        Unsupported: this version has no such call, or one that does not take what is given.
    """
    method = getattr(worker.model_runner, "reload_weights", None)
    known = inspect.signature(method).parameters if method is not None else {}
    missing = [name for name in how if name not in known]
    if missing:
        raise Unsupported(f"vLLM {version()} has no reload_weights({', '.join(missing)}=…)")
    worker.reload_weights(**how)


def is_dead(error: BaseException) -> bool:
    """Whether this is how vLLM says that its engine or a worker is gone."""
    return "EngineDead" in type(error).__name__ or "Executor failed" in str(error)


def vocabulary_of(llm: Any) -> int:
    """How many logits a row has."""
    return int(llm.llm_engine.model_config.get_vocab_size())


def worker_of(llm: Any) -> Any:
    """The object that runs ``collective_rpc`` on all ranks."""
    return llm.llm_engine if hasattr(llm.llm_engine, "collective_rpc") else llm


def model_of(worker: Any) -> Any:
    """The model of a worker."""
    return worker.model_runner.get_model()


def forward_context() -> Any:
    """What the running forward knows of its requests; nothing outside one."""
    context = importlib.import_module("vllm.forward_context")
    available = getattr(context, "is_forward_context_available", None)
    return context.get_forward_context() if available is None or available() else None


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
    try:
        info_of = getattr(layerwise(), "get_layerwise_info", None)
    except Unsupported:
        return []
    if info_of is None:
        return []
    held: list[str] = []
    for path, layer in model.named_modules():
        loaded = getattr(info_of(layer), "loaded_weights", ())
        held.extend(f"{path}.{name}" for name, _ in loaded)
    return held


def supports_sleep() -> bool:
    """Whether the platform frees memory in sleep: the CPU worker does not."""
    from vllm.platforms import current_platform

    available = getattr(current_platform, "is_sleep_mode_available", None)
    return bool(available()) if callable(available) else False


def default_loader() -> Any:
    """The class that loads a checkpoint folder and whose ``get_all_weights`` reads it."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    return DefaultModelLoader
