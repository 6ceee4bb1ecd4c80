"""Each pattern of the audit is found where it is, and its nearest correct twin is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent, indent

import pytest
from coldproof.audit import audit
from coldproof.audit.__main__ import main

POST_LOAD = "def process_weights_after_loading(self, layer):"


def kinds(tmp_path: Path, body: str, before: str = "", after: str = "") -> list[tuple[str, str]]:
    """Kind and object of each candidate in a post-load function with this body."""
    method = f"    {POST_LOAD}\n{indent(dedent(body), '        ')}\n"
    source = (
        f"import torch\n{dedent(before)}\nclass Method:\n{method}{indent(dedent(after), '    ')}"
    )
    (tmp_path / "layers.py").write_text(source)
    return [(one.kind, one.about) for one in audit([tmp_path]).candidates]


@pytest.mark.parametrize(
    ("fault", "found", "twin"),
    [
        (
            "layer.workspace = torch.zeros(4)",
            ("attribute-rebound", "layer.workspace"),
            "layer.workspace.copy_(torch.zeros(4))",
        ),
        (
            "order = torch.argsort(layer.g_idx)\nself.order = order.to(torch.int32)",
            ("attribute-rebound", "self.order"),
            "self.count = layer.g_idx.shape[0]",
        ),
        (
            "kernel = self.kernel\nkernel.scratch = torch.empty(4)",
            ("attribute-rebound", "self.kernel.scratch"),
            "scratch = torch.empty(4)\nself.kernel.scratch.copy_(scratch)",
        ),
        (
            "setattr(layer, f'{self.name}_scale', 1.0 / layer.weight_scale)",
            ("attribute-rebound", "layer.<*_scale>"),
            "getattr(layer, f'{self.name}_scale').copy_(1.0 / layer.weight_scale)",
        ),
        (
            "replace_parameter(layer, 'weight', layer.weight.contiguous())",
            ("parameter-replaced", "layer.weight"),
            "replace_parameter(layer, 'weight', layer.weight.contiguous(), prefer_copy=True)",
        ),
        (
            "layer.weight = torch.nn.Parameter(layer.weight.to(torch.float32))",
            ("parameter-replaced", "layer.weight"),
            "layer.weight.copy_(layer.weight.to(torch.float32))",
        ),
        (
            "layer.register_parameter('bias_fp32', Parameter(layer.bias.float()))",
            ("parameter-replaced", "layer.bias_fp32"),
            "layer.register_parameter('bias_fp32', None)",
        ),
        (
            "layer.weight.data = torch.ops.pack(layer.w13)",
            ("data-rebound", "layer.weight"),
            "layer.weight.data.copy_(torch.ops.pack(layer.w13))",
        ),
        (
            "def transform(x):\n    x.data = x.data.contiguous()\nself.each(transform)",
            ("data-rebound", "x"),
            "def transform(x):\n    x.data.copy_(x.data.contiguous())\nself.each(transform)",
        ),
        ("del layer.scale", ("attribute-deleted", "layer.scale"), "scale = layer.scale\ndel scale"),
        (
            "delattr(layer, 'scale')",
            ("attribute-deleted", "layer.scale"),
            "print(layer, 'scale')",
        ),
        (
            "self.moe_kernel = make_kernel(layer)",
            ("object-rebuilt", "self.moe_kernel"),
            "self.moe_kernel.refresh(layer)",
        ),
        (
            "perm = torch.argsort(layer.g_idx)\nself.act = lambda x: x[:, perm]",
            ("closure-capture", "self.act"),
            "self.act = lambda x: x[:, layer.perm]",
        ),
        (
            "self.act = partial(permute, perm=layer.perm)",
            ("closure-capture", "self.act"),
            "self.act = partial(permute, layer=layer)",
        ),
        (
            "packed = ops.pack(layer.weight)\ndef run(x):\n    return x @ packed\nlayer.run = run",
            ("closure-capture", "layer.run"),
            "def run(x):\n    return x @ layer.weight\nlayer.run = run",
        ),
        (
            "layer.weight.mul_(2)",
            ("not-idempotent", "layer.weight"),
            "layer.runtime_weight.copy_(layer.weight.mul(2))",
        ),
        (
            "layer.scale *= 2",
            ("not-idempotent", "layer.scale"),
            "scale = layer.scale * 2\nlayer.runtime_scale.copy_(scale)",
        ),
    ],
)
def test_a_pattern_is_found_and_its_twin_is_not(
    tmp_path: Path, fault: str, found: tuple[str, str], twin: str
) -> None:
    assert kinds(tmp_path, fault) == [found]
    assert kinds(tmp_path, twin) == []


def test_a_value_made_of_what_it_replaces_is_named_twice(tmp_path: Path) -> None:
    turned = "weight = layer.weight\nreplace_parameter(layer, 'weight', weight.t())"
    both = [("not-idempotent", "layer.weight"), ("parameter-replaced", "layer.weight")]
    assert kinds(tmp_path, turned) == both
    # Done again to its own result it gives the same.
    again = "replace_parameter(layer, 'weight', layer.weight.contiguous())"
    assert kinds(tmp_path, again) == both[1:]
    other = "replace_parameter(layer, 'weight', layer.checkpoint_weight.t())"
    assert kinds(tmp_path, other) == both[1:]


def test_what_is_called_is_read_and_what_is_not_is_left(tmp_path: Path) -> None:
    rebinds = "    layer.workspace = torch.zeros(4)\n"
    module = f"def prepare(layer):\n{rebinds}"
    method = f"def setup(self, layer):\n{rebinds}"
    found = [("attribute-rebound", "layer.workspace")]
    assert kinds(tmp_path, "prepare(layer)", before=module) == found
    assert kinds(tmp_path, "self.setup(layer)", after=method) == found
    assert kinds(tmp_path, "self.other(layer)", before=module, after=method) == []
    made = "def make_workspace():\n    return torch.zeros(4)\n"
    assert kinds(tmp_path, "self.w = make_workspace()", before=made) == [
        ("attribute-rebound", "self.w")
    ]
    inner = "def each(n):\n    return torch.full((4,), n)\nself.w = each(1)"
    assert kinds(tmp_path, inner) == [("attribute-rebound", "self.w")]
    number = "def make_workspace():\n    return 4\n"
    assert kinds(tmp_path, "self.w = make_workspace()", before=number) == []


def test_what_another_file_has_is_read(tmp_path: Path) -> None:
    (tmp_path / "engine" / "utils").mkdir(parents=True)
    (tmp_path / "engine" / "utils" / "__init__.py").write_text("from .made import prepare\n")
    made = "import torch\ndef prepare(layer):\n    layer.workspace = torch.zeros(4)\n"
    (tmp_path / "engine" / "utils" / "made.py").write_text(made)
    uses = f"from engine.utils import prepare\n{POST_LOAD}\n    prepare(layer)\n"
    (tmp_path / "engine" / "layers.py").write_text(uses)
    (one,) = audit([tmp_path]).candidates
    assert (one.about, one.line, one.function) == ("layer.workspace", 3, "prepare")
    assert one.root == "process_weights_after_loading"
    assert audit([tmp_path / "engine" / "layers.py"]).candidates == ()


def test_an_experts_object_holds_what_it_is_built_with(tmp_path: Path) -> None:
    init = "    def __init__(self, e):\n        self.strides = torch.full((e,), 4)\n"
    held = "import torch\nclass {name}:\n" + init
    (tmp_path / "a.py").write_text(held.format(name="CutlassExpertsFp8"))
    (one,) = audit([tmp_path]).candidates
    assert (one.kind, one.about) == ("object-tensor", "self.strides")
    # A layer is built once, by the first load.
    (tmp_path / "a.py").write_text(held.format(name="Linear"))
    assert audit([tmp_path]).candidates == ()


def test_a_buffer_that_no_checkpoint_has(tmp_path: Path) -> None:
    made = (
        "class Rope:\n    def __init__(self):\n        self.register_buffer('table', t{persistent})"
    )
    (tmp_path / "a.py").write_text(made.format(persistent=", persistent=False"))
    (one,) = audit([tmp_path]).candidates
    assert (one.kind, one.about) == ("buffer-not-persistent", "self.table")
    (tmp_path / "a.py").write_text(made.format(persistent=", persistent=True"))
    assert audit([tmp_path]).candidates == ()


def test_a_container_of_the_module_keeps_a_tensor(tmp_path: Path) -> None:
    kept = "KEPT[layer.name] = torch.zeros(4)"
    assert kinds(tmp_path, kept, before="KEPT = {}") == [("module-cache", "KEPT")]
    assert kinds(tmp_path, f"KEPT = {{}}\n{kept}", before="KEPT = {}") == []
    assert kinds(tmp_path, "KEPT[layer.name] = 4", before="KEPT = {}") == []
    cached = "@lru_cache\ndef scratch():\n    return torch.zeros(4)\n"
    assert kinds(tmp_path, "scratch()", before=cached) == [("module-cache", "scratch")]
    assert kinds(tmp_path, "scratch()", before=cached.removeprefix("@lru_cache\n")) == []


def test_a_report_is_labelled_and_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = f"import torch\n{POST_LOAD}\n    layer.w = torch.zeros(4)\n    del layer.s\n"
    (tmp_path / "a.py").write_text(fault)
    (tmp_path / "b.py").write_text("def (:\n")
    assert main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith(
        "a.py:3: candidate attribute-rebound of layer.w in process_weights_after_loading"
    )
    assert "b.py: not read: " in shown[2]
    assert shown[3] == "2 candidates: read in source, not run; 1 post-load functions in 2 files"
    assert main([str(tmp_path), "--format", "json", "--kind", "attribute-deleted"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "coldproof.audit/1"
    assert document["label"].startswith("candidates")
    assert [one["object"] for one in document["candidates"]] == ["layer.s"]
    assert document["counts"]["attribute-deleted"] == 1
    assert len(document["unread"]) == 1


def test_a_path_that_is_not_there_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "gone")]) == 2
    assert "neither a file nor a folder" in capsys.readouterr().err
    # Nothing there to read is no mistake of the caller.
    assert main([str(tmp_path)]) == 0
