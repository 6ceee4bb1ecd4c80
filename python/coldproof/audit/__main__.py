"""``python -m coldproof.audit PATH…``: candidates, one a line or as JSON.

Exits with 0 whatever is found, for a candidate is no finding, and with 2 where a path is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from coldproof.audit import Kind, audit

USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the paths of a command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m coldproof.audit", description=__doc__)
    parser.add_argument("path", nargs="+", type=Path, help="a Python file, or a folder of them")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--kind", action="append", choices=[kind.value for kind in Kind])
    given = parser.parse_args(arguments)
    for path in given.path:
        if not path.is_dir() and not path.is_file():
            print(f"error: `{path}` is neither a file nor a folder", file=sys.stderr)
            return USAGE
    report = audit(given.path).only(given.kind)
    if given.format == "json":
        print(json.dumps(report.document(), indent=1))
    else:
        print("\n".join(report.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
