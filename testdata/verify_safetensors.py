"""Reads every fixture with Python's `safetensors` and compares it with this project's reader:
tensor by tensor, name, dtype, shape and all bytes.

    pip install safetensors blake3
    cargo run -q -p coldproof-checkpoint --example dump_tensors -- \\
        testdata/checkpoints/*/[AB] > tensors.tsv
    python testdata/verify_safetensors.py tensors.tsv

Exits 1 and names the tensors that differ. Paths in the listing are relative to where it was made.
"""

import json
import pathlib
import sys

from blake3 import blake3
from safetensors import deserialize


def theirs(directory):
    """What Python's reader sees: name to (dtype, shape, BLAKE3 of the bytes)."""
    found = {}
    for file in sorted(pathlib.Path(directory).glob("*.safetensors")):
        for name, tensor in deserialize(file.read_bytes()):
            content = blake3(bytes(tensor["data"])).hexdigest()
            found[name] = (tensor["dtype"], list(tensor["shape"]), content)
    return found


def ours(listing):
    """What this project's reader saw, by directory."""
    found = {}
    for line in listing.read_text(encoding="utf-8").splitlines():
        directory, name, dtype, shape, content = line.split("\t")
        found.setdefault(directory, {})[name] = (dtype, json.loads(shape), content)
    return found


def main(listing):
    """Compares, and returns the exit code."""
    fixtures = pathlib.Path(__file__).resolve().parent / "checkpoints"
    expected = {path.parent.resolve() for path in fixtures.glob("*/[AB]/config.json")}
    seen, compared, wrong = set(), 0, []
    for directory, tensors in ours(listing).items():
        seen.add(pathlib.Path(directory).resolve())
        python = theirs(directory)
        for name in sorted(tensors.keys() | python.keys()):
            compared += 1
            if tensors.get(name) != python.get(name):
                here, there = tensors.get(name), python.get(name)
                wrong.append(f"{directory}: {name}: {here} here, {there} in Python")
    wrong += [f"{directory}: not in the listing" for directory in sorted(expected - seen)]
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{compared} tensors of {len(seen)} checkpoints compared, {len(wrong)} differ")
    return 1 if wrong or not compared else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1])))
