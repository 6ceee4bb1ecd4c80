"""Real vLLM on one card: every cell in guarded processes, and a row for each at the end.

    run.py CHECKPOINTS NOTES       folders; the first is filled, the second gets an arm's findings

Rows go to stdout, everything else to stderr. COLDPROOF_VLLM_SECONDS is the time for all (280),
COLDPROOF_VLLM_SLOTS the processes at once (12), COLDPROOF_VLLM_CELLS a part of the cells' names.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

from cells import ARMS, CELLS, Cell, named
from processes import Task, can_fork_to_card, fork, run_all, spawn
from verdicts import HEADER, differing, row

HERE = Path(__file__).resolve().parent
MODELS = {
    "LlamaForCausalLM": "llama",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
}
AHEAD = (
    "vllm.v1.engine.llm_engine",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.mla.triton_mla",
    "vllm.model_executor.layers.fused_moe",
    "vllm.model_executor.layers.quantization.auto_gptq",
    "vllm.model_executor.layers.quantization.online.fp8",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
)


LONG = ("values", "captured", "scalars", "doing")
"""Findings that only the notes hold."""


def say(*words: object) -> None:
    """Say something beside the rows."""
    print(f"[{time.monotonic() - BEGAN:6.1f}]", *words, file=sys.stderr, flush=True)


BEGAN = time.monotonic()


def import_ahead() -> None:
    """Import what every arm needs, and give models by their classes.

    A registered class spares each arm a process that would only look at it.
    """
    from vllm import LLM, ModelRegistry  # noqa: F401

    for name in AHEAD:
        try:
            importlib.import_module(name)
        except Exception as error:
            say("not imported ahead:", name, repr(error))
    for name, module in MODELS.items():
        found = importlib.import_module(f"vllm.model_executor.models.{module}")
        ModelRegistry.register_model(name, getattr(found, name))


def one(cell: Cell, arm: str, checkpoints: Path, notes_path: Path) -> None:
    """Run one arm here; what stops it is written down."""
    import arm as arms

    notes = arms.Notes(notes_path)
    try:
        arms.run(cell, arm, checkpoints, notes)
    except BaseException as error:
        notes.saw("error", f"{type(error).__name__}: {error}")
        notes.saw("traceback", traceback.format_exc()[-4000:])
        raise


def tasks_for(cells: list[Cell], notes: Path) -> list[list[Task]]:
    """Return the arms in two waves: what is safe, then what may hang or fault the card."""
    made: dict[str, list[Task]] = {arm: [] for arm in ARMS}
    for number, cell in enumerate(sorted(cells, key=lambda cell: not cell.compiled)):
        for place, arm in enumerate(ARMS):
            stem = "-".join(f"{cell.name} {arm}".replace(",", "").split())
            port = 20000 + 100 * (len(ARMS) * number + place)
            task = Task(cell, arm, notes / f"{stem}.jsonl", notes / f"{stem}.log", port)
            made[arm].append(task)
    # A clean cell first: what is known to hang comes last.
    made["warm"].sort(key=lambda task: (task.cell.is_known, bool(task.cell.stale)))
    return [made["gated"] + made["fix"] + made["cold"], made["hold"] + made["warm"]]


def tails(tasks: list[Task]) -> None:
    """Print what each arm found, and the end of what it logged where it did not end well."""
    for task in tasks:
        say("==", task.cell.name, task.arm, task.ended, f"{task.seconds:.1f} s", task.doing)
        for name, value in task.findings.items():
            if not name.startswith("said") and name not in (
                "values",
                "captured",
                "scalars",
                "doing",
            ):
                print(f"   {name}: {value}", file=sys.stderr)
        if task.ended != "done" and task.log.exists():
            for line in task.log.read_text(errors="replace").splitlines()[-60:]:
                print(f"   | {line[:400]}", file=sys.stderr)


def main() -> int:
    """Run all; exit with 1 where a row fails."""
    try:
        # Only loaded: what is initialised here, a child cannot use.
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print("NOT COVERED", "vllm", f"no CUDA driver: {error}", sep="\t")
        return 0
    checkpoints, notes = Path(sys.argv[1]), Path(sys.argv[2])
    part = os.environ.get("COLDPROOF_VLLM_CELLS", "")
    cells = [cell for cell in CELLS if part in cell.name]
    deadline = BEGAN + float(os.environ.get("COLDPROOF_VLLM_SECONDS", "280"))
    slots = int(os.environ.get("COLDPROOF_VLLM_SLOTS", "12"))
    notes.mkdir(parents=True, exist_ok=True)
    names = sorted({cell.checkpoint for cell in cells})
    maker = [sys.executable, str(HERE / "checkpoints.py"), str(checkpoints), *names]
    with subprocess.Popen(maker) as making:
        import_ahead()
        say("imported")
    if making.returncode:
        print("FAIL", "vllm", f"checkpoints: exit {making.returncode}", sep="\t")
        return 1
    refused = can_fork_to_card()
    say("fork:", refused or "a child can use the card")

    def start(task: Task) -> int:
        if not refused:
            return fork(task, lambda own: one(own.cell, own.arm, checkpoints, own.notes))
        command = [sys.executable, str(HERE / "run.py"), "--one", task.cell.name, task.arm]
        return spawn(task, [*command, str(checkpoints), str(task.notes)])

    waves = tasks_for(cells, notes)
    for wave in waves:
        run_all(wave, start, slots, deadline)
        say("a wave is over")
    tasks = [task for wave in waves for task in wave]
    tails(tasks)
    for cell in cells:
        if found := differing({task.arm: task for task in tasks if task.cell is cell}):
            say(cell.name, "differs from cold B in", found)
    print(*HEADER, sep="\t")
    rows = []
    for cell in cells:
        arms = {task.arm: task for task in tasks if task.cell is cell}
        rows.append(row(arms))
        print(rows[-1], flush=True)
    failed = sum(found.verdict == "FAIL" for found in rows)
    say(f"{failed} of {len(rows)} cells fail")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        import_ahead()
        one(named(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5]))
        sys.stdout.flush()
        os._exit(0)
    sys.exit(main())
