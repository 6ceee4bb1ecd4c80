"""The ledger as one writes it in Python: sets of pieces that each source is still owed."""

import random
import sys
import time
from collections import defaultdict

SOURCES = 1_000_000
Piece = tuple[str, tuple[int, int]]


class Ledger:
    """Takes each promised piece once."""

    def __init__(self, promised: list[tuple[str, Piece]]) -> None:
        """Every source is owed its pieces."""
        self.owed: defaultdict[str, set[Piece]] = defaultdict(set)
        for source, piece in promised:
            self.owed[source].add(piece)

    def record(self, source: str, piece: Piece) -> None:
        """Notes one application."""
        owed = self.owed.get(source)
        if owed is None:
            raise KeyError(f"{source} was not promised")
        if piece not in owed:
            raise ValueError(f"{piece} of {source} was not promised, or comes twice")
        owed.remove(piece)


def main() -> None:
    """Records all applications as often as it is told."""
    names = [f"model.layers.{index}.weight" for index in range(SOURCES)]
    promised = [(name, (name, (0, 1))) for name in names]
    shuffled = list(promised)
    random.Random(1).shuffle(shuffled)
    for line in sys.stdin:
        took = 0
        for _ in range(int(line)):
            ledger = Ledger(promised)
            began = time.perf_counter_ns()
            for source, piece in shuffled:
                ledger.record(source, piece)
            took += time.perf_counter_ns() - began
        print(took, flush=True)


main()
