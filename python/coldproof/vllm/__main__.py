"""``python -m coldproof.vllm``: the engine protocol for a vLLM in this process."""

from __future__ import annotations

import argparse
import json

from coldproof.agent import serve

from .engine import Adapter


def main() -> None:
    """Reads options, then requests until the end."""
    parser = argparse.ArgumentParser(
        prog="python -m coldproof.vllm",
        description="Speaks coldproof's engine protocol on stdin and stdout for a vLLM engine.",
        epilog="coldproof prove --engine vllm starts this program; it is of no use by hand.",
    )
    parser.add_argument(
        "--via",
        default="reload-iterator",
        choices=["reload-iterator", "reload-path", "transfer", "load-weights"],
        help="how updates reach the engine (default: %(default)s)",
    )
    parser.add_argument(
        "--options",
        default="{}",
        type=json.loads,
        help="engine arguments as JSON, for example '{\"max_model_len\":256}'",
    )
    arguments = parser.parse_args()
    adapter = Adapter(arguments.via, arguments.options)
    adapter.prepare()
    serve(adapter)


if __name__ == "__main__":
    main()
