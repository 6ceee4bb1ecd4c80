"""What the package shows: its names, its stub, its command line, and no torch at import."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import coldproof
import pytest
from coldproof import _native, errors

STUB = Path(coldproof.__file__).with_name("_native.pyi")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, coldproof; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert python("-c", code).stdout == "False False\n"
    code = "import sys, coldproof; coldproof.walk; print('torch' in sys.modules)"
    assert python("-c", code).stdout == "True\n"


def test_every_name_of_the_surface_is_there() -> None:
    for name in coldproof.__all__:
        assert getattr(coldproof, name) is not None
    assert dir(coldproof) == sorted(coldproof.__all__)
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = coldproof.nothing_such


def public(names: object) -> set[str]:
    assert hasattr(names, "__iter__")
    return {name for name in names if not name.startswith("_")}


def test_the_stub_has_the_names_of_the_module() -> None:
    tree = ast.parse(STUB.read_text())
    defined = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert public(node.name for node in defined) == public(vars(_native))
    for node in defined:
        shown = getattr(_native, node.name)
        if isinstance(node, ast.ClassDef):
            members = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            assert public(item.name for item in members) == public(vars(shown)), node.name
        else:
            members = [node]
        for item in members:
            target = shown if item is node or item.name == "__new__" else vars(shown)[item.name]
            if not callable(target):
                continue
            arguments = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]
            stubbed = [a.arg for a in arguments if a.arg not in {"self", "cls"}]
            found = [name for name in inspect.signature(target).parameters if name != "self"]
            assert found == stubbed or item.name == "__len__", (node.name, item.name)


def test_every_error_is_one_of_ours() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(classes) > 5
    assert all(issubclass(value, errors.ColdproofError) for value in classes)


def test_the_command_line_is_that_of_the_binary() -> None:
    version = python("-m", "coldproof", "--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "coldproof")
    wrong = python("-m", "coldproof", "prove", "--from", "nowhere", "--format", "json")
    assert wrong.returncode == 2
    assert json.loads(wrong.stdout)["schema"] == "coldproof.error/1"


def test_prove_starts_its_cold_engine_through_the_interpreter() -> None:
    proven = python("-m", "coldproof", "prove", "--format", "json")
    assert proven.returncode == 0, proven.stderr
    assert json.loads(proven.stdout)["verdict"] == "pass"
    fault = python("-m", "coldproof", "prove", "--fault", "F1.05", "--format", "json")
    assert fault.returncode == 1, fault.stderr
