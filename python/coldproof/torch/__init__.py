"""Any ``nn.Module`` with its own update: what its CUDA graphs retain, and whether it stays.

Without a GPU, and on CPU tensors without graphs, everything here answers: what a model holds is
then all that there is to verify.
"""

from __future__ import annotations

from coldproof.torch.control import unseen
from coldproof.torch.digesting import digests
from coldproof.torch.holding import Holding, holdings
from coldproof.torch.owners import owners_of
from coldproof.torch.poison import Pressure, pressure
from coldproof.torch.report import Finding, Report, Row, Verification
from coldproof.torch.retention import Retention

__all__ = [
    "Finding",
    "Holding",
    "Pressure",
    "Report",
    "Retention",
    "Row",
    "Verification",
    "digests",
    "holdings",
    "owners_of",
    "pressure",
    "unseen",
]
