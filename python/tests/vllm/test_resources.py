"""What updates cost in memory: twenty of them, on a whole engine in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vllm.conftest import Pairs

RELOADS = """
import json, os, sys
from coldproof.vllm import versions
versions.set_environment()
from vllm import LLM
a, b = sys.argv[1:]
llm = LLM(
    model=a, skip_tokenizer_init=True, enforce_eager=True, block_size=32, max_model_len=128
)
held = []
for turn in range(20):
    llm.collective_rpc("reload_weights", kwargs={"weights_path": (b, a)[turn % 2]})
    with open("/proc/self/statm") as file:
        held.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
print(json.dumps(held))
"""


def test_twenty_updates_keep_nothing_of_the_old_ones(pair: Pairs) -> None:
    both = pair("llama")
    done = subprocess.run(
        [sys.executable, "-c", RELOADS, both.a, both.b],
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    held = json.loads(done.stdout.splitlines()[-1])
    model = (both.b / "model.safetensors").stat().st_size
    # One copy of the model kept at each update would be ten of them.
    assert held[-1] - held[9] < 3 * model, [bytes - held[0] for bytes in held]
