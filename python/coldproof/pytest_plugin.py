"""A pytest plugin: the lanes of ``coldproof prove`` inside an engine's own test suite.

It is loaded by pytest itself where this package is installed, and imports neither torch nor an
engine: each proof runs in processes of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from coldproof.errors import ColdproofError

Status = Literal["pass", "fail", "undecided", "not_covered"]
Verdict = Literal["pass", "fail", "undecided"]
Via = Literal["reload-iterator", "reload-path", "transfer", "load-weights"]


@dataclass(frozen=True)
class Category:
    """What was shown for one category, or for the transition."""

    name: str
    status: Status
    checks: int
    """Comparisons of what was observed."""
    reason: str | None


@dataclass(frozen=True)
class Finding:
    """Something that a cold load would not have: ``docs/codes/`` has a page for each code."""

    code: str
    object: str
    ranks: tuple[int, ...]
    expected: str
    actual: str
    why: str
    known: str | None
    """Where it is reported, when the list of known findings has it."""


@dataclass(frozen=True)
class Proof:
    """One run of ``coldproof prove`` that came to a verdict."""

    verdict: Verdict
    exit_code: int
    """0 proven, 1 a finding, 3 something required is undecided or not covered."""
    findings: tuple[Finding, ...]
    categories: Mapping[int, Category]
    """By number, 1 to 7."""
    transition: Category
    unseen: tuple[str, ...]
    """What no output showed: it was judged by its content alone."""
    text: str
    """The verdict as a terminal shows it."""
    folder: Path
    """``verdict.json``, ``junit.xml`` and ``evidence.jsonl``."""

    @property
    def evidence(self) -> Path:
        """What ``coldproof check`` judges again."""
        return self.folder / "evidence.jsonl"


class ReloadProof:
    """What the fixture :func:`reload_proof` gives: call it once for each update to prove."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0

    def __call__(  # noqa: PLR0913 - one name for each option of the command line
        self,
        *,
        engine: str,
        from_: str | Path | None = None,
        to: str | Path | None = None,
        require: Iterable[int | Literal["transition"]] | None = None,
        lanes: Iterable[str] | None = None,
        tp: int | None = None,
        via: Via | None = None,
        known: str | Path | None = None,
        payload: Iterable[str] = (),
        skip: Iterable[str] = (),
        adapter_from: str | Path | None = None,
        adapter_to: str | Path | None = None,
        adapter_via: str | None = None,
        engine_args: Mapping[str, Any] | None = None,
        fault: Iterable[str] = (),
        seed: int = 0,
        deadline: int | None = None,
        check: bool = True,
    ) -> Proof:
        """Prove one live update in processes of their own, with this interpreter.

        The arguments are the options of ``coldproof prove``. Without ``check`` a verdict that is
        not a pass is returned instead of raised. Nothing is ever skipped.

        Raises:
            AssertionError: not all that is required is proven; the message is the verdict.
            ColdproofError: no verdict was reached (bad input, or a bug), with what was said.
        """
        self._runs += 1
        folder = self._folder / f"proof-{self._runs}"
        command = [sys.executable, "-m", "coldproof", "prove", "--engine", engine]
        command += ["--out", str(folder), "--seed", str(seed)]
        if engine != "reference":
            command += ["--python", sys.executable]
        single = {"from": from_, "to": to, "tp": tp, "via": via, "known": known}
        single |= {"adapter-from": adapter_from, "adapter-to": adapter_to}
        single |= {"adapter-via": adapter_via, "deadline": deadline}
        for name, value in single.items():
            if value is not None:
                command += [f"--{name}", str(value)]
        arguments = [f"{name}={json.dumps(v)}" for name, v in (engine_args or {}).items()]
        many = {"payload": payload, "skip": skip, "lane": lanes or (), "fault": fault}
        many["engine-arg"] = arguments
        for name, values in many.items():
            for value in values:
                command += [f"--{name}", value]
        if require is not None:
            command += ["--require", ",".join(str(item) for item in require)]
        proof = _run(command, folder)
        if check and proof.exit_code != 0:
            raise AssertionError(proof.text)
        return proof


def _run(command: list[str], folder: Path) -> Proof:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    # What the engine logged, for pytest to show where the test fails.
    sys.stderr.write(done.stderr)
    if done.returncode not in (0, 1, 3):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        first = next((n for n, line in enumerate(said) if line.startswith("error:")), 0)
        raise ColdproofError("\n".join(said[first:]) or f"it exited with {done.returncode}")
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    shown = {entry["category"]: _category(entry) for entry in verdict["categories"]}
    return Proof(
        verdict=verdict["verdict"],
        exit_code=done.returncode,
        findings=tuple(_finding(entry) for entry in verdict["findings"]),
        categories=shown,
        transition=_category({"name": "transition", **verdict["transition"]}),
        unseen=tuple(verdict["unseen"]),
        text=done.stdout,
        folder=folder,
    )


def _category(entry: Mapping[str, Any]) -> Category:
    return Category(entry["name"], entry["status"], entry["checks"], entry["reason"])


def _finding(entry: Mapping[str, Any]) -> Finding:
    names = ("code", "object", "expected", "actual", "why", "known")
    return Finding(ranks=tuple(entry["ranks"]), **{name: entry[name] for name in names})


@pytest.fixture
def reload_proof(tmp_path: Path) -> ReloadProof:
    """Proves live updates: see :class:`ReloadProof`. Evidence lies below ``tmp_path``."""
    return ReloadProof(tmp_path)
