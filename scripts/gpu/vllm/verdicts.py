"""What the arms of a cell say together: one row for each cell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from processes import Task

HEADER = (
    "verdict",
    "cell",
    "moved+gone",
    "captured",
    "stale (probe)",
    "gate",
    "warm",
    "hold",
    "fix",
    "values",
    "why",
)


@dataclass
class Row:
    """One cell's row."""

    cells: tuple[str, ...]
    verdict: str
    reasons: list[str]

    def __str__(self) -> str:
        """Say it as columns between tabs, the verdict first."""
        why = "; ".join(self.reasons)
        return "\t".join((self.verdict, *self.cells, why))


def row(arms: dict[str, Task]) -> Row:
    """Judge one cell by its arms."""
    cell = next(iter(arms.values())).cell
    gated = arms["gated"]
    stale = _stale(gated, "after the update")
    reasons: list[str] = []
    if stale is None:
        verdict = "FAIL" if cell.is_known else "NOT COVERED"
        reasons.append(f"gated: {_why(gated)}")
    else:
        reasons += _faults(arms, stale)
        verdict = "FAIL" if reasons else "pass"
        reasons += _remarks(arms, stale)
    moved, gone = gated.findings.get("moved", []), gated.findings.get("gone", [])
    columns = (
        cell.name,
        f"{len(moved)}+{len(gone)}" if stale is not None else "-",
        _captured(gated),
        f"{_text(stale)} ({'new' if cell.stale is None else cell.stale})",
        gated.findings.get("resume", "-"),
        _truth(arms, "warm", "warm"),
        _truth(arms, "hold", "hold"),
        _truth(arms, "fix", "fix"),
        _values(arms),
    )
    return Row(columns, verdict, reasons)


def _faults(arms: dict[str, Task], stale: int) -> list[str]:
    """Say what is not as it should be."""
    gated, cold = arms["gated"], arms["cold"]
    cell, wrong = gated.cell, []
    if _stale(gated, "while serving"):
        wrong.append("the gate speaks while nothing was updated")
    if gated.findings.get("undecided"):
        wrong.append(f"undecided: {gated.findings['undecided'][0]}")
    missed = gated.findings.get("parameters no graph retains", [])
    # What multiplies the last hidden state does so outside of every graph.
    if cell.is_plain and missed != ["lm_head.weight"]:
        wrong.append(f"the census lacks {missed}")
    if "said cold" not in cold.findings:
        wrong.append(f"no cold B: {_why(cold)}")
    if cell.is_known and stale != cell.stale:
        wrong.append(f"a probe saw {cell.stale} stale addresses")
    held = _truth(arms, "hold", "hold")
    if not cell.is_known and stale and _truth(arms, "warm", "warm") == _ALL:
        wrong.append("flagged, and right without the gate")
    # Old memory that is held is there; only sleep takes what lies in it away.
    kept = held.startswith(("bit", "wrong")) or (cell.sleep and not cell.is_known)
    if not kept or ((cell.outlives or stale == 0) and held != _ALL):
        wrong.append(f"with all that is old held: {held}")
    return wrong + (_unflagged(arms) if stale == 0 else _unmended(arms))


def _unflagged(arms: dict[str, Task]) -> list[str]:
    """Say what speaks against a silent gate."""
    wrong = []
    if (seen := _truth(arms, "gated", "gated")) != _ALL:
        wrong.append(f"silent, and yet {seen}")
    if (seen := _truth(arms, "warm", "warm")) not in (_ALL, "-"):
        wrong.append(f"silent, and without the gate {seen}")
    if (seen := _truth(arms, "cold", "control")) not in (_ALL, "-"):
        wrong.append(f"a reload of the same weights gave {seen}")
    return wrong


def _unmended(arms: dict[str, Task]) -> list[str]:
    """Say what speaks against a gate that flags: the mended engine must be silent and right."""
    repaired = _stale(arms["fix"], "after the repair")
    if repaired is None:
        return [f"no repair: {_why(arms['fix'])}"]
    if repaired:
        return [f"{repaired} stale after the repair"]
    seen = _truth(arms, "fix", "fix")
    return [] if seen == _ALL else [f"silent after the repair, and yet {seen}"]


def _remarks(arms: dict[str, Task], stale: int) -> list[str]:
    """Say what a reader wants to know beside the verdict."""
    cell, said = arms["gated"].cell, []
    if any(kinds := arms["gated"].findings.get("moved paths", {}).values()):
        said.append("moved paths: {} stale, {} harmless, {} in no graph".format(*kinds))
    if not cell.is_known:
        said.append(f"{cell.row}: {'promote' if stale else 'clear'}")
    if found := differing(arms):
        names = ", ".join(sorted({re.sub(r"^[^ ]*[.]", "", text) for text in found}))
        said.append(f"{len(found)} captured tensors hold other values than in cold B: {names}")
    if cell.configured:
        said.append("`reload_weights` alone raises: no current vLLM config is set")
    if stale and _truth(arms, "warm", "warm") == _ALL:
        said.append("stale, though this run shows nothing")
    return said


_ALL = "bit 6/6"


def _truth(arms: dict[str, Task], arm: str, name: str) -> str:
    """Hold what an arm generated against cold B."""
    task, cold = arms.get(arm), arms["cold"].findings.get("said cold")
    said = task.findings.get(f"said {name}") if task else None
    if task is None or said is None:
        if task is None or task.ended == "out of time" or task.doing != f"generate {name}":
            return "-"
        return "hang" if task.ended == "hung" else _fault(task)
    if cold is None:
        return "no cold B"
    equal = sum(one == other for one, other in zip(said, cold, strict=False))
    return f"{'bit' if equal == len(cold) else 'wrong'} {equal}/{len(cold)}"


def _fault(task: Task) -> str:
    """Say in a few words what the driver said."""
    text = str(task.findings.get("error", "died")).splitlines()[0]
    return text.split("CUDA error: ")[-1][:80]


def _values(arms: dict[str, Task]) -> str:
    """Count captured tensors that hold what cold B holds."""
    both = _both(arms)
    return f"{sum(own == cold for own, cold in both.values())}/{len(both)}" if both else "-"


def differing(arms: dict[str, Task]) -> list[str]:
    """Return captured tensors whose values differ from cold B's, and those of single ones."""
    wrong = [path for path, (own, cold) in _both(arms).items() if own != cold]
    own, cold = (arms[arm].findings.get("scalars") or {} for arm in ("gated", "cold"))
    return [f"{p} ({own[p]}, cold {cold.get(p)})" if p in own else p for p in wrong]


def _both(arms: dict[str, Task]) -> dict[str, tuple[str, str]]:
    own, cold = (arms[arm].findings.get("values") or {} for arm in ("gated", "cold"))
    captured = arms["gated"].findings.get("captured", [])
    return {path: (own[path], cold[path]) for path in captured if path in own and path in cold}


def _stale(task: Task, when: str) -> int | None:
    found: dict[str, Any] | None = task.findings.get(f"gate {when}")
    return None if found is None else int(found["stale"])


def _captured(task: Task) -> str:
    census = task.findings.get("census")
    if census is None:
        return "-"
    classes = census["classes"]
    owned = classes.get("owned", 0)
    return f"{owned} owned, {classes.get('unknown', 0)} unknown in {census['graphs']} graphs"


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)


def _why(task: Task) -> str:
    error = str(task.findings.get("error", "")).replace("\n", " ").replace("\t", " ")
    return f"{task.ended or 'not run'} at `{task.doing}` {error[:300]}".strip()
