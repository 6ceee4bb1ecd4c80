"""Teacher forcing: a logits processor that leaves one token possible.

vLLM computes raw logits before it runs logits processors, so that the rows that are compared are
the model's own.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

#: The key in ``SamplingParams.extra_args``.
KEY = "coldproof_forced"


class Forcing(AdapterLogitsProcessor):
    """Forces the tokens of ``extra_args["coldproof_forced"]``, one a step, then lets go."""

    def is_argmax_invariant(self) -> bool:
        """It changes the largest logit."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """The processor of one request, or nothing where it forces nothing."""
        forced = list((params.extra_args or {}).get(KEY, ()))
        return Forced(forced) if forced else None


class Forced:
    """The tokens of one request."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def __call__(self, output: list[int], logits: torch.Tensor) -> torch.Tensor:
        """Leaves the next forced token alone possible."""
        if len(output) < len(self.tokens):
            token = self.tokens[len(output)]
            logits.fill_(float("-inf"))
            logits[token] = 0.0
        return logits
