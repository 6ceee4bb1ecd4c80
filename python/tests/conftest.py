"""The fixtures of the package, as they are where it is installed."""

from coldproof.pytest_plugin import reload_proof

__all__ = ["reload_proof"]
