"""Whole runs of the installed command line on the vLLM of this interpreter."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
CHECKPOINTS = HERE.parents[2] / "testdata" / "checkpoints"
COLDPROOF = Path(sysconfig.get_path("scripts")) / "coldproof"
#: Ends a run that hangs, in seconds. It takes half a minute on two idle cores.
LIMIT = 400


@pytest.fixture(scope="session")
def packs_linear_layers() -> bool:
    """Whether vLLM gives the weights of linear layers to oneDNN, which then has its own copy."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def coldproof(*arguments: str | Path, fault: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the console script, with a fault of ``plugin/seeded_faults.py`` in its vLLM."""
    command = [str(COLDPROOF), *map(str, arguments)]
    seeded = {"PYTHONPATH": str(HERE / "plugin"), "SEEDED_FAULT": fault} if fault else {}
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, **seeded},
    )


@dataclass(frozen=True)
class Proof:
    """How a run ended and what it says."""

    code: int
    verdict: dict[str, Any]
    evidence: Path
    log: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        """All findings, as the verdict has them."""
        found: list[dict[str, Any]] = self.verdict["findings"]
        return found

    @property
    def summary(self) -> list[tuple[str, str, str]]:
        """Code, object and what was seen, of each finding: what an assertion shows."""
        return [(one["code"], one["object"], one["actual"]) for one in self.findings]

    def objects(self, code: str | None = None) -> list[str]:
        """The sorted objects of the findings with this code, or of all."""
        return sorted(one["object"] for one in self.findings if code in {None, one["code"]})

    def events(self, code: str, about: str) -> str:
        """The events of one finding, a line each."""
        found = [one for one in self.findings if (one["code"], one["object"]) == (code, about)]
        return "\n".join(event["text"] for one in found for event in one["events"])

    def category(self, number: int) -> dict[str, Any]:
        """What is said of one category."""
        return next(one for one in self.verdict["categories"] if one["category"] == number)

    def judged_again(self, *options: str) -> int:
        """The exit code of ``coldproof check`` on the evidence of this run."""
        return coldproof("check", self.evidence, *options).returncode


@dataclass(frozen=True)
class Pair:
    """Two checkpoints of one model."""

    a: Path
    b: Path

    def sources(self) -> list[str]:
        """The names in B, sorted: the order in which they are delivered."""
        with (self.b / "model.safetensors").open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return sorted(name for name in header if name != "__metadata__")

    def identity(self) -> Pair:
        """A twice."""
        return Pair(self.a, self.a)

    def changed(self, folder: Path, a: Change, b: Change, **config: object) -> Pair:
        """Copies that hold other tensors, and other words in their configuration."""
        first = rewritten(self.a, folder / "A", a, config)
        return Pair(first, rewritten(self.b, folder / "B", b, config))


def rewritten(checkpoint: Path, out: Path, change: Change, config: dict[str, object]) -> Path:
    """A copy of a checkpoint with other tensors, and other words in its configuration."""
    out.mkdir(parents=True)
    for file in checkpoint.glob("*.json"):
        shutil.copy(file, out / file.name)
    known = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps({**known, **config}), encoding="utf-8")
    tensors = change(load_file(checkpoint / "model.safetensors"))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Tensors]
Pairs = Callable[[str], Pair]
Prove = Callable[..., Proof]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """The checkpoints of a family; B is made of A where the repository has none."""
    made: dict[str, Path] = {}

    def checkpoints(family: str) -> Pair:
        a, b = CHECKPOINTS / family / "A", CHECKPOINTS / family / "B"
        if b.is_dir():
            return Pair(a, b)
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family) / "B"
            done = coldproof("perturb", a, made[family], "--seed", "7")
            assert done.returncode == 0, done.stderr
        return Pair(a, made[family])

    return checkpoints


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """This interpreter, with vLLM imported once for all engines."""
    forked = runpy.run_path(str(HERE / "forked.py"))
    with forked["interpreter"](tmp_path_factory.mktemp("interpreter")) as path:
        yield path


@pytest.fixture(scope="session")
def prove(pair: Pairs, interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Prove:
    """``prove(family or pair, *options)``: an update from A to B of this interpreter's vLLM."""
    proofs: dict[tuple[object, ...], Proof] = {}

    def run(of: str | Pair, *options: str, fault: str = "", python: str = interpreter) -> Proof:
        key = (of, fault, python, *options)
        if key not in proofs:
            both = pair(of) if isinstance(of, str) else of
            out = tmp_path_factory.mktemp("out")
            engine = ["--engine", "vllm", "--python", python, "--format", "json"]
            there = ["--from", str(both.a), "--to", str(both.b), "--out", str(out)]
            done = coldproof("prove", *engine, *there, *options, fault=fault)
            assert done.returncode in {0, 1, 3}, done.stderr[-4000:]
            verdict = json.loads(done.stdout)
            assert verdict["engine"]["kind"] == "vllm"
            evidence = out / "evidence.jsonl"
            proofs[key] = Proof(done.returncode, verdict, evidence, done.stderr)
        return proofs[key]

    return run
