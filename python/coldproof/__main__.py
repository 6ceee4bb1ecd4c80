"""The command line: ``coldproof`` and ``python -m coldproof``."""

import sys

from coldproof import _native


def main() -> int:
    """Run the command line that this process was started with and return its exit code."""
    sys.stdout.flush()
    return _native.main(["coldproof", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
