"""The fixture ``reload_proof``, on the embedded engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from coldproof.errors import ColdproofError
from coldproof.pytest_plugin import ReloadProof

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "testdata" / "checkpoints" / "llama"

SUITE = """
def test_a_correct_reload(reload_proof):
    reload_proof(engine="reference", lanes=["differential"], require=[2])

def test_a_stale_value(reload_proof):
    reload_proof(engine="reference", lanes=["differential"], require=[2], fault=["F2.01"])
"""


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, coldproof.pytest_plugin; print({'torch', 'vllm'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "set()\n"


def test_a_suite_passes_on_a_correct_reload_and_fails_with_the_finding_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text("from coldproof.pytest_plugin import reload_proof\n")
    (tmp_path / "test_reload.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 1
    assert "1 failed, 1 passed" in ran.stdout
    assert "derived-stale model.norm/kernel.weight_f32 (rank 0)" in ran.stdout
    assert "2 runtime value refresh      FAIL        1 finding" in ran.stdout


def test_a_proof_is_typed_and_keeps_its_evidence(reload_proof: ReloadProof) -> None:
    proof = reload_proof(
        engine="reference",
        from_=LLAMA / "A",
        to=LLAMA / "B",
        require=[1, 2, 3, 4],
        lanes=["differential"],
    )
    assert (proof.verdict, proof.exit_code, proof.findings) == ("pass", 0, ())
    assert sorted(proof.categories) == [1, 2, 3, 4, 5, 6, 7]
    assert (proof.categories[2].name, proof.categories[2].status) == (
        "runtime value refresh",
        "pass",
    )
    assert proof.categories[2].checks > 0
    assert proof.categories[7].status == "not_covered"
    assert (proof.transition.status, proof.unseen) == ("not_covered", ("model.norm.weight",))
    assert proof.text.rstrip().splitlines()[-1].startswith("PASS (required 1,2,3,4;")
    command = [sys.executable, "-m", "coldproof", "check", str(proof.evidence)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_without_check_a_finding_is_returned(reload_proof: ReloadProof) -> None:
    proof = reload_proof(engine="reference", lanes=["differential"], fault=["F2.01"], check=False)
    assert (proof.verdict, proof.exit_code) == ("fail", 1)
    assert [(found.code, found.object, found.ranks) for found in proof.findings] == [
        ("derived-stale", "model.norm/kernel.weight_f32", (0,))
    ]
    assert proof.findings[0].known is None


def test_what_is_required_and_not_covered_raises_the_verdict(reload_proof: ReloadProof) -> None:
    with pytest.raises(AssertionError, match=r"UNDECIDED .*not covered 7"):
        reload_proof(engine="reference", lanes=["names"], require=[6, 7])


def test_bad_usage_is_no_verdict(reload_proof: ReloadProof) -> None:
    with pytest.raises(ColdproofError, match=r"^error: .*--via"):
        reload_proof(engine="reference", via="transfer", check=False)
    with pytest.raises(ColdproofError, match="engine `mine`"):
        reload_proof(engine="mine", check=False)
