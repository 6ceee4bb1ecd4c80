"""Make the fixture `deepseek_v3_mtp`: a DeepSeek-V3 with a layer that predicts a further token.

    pip install "transformers>=5.16,<5.21" torch safetensors
    python make_mtp.py OUTPUT_FOLDER

`transformers` has the layer's parts and not the layer: it is put together here from its decoder
layer and norms as the DeepSeek-V3 report has it (section 2.2). Each token's embedding and the
hidden row before it, both normed, are joined and projected; row `i` is of token `i + 1`. Weights
are bfloat16; the logits are computed in float32 from the rounded values.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3RMSNorm,
)

VOCABULARY = 331
CONFIG = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 176,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "q_lora_rank": 40,
    "kv_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,
    "max_position_embeddings": 256,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}
PROMPT = [(7 * i + 3) % (VOCABULARY - 1) for i in range(24)]


class Head(nn.Module):
    """A norm and a head of its own."""

    def __init__(self, config):
        super().__init__()
        self.norm = DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


class Mtp(DeepseekV3DecoderLayer):
    """The layer behind the model's own."""

    def __init__(self, config):
        super().__init__(config, config.num_hidden_layers)
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.enorm = DeepseekV3RMSNorm(hidden, config.rms_norm_eps)
        self.hnorm = DeepseekV3RMSNorm(hidden, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.shared_head = Head(config)

    def logits(self, tokens, hidden, rotary):
        """Of the token after each of `tokens`, which stand behind the rows of `hidden`."""
        joined = torch.cat([self.enorm(self.embed_tokens(tokens)), self.hnorm(hidden)], dim=-1)
        x = self.eh_proj(joined)
        length = tokens.shape[-1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
        angles = rotary(x, positions)
        x = self(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
        x = x[0] if isinstance(x, tuple) else x
        return self.shared_head.head(self.shared_head.norm(x))


def fill(module, generator):
    """Fill every parameter with a sensible scale."""
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            matrix = noise * (0.7 / parameter.shape[-1] ** 0.5)
            parameter.copy_(matrix if parameter.dim() > 1 else 1.0 + 0.2 * noise)
        for name, buffer in sorted(module.named_buffers()):
            if "e_score_correction_bias" in name:
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)


def main(out):
    """Write both checkpoints and what is expected of them."""
    expected = {"prompt": PROMPT, "dtype": "bfloat16"}
    for version, seed in (("A", 1001), ("B", 2002)):
        folder = pathlib.Path(out) / version
        generator = torch.Generator().manual_seed(seed)
        config = AutoConfig.for_model("deepseek_v3", **CONFIG)
        config.torch_dtype = torch.bfloat16
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config).float()
        layer = Mtp(config).float()
        fill(model, generator)
        fill(layer, generator)
        model.to(torch.bfloat16).save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        path = f"model.layers.{CONFIG['num_hidden_layers']}"
        own = {f"{path}.{name}": value for name, value in layer.state_dict().items()}
        stacks = {name for name in own if ".experts." in name}
        for name in sorted(stacks):
            own.update(single_experts(name, own.pop(name)))
        weights.update({name: value.to(torch.bfloat16).contiguous() for name, value in own.items()})
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        model = model.float().eval()
        layer = layer.to(torch.bfloat16).float().eval()
        with torch.no_grad():
            tokens = torch.tensor([PROMPT])
            hidden = model.model(tokens).last_hidden_state
            last = model.lm_head(hidden)[0, -1]
            drafted = layer.logits(tokens[:, 1:], hidden[:, :-1], model.model.rotary_emb)[0, -1]
            ids = list(PROMPT)
            for _ in range(8):
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        rounded = [[round(float(x), 6) for x in row] for row in (last, drafted)]
        logits = {"last_logits": rounded[0], "draft_logits": rounded[1]}
        expected[version] = {**logits, "greedy": ids[len(PROMPT) :]}
    (pathlib.Path(out) / "expected.json").write_text(json.dumps(expected))


def single_experts(name, stack):
    """A source an expert and projection, as published checkpoints have them."""
    owner, kind = name.rsplit(".", 1)
    for expert, matrix in enumerate(stack):
        if kind == "down_proj":
            yield f"{owner}.{expert}.down_proj.weight", matrix
        else:
            gate, up = matrix.chunk(2)
            yield f"{owner}.{expert}.gate_proj.weight", gate
            yield f"{owner}.{expert}.up_proj.weight", up


if __name__ == "__main__":
    main(sys.argv[1])
