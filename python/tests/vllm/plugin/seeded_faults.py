"""Faults and their correct twins that a vLLM takes in as one of its plugins, by name.

With this folder on ``PYTHONPATH``, vLLM calls :func:`register` in each of its processes; the
variable ``SEEDED_FAULT`` says which one.
"""

from __future__ import annotations

import os
from typing import Any

import torch


def register() -> None:
    """Switches on what is asked for."""
    name = os.environ.get("SEEDED_FAULT", "")
    if name:
        KNOWN[name]()


def replicated_slice() -> None:
    """A replicated parameter is cut by the tensor-parallel rank, as in vLLM #48025: each rank takes
    from its own share of the source onward."""
    from vllm import distributed

    def load(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        size = loaded_weight.shape[0] // distributed.get_tensor_model_parallel_world_size()
        first = size * distributed.get_tensor_model_parallel_rank()
        kept = loaded_weight.shape[0] - first
        param.data[:kept].copy_(loaded_weight[first:])
        param.data[kept:].copy_(loaded_weight[:first])

    norm_loaded_by(load)


def replicated_whole() -> None:
    """Its twin: each rank takes all of it, in two halves."""

    def load(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        half = loaded_weight.shape[0] // 2
        param.data[half:].copy_(loaded_weight[half:])
        param.data[:half].copy_(loaded_weight[:half])

    norm_loaded_by(load)


def norm_loaded_by(load: Any) -> None:
    """The first norm of the first layer of a llama has this loader, whose arguments must be called
    as vLLM's own are: a reload passes them by name."""
    from vllm.model_executor.models.llama import LlamaDecoderLayer

    original = LlamaDecoderLayer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if "layers.0" in kwargs.get("prefix", ""):
            self.input_layernorm.weight.weight_loader = load

    LlamaDecoderLayer.__init__ = init


def after_post_load(change: Any) -> None:
    """Calls ``change(layer, times)`` after each post-load of an unquantised linear layer."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    original = UnquantizedLinearMethod.process_weights_after_loading

    def process(self: Any, layer: Any) -> None:
        original(self, layer)
        layer.times_processed = getattr(layer, "times_processed", 0) + 1
        change(layer, layer.times_processed)

    UnquantizedLinearMethod.process_weights_after_loading = process


def empty_rebound() -> None:
    """A tensor without elements is another one after each post-load."""

    def change(layer: Any, times: int) -> None:
        del times
        layer.nothing = torch.empty(0)

    after_post_load(change)


def unread_moved() -> None:
    """A tensor that no forward reads lies elsewhere after each post-load, with the same content."""

    def change(layer: Any, times: int) -> None:
        del times
        layer.constants = torch.arange(8, dtype=torch.float32)

    after_post_load(change)


def derived_counts() -> None:
    """What the last post-load derives depends on how often it was called."""

    def change(layer: Any, times: int) -> None:
        layer.constants = torch.arange(8, dtype=torch.float32) * times

    after_post_load(change)


KNOWN = {
    "replicated-slice": replicated_slice,
    "replicated-whole": replicated_whole,
    "empty-rebound": empty_rebound,
    "unread-moved": unread_moved,
    "derived-counts": derived_counts,
}
