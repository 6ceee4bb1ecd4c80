"""What answers without a GPU: the status line, the judgement, the torch adapter on CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from coldproof import _native
from coldproof.errors import DeviceError, DigestError

KERNELS = Path(__file__).parents[2] / "crates/coldproof-device/kernels"
WEIGHT = 0x7F00_0000_0000


def has_device() -> bool:
    return "no CUDA driver" not in _native.device_status()


@pytest.mark.skipif(has_device(), reason="this machine has a GPU")
def test_without_a_driver_one_line_says_so() -> None:
    status = _native.device_status()
    assert status.startswith("no CUDA driver: ")
    assert len(status.splitlines()) == 1
    with pytest.raises(DeviceError, match="no CUDA driver"):
        _native.Device()


def test_rocm_is_not_covered() -> None:
    assert _native.device_status(platform="rocm").startswith("NOT COVERED: ROCm")


def test_an_unknown_platform_is_refused() -> None:
    assert _native.device_status(platform="ROCm").startswith("`ROCm` is no platform")
    with pytest.raises(DeviceError, match="pass `cuda` or `rocm`"):
        _native.Device(platform="hip")


def log(
    *after: tuple[str, int, int, int], pools: tuple[tuple[int, int], ...] = ()
) -> _native.RetainedLog:
    events = [("alloc", 1, WEIGHT, 512), ("alloc", 2, WEIGHT + 512, 512), *after]
    return _native.RetainedLog(events, 2, pools)


def fate(after: list[tuple[str, int, int, int]], now: list[tuple[str, int, int, str, bool]]) -> str:
    then = [("layer.weight", WEIGHT, 512, "owned", True)]
    ((_, kind, owner, found, _),) = log(*after).judge([WEIGHT + 8], then, now)
    assert (kind, owner) == ("owned", "layer.weight")
    return found


def test_each_fate_is_told_apart() -> None:
    here = [("layer.weight", WEIGHT, 512, "owned", True)]
    moved = [("layer.weight", WEIGHT + 4096, 512, "owned", True)]
    free = ("free", 1, WEIGHT, 512)
    assert fate([], here) == "alive"
    assert fate([], moved) == "rebound"
    assert fate([], []) == "orphaned"
    assert fate([free], moved) == "dangling"
    assert fate([free, ("alloc", 3, WEIGHT, 512)], moved) == "reused"
    assert fate([("unmap", 0, WEIGHT, 4096)], here) == "dangling"


def test_an_unknown_address_is_listed_and_not_stale() -> None:
    ((_, kind, owner, found, detail),) = log().judge([0x1234_0000], [], [])
    assert (kind, owner, found) == ("unknown", None, "alive")
    assert detail == "no block of the log lay there when it was captured"
    ((_, kind, *_),) = log(pools=((WEIGHT, 4096),)).judge([WEIGHT], [], [])
    assert kind == "graph-pool"


def test_events_and_classes_are_spelled_as_documented() -> None:
    with pytest.raises(ValueError, match="not `lost`"):
        _native.RetainedLog([("lost", 1, 0, 0)], 0)
    with pytest.raises(ValueError, match="no class of memory"):
        log().judge([WEIGHT], [("w", WEIGHT, 8, "mine", False)], [])


def test_the_adapter_works_on_cpu_tensors_without_graphs() -> None:
    torch = pytest.importorskip("torch")
    from coldproof import digest
    from coldproof.torch import Retention, digests, holdings, owners_of, pressure

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    model = torch.nn.Linear(3, 5)
    found = digests(dict(model.named_parameters()))
    assert found == {name: digest(t, name=name) for name, t in model.named_parameters()}
    assert owners_of({"owned": model}) == []
    with pytest.raises(ValueError, match="no class of memory"):
        owners_of({"weights": model})
    watch = Retention()
    with pytest.raises(ValueError, match="nothing was captured"):
        watch.judge(owned=model)
    report = watch.capture({}, owned=model)
    assert (report.rows, report.stale, report.nodes) == ([], [], 0)
    seen = watch.verify(holdings(model), owned=model)
    assert (seen.may_resume, seen.verified) == (True, ["bias", "weight"])
    # A cold load of other values: values alone decide, where there is no graph.
    stale = watch.verify(holdings(torch.nn.Linear(3, 5)), owned=model)
    assert ([f.kind for f in stale.findings], stale.may_resume) == (["value", "value"], False)
    assert watch.name_workspaces() == 0
    assert pressure().bytes == 0
    with pytest.raises(DigestError):
        digests({"w": torch.empty(2, device="meta")})


@pytest.mark.skipif(has_device(), reason="this machine has a GPU")
def test_scripts_for_a_card_say_in_one_line_that_there_is_none() -> None:
    root = Path(__file__).parents[2]
    if not (root / "scripts").is_dir():
        pytest.skip("not in a checkout")
    torch = pytest.importorskip("torch")
    environment = {**os.environ, "PYTHON": sys.executable}
    script = ["bash", str(root / "scripts/gpu.sh")]
    example = [sys.executable, str(root / "examples/census.py")]
    for command, begins in (
        (script, "gpu: NOT RUN: no CUDA driver: "),
        (example, "no CUDA device" if torch.version.cuda else "this torch has no CUDA"),
    ):
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
        said = (run.stdout + run.stderr).strip()
        assert (run.returncode, len(said.splitlines())) == (1, 1), said
        assert said.startswith(begins)


def test_compiled_kernels_are_those_of_their_source() -> None:
    if not KERNELS.is_dir():
        pytest.skip("not in a checkout")
    check = subprocess.run(
        [sys.executable, KERNELS / "compile.py", "--check"], capture_output=True, text=True
    )
    # A torch for CUDA 13.0 brings that NVRTC with it.
    is_needed = str(pytest.importorskip("torch").version.cuda).startswith("13.0")
    if "no NVRTC" in check.stderr and not is_needed:
        pytest.skip("no NVRTC 13.0 is installed")
    assert check.returncode == 0, check.stdout + check.stderr
