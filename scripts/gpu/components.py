"""Torch modules that keep tensors where vLLM's kernels keep them, updated right and wrong.

Each component is made from a checkpoint (a dictionary of tensors), updated to another one in place
or as the faulty component does, and computes one output from one input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from coldproof.torch import pressure
from coldproof.torch.poison import POISON
from torch import Tensor, nn

HIDDEN = 256
HEADS = 4
LAYERS = 2

Checkpoint = dict[str, Tensor]


def checkpoint(seed: int) -> Checkpoint:
    """Return weights that differ in every element from those of another seed."""
    own = torch.Generator(device="cuda").manual_seed(seed)
    draw = functools.partial(torch.randn, generator=own, device="cuda")
    made: Checkpoint = {}
    for layer in range(LAYERS):
        made[f"{layer}.weight"] = draw(HIDDEN, HIDDEN) / HIDDEN**0.5
        made[f"{layer}.scale"] = draw(HIDDEN).abs() + 0.5
        made[f"{layer}.g_idx"] = torch.randperm(HIDDEN, generator=own, device="cuda")
        made[f"{layer}.sinks"] = draw(HIDDEN).to(torch.bfloat16)
    return made


class Kernel:
    """What a layer hands its work to: no module, so that registration does not see inside."""

    def __init__(self, **tensors: Tensor) -> None:
        self.__dict__.update(tensors)


class Layer(nn.Module):
    """A linear layer with a registered weight, and a place for what its kernel keeps."""

    kernel: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(HIDDEN, HIDDEN, device="cuda"), requires_grad=False)


class Component(nn.Module):
    """A stack of layers; subclasses say what a layer's kernel keeps and how it computes."""

    row = ""
    holds = False
    """Whether somebody else keeps the old tensors alive: a compiled program does."""
    swaps = False
    """Whether freed blocks change hands among layers, and not to another owner."""
    poison = POISON
    """What freed memory is filled with: an index out of range would end the process."""
    scratch: tuple[str, ...] = ()
    """Names of what a run writes before it reads: nothing is expected to lie there."""

    def __init__(self, weights: Checkpoint) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.held: list[object] = []
        for index in range(LAYERS):
            self.load(index, weights)
            self.post_load(index, weights)

    def load(self, index: int, weights: Checkpoint) -> None:
        """Copy a layer's registered weight in place."""
        self.layers[index].weight.copy_(weights[f"{index}.weight"])

    def update(self, weights: Checkpoint, *, faulty: bool) -> None:
        """Take new weights, in place or as the faulty component does."""
        for index in range(LAYERS):
            self.load(index, weights)
        if not faulty:
            for index in range(LAYERS):
                self.refresh(index, weights)
            return
        if not self.holds:
            # All of a stage goes before the next is made, so that blocks change hands.
            for index in range(LAYERS):
                self.layers[index].kernel = None
            if not self.swaps:
                HELD.append(pressure(self.poison))
            for index in reversed(range(LAYERS)):
                self.post_load(index, weights)
            return
        for index in range(LAYERS):
            self.held.append(self.layers[index].kernel)
            self.post_load(index, weights)
        # Held outside of the component: no attribute leads there any more.
        HELD.append(self.held)
        self.held = []

    def kept(self, index: int, weights: Checkpoint) -> dict[str, Tensor]:
        """Compute what the kernel keeps."""
        raise NotImplementedError

    def post_load(self, index: int, weights: Checkpoint) -> None:
        """Make the kernel anew."""
        self.layers[index].kernel = Kernel(**self.kept(index, weights))

    def refresh(self, index: int, weights: Checkpoint) -> None:
        """Copy new values into what the kernel keeps."""
        for name, tensor in self.kept(index, weights).items():
            getattr(self.layers[index].kernel, name).copy_(tensor)

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Run one layer."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers."""
        for layer in self.layers:
            x = self.compute(layer, x)
        return x


HELD: list[object] = []
"""What outlives an update though no attribute of the model leads to it."""


class Workspace(Component):
    """F1.05: scratch with counters, on a kernel object."""

    row = "workspace with counters on a kernel object"
    swaps = True

    def kept(self, index: int, weights: Checkpoint) -> dict[str, Tensor]:
        """Return one counter for each column, at its first value."""
        return {"workspace": torch.ones(HIDDEN, dtype=torch.int32, device="cuda")}

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Multiply by counters that a right run finds at one."""
        return x @ layer.weight * layer.kernel.workspace


class SortIndices(Component):
    """F1.06: sort indices that nobody registered."""

    row = "sort indices unregistered"
    poison = 0

    def kept(self, index: int, weights: Checkpoint) -> dict[str, Tensor]:
        """Return the order of an act-order checkpoint's groups."""
        return {"g_idx_sort_indices": torch.argsort(weights[f"{index}.g_idx"])}

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Permute, then multiply."""
        return x.index_select(1, layer.kernel.g_idx_sort_indices) @ layer.weight


class Closure(Component):
    """F1.08: a permutation that only a partial holds, and a compiled program beside it."""

    row = "permutation in a partial"
    holds = True

    def post_load(self, index: int, weights: Checkpoint) -> None:
        """Hide the permutation in a partial."""
        perm = torch.argsort(weights[f"{index}.g_idx"])
        self.layers[index].kernel = functools.partial(torch.index_select, dim=1, index=perm)

    def refresh(self, index: int, weights: Checkpoint) -> None:
        """Copy a new permutation into the partial's."""
        perm = torch.argsort(weights[f"{index}.g_idx"])
        self.layers[index].kernel.keywords["index"].copy_(perm)

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Permute by the partial, then multiply."""
        return layer.kernel(x) @ layer.weight


class Experts(Component):
    """F1.04, F1.09: strides and SwiGLU constants of an experts object."""

    row = "strides and SwiGLU constants of an experts object"
    poison = 0

    def kept(self, index: int, weights: Checkpoint) -> dict[str, Tensor]:
        """Return what the experts object computes from its layer."""
        scale = weights[f"{index}.scale"]
        rows = (
            torch.arange(HIDDEN, device="cuda").flip(0)
            if index
            else torch.arange(HIDDEN, device="cuda")
        )
        return {
            "alpha": scale.mean().reshape(1),
            "beta": scale.max().reshape(1),
            "clamp_limit": scale.sum().reshape(1),
            "ab_strides": rows,
        }

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Clamp, gate and gather."""
        own = layer.kernel
        gate = torch.minimum(x @ layer.weight, own.clamp_limit)
        gate = gate * torch.sigmoid(gate * own.alpha) + own.beta
        return gate.index_select(1, own.ab_strides)


class LazyScratch(Component):
    """The permutation scratch of grouped experts: made when it is first used."""

    row = "lazily rebuilt scratch"
    poison = 0
    scratch = ("scratch",)

    def post_load(self, index: int, weights: Checkpoint) -> None:
        """Leave the scratch to the first run."""
        self.layers[index].kernel = Kernel(order=torch.argsort(weights[f"{index}.g_idx"]))
        self.layers[index].kernel.scratch = None

    def refresh(self, index: int, weights: Checkpoint) -> None:
        """Refill the order and keep the scratch."""
        self.layers[index].kernel.order.copy_(torch.argsort(weights[f"{index}.g_idx"]))

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Permute into the scratch, then multiply."""
        own = layer.kernel
        if own.scratch is None:
            own.scratch = torch.empty_like(x)
        torch.index_select(x, 1, own.order, out=own.scratch)
        return own.scratch @ layer.weight


class Sinks(Component):
    """A wider copy of attention sinks, made once."""

    row = "fp32 copy of sinks"

    def kept(self, index: int, weights: Checkpoint) -> dict[str, Tensor]:
        """Return the sinks as 32-bit floats."""
        return {"sinks_fp32": weights[f"{index}.sinks"].float()}

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Multiply and add the sinks."""
        return torch.tanh(x @ layer.weight + layer.kernel.sinks_fp32)


class AbsorbedMla(Component):
    """F1.01: matrices of MLA, absorbed from one projection after the load."""

    row = "absorbed MLA matrices"
    holds = True

    def kept(self, index: int, weights: Checkpoint) -> dict[str, Tensor]:
        """Split the projection and transpose its parts."""
        heads = weights[f"{index}.weight"].view(HEADS, HIDDEN // HEADS, HIDDEN)
        key, value = heads.split(HIDDEN // HEADS // 2, dim=1)
        return {"W_UK_T": key.permute(0, 2, 1).contiguous(), "W_UV": value.contiguous()}

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Go down by one matrix and up by the other, head by head."""
        down = torch.matmul(x.unsqueeze(0), layer.kernel.W_UK_T)
        return torch.matmul(down, layer.kernel.W_UV).sum(0) / HEADS


@dataclass
class Config:
    """What a quantised layer is configured with."""

    scale: Tensor


class RebuiltConfig(Component):
    """F1.11, F1.17: scales that a configuration object keeps, which is made anew."""

    row = "scales of a rebuilt configuration"

    def post_load(self, index: int, weights: Checkpoint) -> None:
        """Make the configuration anew, with reciprocal scales."""
        self.layers[index].kernel = Config(scale=1 / weights[f"{index}.scale"])

    def refresh(self, index: int, weights: Checkpoint) -> None:
        """Copy new scales into the configuration."""
        self.layers[index].kernel.scale.copy_(1 / weights[f"{index}.scale"])

    def compute(self, layer: Layer, x: Tensor) -> Tensor:
        """Multiply and scale."""
        return x @ layer.weight * layer.kernel.scale


COMPONENTS: list[Callable[[Checkpoint], Component]] = [
    Workspace,
    SortIndices,
    Closure,
    Experts,
    LazyScratch,
    Sinks,
    AbsorbedMla,
    RebuiltConfig,
]
