"""Small checkpoints of random weights, A and B, that differ in every tensor.

Three layers, 256 wide, heads of 64; quantised forms are written as their tools write them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD = 3, 256, 4, 2, 64
INTERMEDIATE, MOE_INTERMEDIATE, EXPERTS, TOP_K, VOCAB = 512, 256, 16, 2, 512
LATENT, ROPE, NOPE, VALUE = 512, 64, 64, 128
GROUP, BITS, PACK = 128, 4, 8

Tensors = dict[str, torch.Tensor]
Linear = Callable[[Tensors, str, int, int], None]


class Writer:
    """Draws the tensors of one checkpoint."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.own = torch.Generator().manual_seed(seed)
        self.tensors: Tensors = {}

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Draw normal values, as bf16."""
        return (torch.randn(*shape, generator=self.own) * scale).to(torch.bfloat16)

    def bits(self, *shape: int) -> torch.Tensor:
        """Draw 32 random bits an element."""
        low, high = -(2**31), 2**31
        return torch.randint(low, high, shape, generator=self.own).to(torch.int32)

    def near(self, *shape: int) -> torch.Tensor:
        """Draw values between 0.5 and 1.5."""
        return 0.5 + torch.rand(*shape, generator=self.own)

    def norm(self, name: str, width: int) -> None:
        """Write the weight of a norm."""
        self.tensors[f"{name}.weight"] = self.near(width).to(torch.bfloat16)

    def dense(self, name: str, outputs: int, inputs: int) -> None:
        """Write a linear layer as bf16."""
        self.tensors[f"{name}.weight"] = self.normal(outputs, inputs, scale=inputs**-0.5)

    def order(self, inputs: int) -> torch.Tensor:
        """Draw an act-order: the group of each input."""
        perm = torch.randperm(inputs, generator=self.own)
        return (torch.arange(inputs)[perm] // GROUP).to(torch.int32)

    def gptq(self, name: str, outputs: int, inputs: int, order: torch.Tensor) -> None:
        """Write a linear layer of four bits with an act-order, as GPTQ tools do."""
        groups = inputs // GROUP
        scales = self.near(groups, outputs) / (4.6 * math.sqrt(inputs))
        self.tensors[f"{name}.qweight"] = self.bits(inputs // PACK, outputs)
        zeros = torch.full((groups, outputs // PACK), 0x77777777, dtype=torch.int32)
        self.tensors[f"{name}.qzeros"] = zeros
        self.tensors[f"{name}.scales"] = scales.to(torch.bfloat16)
        self.tensors[f"{name}.g_idx"] = order.clone()

    def packed(self, name: str, outputs: int, inputs: int) -> None:
        """Write a linear layer of four bits in groups, as compressed-tensors does."""
        scales = self.near(outputs, inputs // GROUP) / (4.6 * math.sqrt(inputs))
        self.tensors[f"{name}.weight_packed"] = self.bits(outputs, inputs // PACK)
        self.tensors[f"{name}.weight_scale"] = scales.to(torch.bfloat16)
        self.tensors[f"{name}.weight_shape"] = torch.tensor([outputs, inputs])

    def nvfp4(self, name: str, outputs: int, inputs: int, level: float) -> None:
        """Write a linear layer of FP4 with a scale for each 16 inputs and one for all."""
        scales = 448 * self.near(outputs, inputs // 16) / 1.5
        bits = torch.randint(0, 256, (outputs, inputs // 2), generator=self.own)
        self.tensors[f"{name}.weight_packed"] = bits.to(torch.uint8)
        self.tensors[f"{name}.weight_scale"] = scales.to(torch.float8_e4m3fn)
        self.tensors[f"{name}.weight_global_scale"] = torch.tensor([level])


def _llama(writer: Writer, form: str) -> None:
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        writer.norm(f"{at}.input_layernorm", HIDDEN)
        writer.norm(f"{at}.post_attention_layernorm", HIDDEN)
        widths = (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD)
        attention = dict(zip(("q_proj", "k_proj", "v_proj"), widths, strict=True))
        wanted = [
            ({f"self_attn.{name}": width for name, width in attention.items()}, HIDDEN),
            ({"self_attn.o_proj": HIDDEN}, HEADS * HEAD),
            ({"mlp.gate_proj": INTERMEDIATE, "mlp.up_proj": INTERMEDIATE}, HIDDEN),
            ({"mlp.down_proj": HIDDEN}, INTERMEDIATE),
        ]
        for shards, inputs in wanted:
            # What one fused layer multiplies at once has one order.
            order = writer.order(inputs)
            for name, outputs in shards.items():
                if form == "gptq":
                    writer.gptq(f"{at}.{name}", outputs, inputs, order)
                else:
                    writer.dense(f"{at}.{name}", outputs, inputs)


def _attention(writer: Writer, at: str) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        heads = HEADS if name == "q_proj" else KV_HEADS
        writer.dense(f"{at}.self_attn.{name}", heads * HEAD, HIDDEN)
    writer.dense(f"{at}.self_attn.o_proj", HIDDEN, HEADS * HEAD)
    writer.norm(f"{at}.self_attn.q_norm", HEAD)
    writer.norm(f"{at}.self_attn.k_norm", HEAD)


def _qwen3_moe(writer: Writer, form: str) -> None:
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        writer.norm(f"{at}.input_layernorm", HIDDEN)
        writer.norm(f"{at}.post_attention_layernorm", HIDDEN)
        _attention(writer, at)
        writer.dense(f"{at}.mlp.gate", EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            # Gate and up are one layer, with one scale of all.
            levels = 9600 * (1 + 0.1 * torch.rand(2, generator=writer.own))
            for name in ("gate_proj", "up_proj", "down_proj"):
                down = name == "down_proj"
                shape = (HIDDEN, MOE_INTERMEDIATE) if down else (MOE_INTERMEDIATE, HIDDEN)
                path = f"{at}.mlp.experts.{expert}.{name}"
                if form == "nvfp4":
                    writer.nvfp4(path, *shape, float(levels[int(down)]))
                elif form in ("w4a8", "wna16"):
                    writer.packed(path, *shape)
                else:
                    writer.dense(path, *shape)


def _deepseek_v2(writer: Writer, form: str) -> None:
    del form
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        writer.norm(f"{at}.input_layernorm", HIDDEN)
        writer.norm(f"{at}.post_attention_layernorm", HIDDEN)
        writer.dense(f"{at}.self_attn.q_proj", HEADS * (NOPE + ROPE), HIDDEN)
        writer.dense(f"{at}.self_attn.kv_a_proj_with_mqa", LATENT + ROPE, HIDDEN)
        writer.norm(f"{at}.self_attn.kv_a_layernorm", LATENT)
        writer.dense(f"{at}.self_attn.kv_b_proj", HEADS * (NOPE + VALUE), LATENT)
        writer.dense(f"{at}.self_attn.o_proj", HIDDEN, HEADS * VALUE)
        writer.dense(f"{at}.mlp.gate_proj", INTERMEDIATE, HIDDEN)
        writer.dense(f"{at}.mlp.up_proj", INTERMEDIATE, HIDDEN)
        writer.dense(f"{at}.mlp.down_proj", HIDDEN, INTERMEDIATE)


_COMMON: dict[str, Any] = {
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": 512,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

_MODELS: dict[str, tuple[Callable[[Writer, str], None], dict[str, Any]]] = {
    "llama": (
        _llama,
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
        },
    ),
    "qwen3_moe": (
        _qwen3_moe,
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP_K,
            "moe_intermediate_size": MOE_INTERMEDIATE,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "deepseek_v2": (
        _deepseek_v2,
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_key_value_heads": HEADS,
            "first_k_dense_replace": LAYERS,
            "q_lora_rank": None,
            "kv_lora_rank": LATENT,
            "qk_rope_head_dim": ROPE,
            "qk_nope_head_dim": NOPE,
            "v_head_dim": VALUE,
        },
    ),
}


def _compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> Any:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": form,
        "config_groups": {"group_0": {**group, "format": form}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp[.]gate$"],
    }


_INT4 = {
    "num_bits": BITS,
    "type": "int",
    "strategy": "group",
    "group_size": GROUP,
    "symmetric": True,
    "dynamic": False,
}
_FP4 = {**_INT4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_FP8_TOKENS = {
    "num_bits": 8,
    "type": "float",
    "strategy": "token",
    "symmetric": True,
    "dynamic": True,
}

_QUANTIZATION: dict[str, Any] = {
    "gptq": {
        "quant_method": "gptq",
        "bits": BITS,
        "group_size": GROUP,
        "desc_act": True,
        "sym": True,
        "lm_head": False,
        "checkpoint_format": "gptq",
    },
    "wna16": _compressed("pack-quantized", _INT4, None),
    "w4a8": _compressed("pack-quantized", _INT4, _FP8_TOKENS),
    "nvfp4": _compressed("nvfp4-pack-quantized", _FP4, None),
}


def write(folder: Path, model: str, form: str, seed: int) -> None:
    """Write one checkpoint."""
    body, own = _MODELS[model]
    writer = Writer(seed)
    writer.tensors["model.embed_tokens.weight"] = writer.normal(VOCAB, HIDDEN)
    body(writer, form)
    writer.norm("model.norm", HIDDEN)
    writer.tensors["lm_head.weight"] = writer.normal(VOCAB, HIDDEN, scale=HIDDEN**-0.5)
    config = {**_COMMON, **own}
    if form in _QUANTIZATION:
        config["quantization_config"] = _QUANTIZATION[form]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(writer.tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Write A and B of every ``MODEL-FORM`` that is named after a folder."""
    root = Path(sys.argv[1])
    for which in sys.argv[2:]:
        model, form = which.rsplit("-", 1)
        write(root / which / "A", model, form, seed=1)
        write(root / which / "B", model, form, seed=2)


if __name__ == "__main__":
    main()
