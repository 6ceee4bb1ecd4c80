"""Post-load twice over what vLLM's registries list, on CPU, with the reload that production runs.

Of each method a small layer is loaded with A and finished, reloaded with B through vLLM's own
layerwise reload (loaders, post-load, copy-back), and compared with a fresh layer that got B once.
The tables are those of a CPU with AMX; elsewhere another kernel may refuse, and none may be wrong
that is right here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore")

LLAMA = Path(__file__).parents[3] / "testdata" / "checkpoints" / "llama" / "A"
OUTPUTS, INPUTS, EXPERTS = 128, 128, 2
AMX = torch.cpu._is_amx_tile_supported()
Make = Callable[[Any], torch.nn.Module]
NOTHING: frozenset[str] = frozenset()
#: A tensor whose bytes are a pointer into a library.
HANDLES = ("handler_tensor",)
NOT_READ = "not read"


def tensors(bits: int, kind: str, strategy: str, **more: object) -> dict[str, object]:
    return {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy, **more}


def compressed(form: str, weights: dict[str, object], inputs: object = None) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    method = {"quant_method": "compressed-tensors", "format": form}
    return {**method, "config_groups": {"group": group}}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INT8 = {"dtype": "int8", "is_dynamic": False, "symmetric": True}
TOKEN = {"dynamic": True}
#: What a checkpoint of each method says of itself. What follows a space tells variants apart.
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": AWQ,
    "auto_awq": AWQ,
    "awq_marlin": AWQ,
    "gptq": GPTQ,
    "auto_gptq": GPTQ,
    "gptq_marlin": GPTQ,
    "gptq act-order": {**GPTQ, "desc_act": True},
    "moe_wna16": GPTQ,
    "inc": {**GPTQ, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"},
    "humming": GPTQ,
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8 block": BLOCK,
    "deepseek_v4_fp8": BLOCK,
    "fbgemm_fp8": {"modules_to_not_convert": [], "activation_scale_ub": 1200.0},
    "fp_quant": {
        "hadamard_group_size": 32,
        "forward_dtype": "mxfp4",
        "forward_method": "abs_max",
        "modules_to_not_convert": [],
    },
    "modelopt": {"quant_algo": "FP8", "ignore": []},
    "modelopt_fp4": {"quant_algo": "NVFP4", "group_size": 16, "ignore": []},
    "modelopt_mxfp8": {"quant_algo": "MXFP8", "ignore": []},
    "mxfp8": {"quant_algo": "MXFP8", "ignore": []},
    "modelopt_mixed": {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"layer": {"quant_algo": "FP8"}},
        "ignore": [],
    },
    "compressed-tensors": compressed(
        "int-quantized", tensors(8, "int", "channel"), tensors(8, "int", "token", **TOKEN)
    ),
    "compressed-tensors static": compressed(
        "int-quantized", tensors(8, "int", "tensor"), tensors(8, "int", "tensor")
    ),
    "compressed-tensors w4a16": compressed(
        "pack-quantized", tensors(4, "int", "group", group_size=32)
    ),
    "compressed-tensors w4a8": compressed(
        "int-quantized",
        tensors(4, "int", "group", group_size=32),
        tensors(8, "int", "token", **TOKEN),
    ),
    "compressed-tensors fp8": compressed(
        "float-quantized", tensors(8, "float", "channel"), tensors(8, "float", "token", **TOKEN)
    ),
    "compressed-tensors nvfp4": compressed(
        "nvfp4-pack-quantized",
        tensors(4, "float", "tensor_group", group_size=16),
        tensors(4, "float", "tensor_group", group_size=16, dynamic="local"),
    ),
    "quark": {
        "quant_method": "quark",
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "global_quant_config": {
            "weight": {**INT8, "qscheme": "per_channel", "ch_axis": 0},
            "input_tensors": {**INT8, "qscheme": "per_tensor"},
            "output_tensors": None,
            "bias": None,
        },
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": [],
    },
    "experts_int8": {},
    "mxfp4": {},
    "gpt_oss_mxfp4": {},
    "torchao": {"quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}},
}


@dataclass(frozen=True)
class Outcome:
    """What a layer holds after a reload, against a fresh one."""

    #: Names whose bytes differ from those of a fresh layer.
    wrong: frozenset[str]
    #: Names in which two fresh layers differ: nothing is said of them.
    noise: frozenset[str]
    #: Names whose bytes differ from those before.
    changed: frozenset[str]
    #: Registered names whose storage is another one than before.
    moved: frozenset[str]
    #: Handles and reached tensors whose storage is another one than before.
    rebound: frozenset[str]
    #: Reached tensors that a fresh layer registers, and a reloaded one holds a second time.
    detached: frozenset[str]


@pytest.fixture(scope="module")
def vllm() -> Iterator[Any]:
    """A configuration as a worker has it, and one rank."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import config, distributed

    model = config.ModelConfig(str(LLAMA), skip_tokenizer_init=True, dtype="bfloat16")
    whole = config.VllmConfig(model_config=model)
    dtype = torch.get_default_dtype()
    with config.set_current_vllm_config(whole):
        where = f"tcp://127.0.0.1:{free_port()}"
        distributed.init_distributed_environment(1, 0, where, 0, "gloo")
        distributed.ensure_model_parallel_initialized(1, 1)
        torch.set_default_dtype(torch.bfloat16)
        yield whole
        torch.set_default_dtype(dtype)
    distributed.destroy_model_parallel()
    distributed.destroy_distributed_environment()


def free_port() -> int:
    from vllm.utils.network_utils import get_open_port

    return int(get_open_port())


def quantised(name: str) -> Any:
    from vllm.config.quantization import _ONLINE_SHORTHANDS
    from vllm.model_executor.layers.quantization import get_quantization_config

    method = name.split()[0]
    kind = get_quantization_config(method)
    if name in CONFIGS:
        made = kind.from_config(CONFIGS[name])
    else:
        made = kind(_ONLINE_SHORTHANDS["fp8_per_channel" if method == "online" else method])
    made.packed_modules_mapping = {}
    return made


def linear(config: Any) -> torch.nn.Module:
    from vllm.model_executor.layers.linear import ReplicatedLinear

    made: torch.nn.Module = ReplicatedLinear(
        INPUTS, OUTPUTS, bias=False, quant_config=config, prefix="layer"
    )
    return made


def large(config: Any) -> torch.nn.Module:
    """Too large for the packed kernel: oneDNN takes it."""
    from vllm.model_executor.layers.linear import ReplicatedLinear

    made: torch.nn.Module = ReplicatedLinear(
        1024, 4096, bias=False, quant_config=config, prefix="layer"
    )
    return made


def wide(config: Any) -> torch.nn.Module:
    """Of a dtype that is not packed."""
    from vllm.model_executor.layers.linear import ReplicatedLinear

    made: torch.nn.Module = ReplicatedLinear(
        INPUTS, OUTPUTS, bias=False, params_dtype=torch.float32, quant_config=config, prefix="layer"
    )
    return made


def embedding(config: Any) -> torch.nn.Module:
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    made: torch.nn.Module = VocabParallelEmbedding(OUTPUTS, INPUTS, quant_config=config)
    return made


def head(config: Any) -> torch.nn.Module:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    made: torch.nn.Module = ParallelLMHead(OUTPUTS, INPUTS, quant_config=config)
    return made


def experts(config: Any) -> torch.nn.Module:
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory

    # A layer of this name may be there from the one before.
    get_current_vllm_config().compilation_config.static_forward_context.clear()
    sizes = {"hidden_size": INPUTS, "intermediate_size": OUTPUTS}
    made: torch.nn.Module = FusedMoEFactory(
        EXPERTS, 2, **sizes, quant_config=config, prefix="layer.experts"
    )
    return made


def value(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """What a checkpoint may hold under this name."""
    random = torch.Generator().manual_seed(seed)
    if name.endswith("weight_shape"):
        return torch.tensor([OUTPUTS, INPUTS], dtype=dtype)
    if name.endswith("g_idx"):
        return (torch.arange(shape[0]) // 32).to(dtype)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        low, high = max(limits.min, -(2**31)), min(limits.max, 2**31 - 1)
        return torch.randint(low, high, shape, generator=random).to(dtype)
    drawn = torch.rand(shape, generator=random)
    return (drawn + 0.5 if "scale" in name else drawn - 0.5).to(dtype)


def load(model: torch.nn.Module, shapes: dict[str, Any], seed: int, without: str = "-") -> None:
    """The sources of a checkpoint but those that end so, through their parameters' loaders."""
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    for index, (name, (shape, dtype, turned)) in enumerate(shapes.items()):
        path, _, leaf = name.rpartition(".")
        if leaf.endswith(without):
            continue
        owner = model.get_submodule(path)
        for part, (size, how) in enumerate(parts(owner, leaf, shape, turned)):
            parameter = getattr(owner, leaf)
            loader = getattr(parameter, "weight_loader", default_weight_loader)
            loaded = value(name, size, dtype, seed * 10_000 + index * 100 + part)
            loader(parameter, loaded, **how)


Part = tuple[tuple[int, ...], dict[str, Any]]


def parts(
    owner: torch.nn.Module, leaf: str, shape: tuple[int, ...], turned: bool
) -> Iterator[Part]:
    """The sources of one parameter; experts are stacked, and their gate and up are fused."""
    if not leaf.startswith(("w13_", "w2_")):
        yield shape, {}
        return
    config = getattr(owner, "quant_config", None)
    if config is not None and config.get_name() == "gpt_oss_mxfp4":
        yield shape, {"weight_name": leaf, "shard_id": None, "expert_id": None}
        return
    shards = ("w1", "w3") if leaf.startswith("w13_") else ("w2",)
    size = list(shape[1:])
    if len(shape) < 3 and size in ([], [1], [2]):
        size = []
    elif len(shards) == 2 and not leaf.endswith("g_idx"):
        size[-1 if turned else 0] //= 2
    one = tuple(size)
    for expert in range(shape[0]):
        for shard in shards:
            name = f"layer.experts.{expert}.{shard}.{leaf.partition('_')[2]}"
            yield one, {"weight_name": name, "shard_id": shard, "expert_id": expert}


@dataclass(frozen=True)
class Held:
    """What one name leads to."""

    kind: str
    content: str | None
    storage: int


def census(model: torch.nn.Module, serials: Any) -> dict[str, Held]:
    """Each parameter and buffer, each handle, and each tensor beside them that the walk reaches."""
    from coldproof import digest, walk
    from coldproof.vllm import unit_vectors
    from coldproof.vllm.slots import Census

    found: dict[str, Held] = {}
    for name, slot in Census(model, set(), []).slots.items():
        if slot.layer is not None:
            read = digest(unit_vectors.read(slot.layer))
            found[name] = Held("handle", read, serials.of_handle(slot.layer.cpu_linear))
        elif slot.tensor is not None:
            content = None if slot.tensor.is_meta else digest(slot.tensor)
            found[name] = Held("registered", content, serials.of(slot.tensor))
    registered = {held.storage for held in found.values()}
    for path, tensor in walk(model).tensors:
        if tensor.numel() and not tensor.is_meta and serials.of(tensor) not in registered:
            content = NOT_READ if path.endswith(HANDLES) else digest(tensor)
            found[path] = Held("reached", content, serials.of(tensor))
    return found


def first_load(
    make: Make, config: Callable[[], Any], model_config: Any, seed: int
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A layer as a cold start leaves it, and its sources."""
    from vllm.model_executor.model_loader import reload
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    model = torch.nn.Module()
    model.layer = make(config())
    reload.record_metadata_for_reloading(model)
    shapes = {
        name: (tuple(one.shape), one.dtype, getattr(one, "is_transposed", False))
        for name, one in model.named_parameters()
    }
    load(model, shapes, seed)
    process_weights_after_loading(model, model_config, torch.device("cpu"))
    return model, shapes


def reloaded(make: Make, config: Callable[[], Any], model_config: Any) -> Outcome:
    """A, then B by a layerwise reload, against B alone."""
    from coldproof.vllm.slots import Serials
    from vllm.model_executor.model_loader import reload

    serials = Serials()

    def cold(seed: int) -> tuple[torch.nn.Module, dict[str, Any]]:
        return first_load(make, config, model_config, seed)

    model, shapes = cold(1)
    before = census(model, serials)
    reload.initialize_layerwise_reload(model)
    load(model, shapes, 2)
    reload.finalize_layerwise_reload(model, model_config)
    after = census(model, serials)
    fresh, again = census(cold(2)[0], serials), census(cold(2)[0], serials)
    noise = unlike(fresh, again)
    other = {name for name in before.keys() & after if before[name].storage != after[name].storage}
    moved = {name for name in other if before[name].kind == "registered"}
    detached = {name for name in after.keys() - fresh if after[name].kind == "reached"}
    return Outcome(
        wrong=unlike(after, fresh) - noise - detached,
        noise=noise,
        changed=unlike(before, after),
        moved=frozenset(moved),
        rebound=frozenset(other - moved),
        detached=frozenset(detached),
    )


def unlike(one: dict[str, Held], other: dict[str, Held]) -> frozenset[str]:
    """Names that hold other bytes, or are in one alone."""
    names = one.keys() | other.keys()
    both = one.keys() & other.keys()
    return frozenset(
        name for name in names if name not in both or one[name].content != other[name].content
    )


def outcome(make: Make, name: str, model_config: Any) -> Outcome | str:
    """What a reload leaves, or why there is no such layer on this machine."""
    try:
        return reloaded(make, lambda: quantised(name) if name else None, model_config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


NO_FP8 = "_scaled_fp8_quant() expected at most 0 argument(s)"
NO_NVFP4 = "Failed to find a kernel that can implement the NVFP4 linear layer"
NO_MXFP8 = "Failed to find a kernel that can implement the MXFP8 linear layer"
NO_ACT_ORDER = "GPTQ group activation ordering (desc_act=True) is no longer supported"
NO_HUMMING = "No module named 'humming'"
NO_TORCHAO = "Please install torchao"
#: Methods of which this build of vLLM makes no linear layer on CPU.
NO_LINEAR = {
    "gptq act-order": NO_ACT_ORDER,
    "humming": NO_HUMMING,
    "fp8": NO_FP8,
    "fp8_per_tensor": NO_FP8,
    "fbgemm_fp8": "has no attribute 'gptq_marlin_repack'",
    "modelopt_fp4": NO_NVFP4,
    "compressed-tensors nvfp4": NO_NVFP4,
    "modelopt_mxfp8": NO_MXFP8,
    "mxfp8": NO_MXFP8,
    "torchao": NO_TORCHAO,
}
#: Methods of which it makes no experts.
NO_EXPERTS = {
    "gptq act-order": NO_ACT_ORDER,
    "humming": NO_HUMMING,
    "torchao": NO_TORCHAO,
    "fp8": NO_FP8,
    "modelopt": NO_FP8,
    "online": NO_FP8,
    "fp8_per_tensor": NO_FP8,
    "fp8_per_channel": NO_FP8,
    "moe_wna16": "No WNA16 MoE backend",
    "compressed-tensors w4a16": "No WNA16 MoE backend",
    "compressed-tensors w4a8": "No W4A8 Int8 MoE backend",
    "compressed-tensors static": "Unsupported FusedMoe scheme",
    "compressed-tensors fp8": "Unsupported FP8 MoE backend",
    "compressed-tensors nvfp4": "No NvFp4 MoE backend",
    "modelopt_fp4": "No NvFp4 MoE backend",
    "nvfp4_per_token": "requires a Blackwell",
}
#: Methods that leave experts as they are.
PLAIN_EXPERTS = {"", "inc", "fbgemm_fp8", "fp_quant", "modelopt_mixed"}
STACKS = {"layer.w13_weight", "layer.w2_weight"}
#: The one parameter has two names, and only the first is loaded again.
SPLIT = {"compressed-tensors w4a8": {"layer.weight_packed"}}


def names() -> list[str]:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    variants = {name.split()[0] for name in CONFIGS}
    return ["", *CONFIGS, *(name for name in QUANTIZATION_METHODS if name not in variants)]


def is_there(found: Outcome | str, refused: str | None) -> bool:
    """Whether there is a layer to judge; a refusal must be the one that is known."""
    if isinstance(found, Outcome):
        assert refused is None, f"there is one now: take {refused!r} off the list"
        assert found.changed and not found.noise
        return True
    assert not AMX or (refused is not None and refused in found), found
    return False


def test_a_reloaded_linear_layer_is_a_fresh_one(vllm: Any) -> None:
    for name in names():
        found = outcome(linear, name, vllm.model_config)
        if is_there(found, NO_LINEAR.get(name)):
            assert isinstance(found, Outcome)
            assert found.wrong == SPLIT.get(name, set()), name
            assert (found.moved, found.detached) == (NOTHING, NOTHING), name


@pytest.mark.parametrize("make", [linear, large, wide, embedding, head])
def test_a_plain_layer_has_its_values_and_packs_them_anew(vllm: Any, make: Make) -> None:
    found = outcome(make, "", vllm.model_config)
    assert isinstance(found, Outcome), found
    assert (found.wrong, found.moved, found.detached) == (NOTHING, NOTHING, NOTHING)
    # No captured graph on CPU holds the packed copy, so nothing here goes wrong with it.
    assert found.rebound or not AMX


def test_reloaded_experts_have_their_values_and_scales_of_their_own(vllm: Any) -> None:
    for name in names():
        found = outcome(experts, name, vllm.model_config)
        if not is_there(found, NO_EXPERTS.get(name)):
            continue
        assert isinstance(found, Outcome)
        assert found.moved == NOTHING, name
        if name in PLAIN_EXPERTS:
            # Packed at the first load alone, by whatever kernel the processor has.
            assert found.wrong == STACKS or (not AMX and found.wrong == NOTHING), name
            continue
        # The object that multiplies is built anew over what was staged: the registered scales,
        # which hold the same bytes, are no longer the ones that it reads.
        assert found.wrong == NOTHING, name
        assert found.detached and all(
            path.endswith((".scale", ".zp", "scale_val")) for path in found.detached
        ), name


def test_scales_that_were_not_sent_are_neither_kept_nor_asked_for(vllm: Any) -> None:
    from vllm.model_executor.model_loader import reload

    if not AMX:
        with pytest.raises(ValueError, match="requires AMX"):
            first_load(linear, lambda: quantised("fp8 block"), vllm.model_config, 1)
        return
    model, shapes = first_load(linear, lambda: quantised("fp8 block"), vllm.model_config, 1)
    layer = model.get_submodule("layer")
    old = layer.weight_scale_inv.clone()
    reload.initialize_layerwise_reload(model)
    load(model, shapes, 2, without="weight_scale_inv")
    # What nobody wrote is then NaN and not what happened to be there.
    torch.use_deterministic_algorithms(True)
    try:
        reload.finalize_layerwise_reload(model, vllm.model_config)
    finally:
        torch.use_deterministic_algorithms(False)
    assert layer.weight_scale_inv.shape == old.shape
    assert layer.weight_scale_inv.isnan().all()


def test_sleep_mode_is_refused_on_cpu() -> None:
    from vllm.config import ModelConfig

    with pytest.raises(ValueError, match="Sleep mode is not supported on current platform"):
        ModelConfig(str(LLAMA), skip_tokenizer_init=True, enable_sleep_mode=True)
