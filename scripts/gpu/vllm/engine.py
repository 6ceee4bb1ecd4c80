"""A vLLM in this process: started on a checkpoint, updated, and its objects told apart."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from cells import Cell
from coldproof import walk
from repair import on_card
from safetensors import safe_open

PROMPTS, TOKENS, TOP = 6, 16, 20
SIZES = [1, 2, 4, 8, 16]

Logprobs = list[list[tuple[int, float]]]
"""For each token of one generation: the best tokens and their logarithms."""


class Graphs:
    """Makes every CUDA graph of this process one that can be read, and remembers it."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []
        made = self._made
        original: Any = torch.cuda.CUDAGraph

        class Kept(original):
            """A graph that keeps its nodes; torch instantiates it before its first replay."""

            def __new__(cls, keep_graph: bool = False) -> Any:
                """Make one that keeps its nodes, whatever was asked for."""
                del keep_graph
                return super().__new__(cls, keep_graph=True)

            def __init__(self, keep_graph: bool = False) -> None:
                del keep_graph
                super().__init__(keep_graph=True)
                made.append(weakref.ref(self))

        torch.cuda.CUDAGraph = Kept

    def captured(self) -> dict[str, Any]:
        """Return the graphs that are alive, in the order in which they were made."""
        alive = [graph for graph in (made() for made in self._made) if graph is not None]
        return {f"graph-{index}": graph for index, graph in enumerate(alive)}


class Engine:
    """One engine of one cell."""

    def __init__(self, cell: Cell, checkpoint: Path) -> None:
        from vllm import LLM

        self.cell = cell
        compilation: dict[str, Any] = {"cudagraph_capture_sizes": SIZES}
        if not cell.compiled:
            compilation |= {"mode": 0, "cudagraph_mode": "FULL"}
        self.llm = LLM(
            model=str(checkpoint),
            skip_tokenizer_init=True,
            max_model_len=256,
            max_num_batched_tokens=512,
            max_num_seqs=8,
            kv_cache_memory_bytes=128 << 20,
            # Others start on the same card; the cache's size above is what counts.
            gpu_memory_utilization=0.03,
            # Blocks of the old weights must not answer for the new ones.
            enable_prefix_caching=False,
            compilation_config=compilation,
            **cell.options,
        )
        executor = self.llm.llm_engine.model_executor
        self.runner: Any = executor.driver_worker.worker.model_runner

    @property
    def model(self) -> Any:
        """The model, out of what wraps it."""
        return self.runner.get_model()

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Hide what a compiler made of the model: it keeps example inputs and owns nothing.

        The process that compiles keeps the tensors that it traced with; an old workspace would
        seem to have an owner for ever.
        """
        owners = [vars(module) for module in self.model.modules()]
        made = [(own, name) for own in owners for name in own if "compiled" in name]
        hidden = [(own, name, own.pop(name)) for own, name in made]
        try:
            yield
        finally:
            for own, name, value in hidden:
                own[name] = value

    def roots(self) -> dict[str, Any]:
        """Tell the engine's memory apart by class."""
        model, caches = self.model, list(self.runner.kv_caches)
        known = {_storage(t) for root in (model, caches) for _, t in walk(root).tensors}
        found = walk(self.runner)
        own = {p: t for p, t in found.tensors if on_card(t) and _storage(t) not in known}
        # Which way is found first may change; one of them stays.
        own |= {path: own[target] for path, target in found.aliases if target in own}
        roots: dict[str, Any] = {"owned": model, "kv": caches, "input-output": own}
        from vllm.v1.worker import workspace

        if workspace.is_workspace_manager_initialized():
            manager = workspace.current_workspace_manager()
            roots["library-workspace"] = manager._current_workspaces
        return roots

    def generate(self) -> list[Logprobs]:
        """Generate greedily, one prompt after the other."""
        from vllm import SamplingParams

        asked = SamplingParams(
            temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=TOP, detokenize=False
        )
        said: list[Logprobs] = []
        for index in range(PROMPTS):
            tokens = [(7 + 31 * index + 13 * place) % 509 + 2 for place in range(5 + 4 * index)]
            (out,) = self.llm.generate([{"prompt_token_ids": tokens}], asked, use_tqdm=False)
            steps = out.outputs[0].logprobs or []
            said.append([sorted((t, p.logprob) for t, p in step.items()) for step in steps])
        return said

    def update(self, checkpoint: Path) -> None:
        """Load another checkpoint into the engine as it runs."""
        if self.cell.sleep:
            self._sleep()
            self.llm.wake_up(tags=["weights"])
        how: dict[str, Any] = {"weights_path": str(checkpoint)}
        if self.cell.form == "gptq":
            how = {"weights_iterator": _orders_once(checkpoint)}
        with self._configured():
            self.llm.collective_rpc("reload_weights", kwargs=how)
        if self.cell.sleep:
            self.llm.wake_up(tags=["kv_cache"])

    def _configured(self) -> AbstractContextManager[Any]:
        """Set the engine's configuration where a reload makes parts that ask for it."""
        from vllm.config import set_current_vllm_config

        if not self.cell.configured:
            return nullcontext()
        context: AbstractContextManager[Any] = set_current_vllm_config(self.runner.vllm_config)
        return context

    def _sleep(self) -> None:
        """Go to sleep level 2, which asserts that the card's free memory does not shrink.

        Other engines start on the same card meanwhile, so that the assertion is answered for.
        """
        actual = torch.accelerator.get_memory_info
        torch.accelerator.get_memory_info = lambda *_: (0, 0)
        try:
            self.llm.sleep(level=2)
        finally:
            torch.accelerator.get_memory_info = actual


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if on_card(tensor) else -1


def _orders_once(checkpoint: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Read a GPTQ checkpoint so that a reload's accounts are right.

    Shards of a fused layer share one act-order, and a reload counts each shard's: the layer would
    be finished before the last scales arrive. So each order comes once, and last.
    """
    again = ("k_proj.g_idx", "v_proj.g_idx", "up_proj.g_idx")
    with safe_open(checkpoint / "model.safetensors", "pt") as opened:
        names = [name for name in opened.keys() if not name.endswith(again)]  # noqa: SIM118
        for name in sorted(names, key=lambda name: (name.endswith("g_idx"), name)):
            yield name, opened.get_tensor(name)
