"""Hold the embedded engine's cold SmolLM2 against what transformers computed (`expected.json`).

    python check.py COLDPROOF A B

Speaks the engine protocol (docs/adapters.md) with `COLDPROOF agent`: a cold load of each
checkpoint, one prompt, the greedy tokens after it. Exits 1 unless the greedy tokens are the same
and the largest logits of the prompt's last position agree within a thousandth of the largest.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import struct
import subprocess
import sys
from typing import Any

TOLERANCE = 1e-3
DEADLINE_MS = 300_000


class Agent:
    """The embedded engine in a process of its own."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [program, "agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the agent has no pipes")
        self.process.stdin.write(json.dumps({"command": command, **fields}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the agent ended at `{command}`")
        answer: dict[str, Any] = json.loads(line)
        if answer["answer"] == "failed":
            sys.exit(f"`{command}` failed: {answer['error']}")
        return answer

    def end(self) -> None:
        """Shut the engine down."""
        self.ask("shutdown")
        self.process.wait(timeout=60)


def tensors_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    """References to all tensors of `model.safetensors`, read from its header."""
    path = folder / "model.safetensors"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    references = []
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            references.append(
                {
                    "name": name,
                    "file": str(path),
                    "offset": 8 + length + begin,
                    "bytes": end - begin,
                    "dtype": tensor["dtype"],
                    "shape": tensor["shape"],
                }
            )
    return references


def answer(program: str, folder: pathlib.Path, prompt: list[int], tokens: int) -> dict[str, Any]:
    """The last row of logits of the prompt and the greedy tokens, by a cold engine."""
    agent = Agent(program)
    agent.ask(
        "initialize",
        spec={
            "model": str(folder),
            "topology": {"tp": 1, "pp": 1, "ep": 1},
            "seed": 0,
            "arena_base": 0x7E00_0000_0000,
            "reversed_allocation": False,
            "faults": [],
            "lying": False,
            "deadline_ms": DEADLINE_MS,
        },
    )
    agent.ask("load", tensors=tensors_of(folder))
    output = agent.ask(
        "generate",
        request={
            "name": "expected",
            "prompt": prompt,
            "forced": [],
            "greedy": tokens,
            "mode": "eager",
            "use_prefix_cache": False,
        },
    )
    agent.end()
    rows = dict(output["rows"])
    bits = rows[len(prompt) - 1]
    logits = struct.unpack(f"<{len(bits)}f", struct.pack(f"<{len(bits)}I", *bits))
    return {"logits": logits, "greedy": output["greedy"]}


def compare(label: str, found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    wrong = []
    if found["greedy"] != expected["greedy"]:
        wrong.append(f"{label}: greedy {found['greedy']}, expected {expected['greedy']}")
    limit = TOLERANCE * max(abs(value) for _, value in expected["top_logits"])
    worst = max(abs(found["logits"][token] - value) for token, value in expected["top_logits"])
    print(f"{label}: max |Δ| {worst:.2e}, limit {limit:.2e}, greedy {found['greedy']}")
    # Written so that a NaN is wrong too.
    if not worst <= limit:
        wrong.append(f"{label}: a logit is off by {worst:.2e}, more than {limit:.2e}")
    floor = min(value for _, value in expected["top_logits"])
    named = {token for token, _ in expected["top_logits"]}
    others = [value for token, value in enumerate(found["logits"]) if token not in named]
    if not max(others) <= floor + limit:
        wrong.append(f"{label}: a logit that is not among the largest is {max(others):.4f}")
    return wrong


def main(program: str, a: str, b: str) -> None:
    """Check both checkpoints."""
    expected = json.loads(pathlib.Path(__file__).with_name("expected.json").read_text())
    wrong = []
    for label, folder in (("A", pathlib.Path(a)), ("B", pathlib.Path(b))):
        weights = (folder / "model.safetensors").read_bytes()
        if hashlib.sha256(weights).hexdigest() != expected[label]["sha256"]:
            sys.exit(f"{label} is not the checkpoint of expected.json: see expected.py")
        tokens = len(expected[label]["greedy"])
        found = answer(program, folder, expected["prompt"], tokens)
        wrong += compare(label, found, expected[label])
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} COLDPROOF A B")
    main(*sys.argv[1:])
