"""Writes a llama of 1.1 billion random parameters in BF16: 146 tensors, 2.2 GB.

Usage: ``python python/benches/llama_1b.py FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, INNER, VOCABULARY, HEADS, KV_HEADS = 2048, 16, 8192, 32_000, 32, 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint."""
    kv = HIDDEN * KV_HEADS // HEADS
    layer = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    layers = {f"model.layers.{at}.{n}": s for at in range(LAYERS) for n, s in layer.items()}
    vocabulary = (VOCABULARY, HIDDEN)
    ends = {"model.embed_tokens": vocabulary, "lm_head": vocabulary, "model.norm": (HIDDEN,)}
    return {f"{name}.weight": shape for name, shape in (layers | ends).items()}


def main() -> None:
    """Writes it."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tensors = {name: (torch.randn(s) * 0.02).bfloat16() for name, s in shapes().items()}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, folder / "model.safetensors")


if __name__ == "__main__":
    main()
