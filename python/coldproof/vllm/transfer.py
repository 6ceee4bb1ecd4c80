"""A weight-transfer backend that reads files: vLLM's own start, update and finish calls on CPU.

vLLM's transports need CUDA. Its factory takes others, so that the session calls that an RL trainer
makes (``start_weight_update``, ``update_weights``, ``finish_weight_update``) run here as they are,
with a transport that hands over tensors of this process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coldproof.agent import Unsupported

from . import versions

NAME = "coldproof"
#: Tensors of one ``update_weights`` call: fewer than a model has, so that several are made.
CHUNK = 6


def deliver(worker: Any, weights: Any) -> None:
    """Runs one update session of the worker.

    Raises:
        Unsupported: this version has no such session.
    """
    if not hasattr(worker, "start_weight_update"):
        raise Unsupported(f"vLLM {versions.version()} has no weight-update session")
    engine = _engine(worker)
    worker.start_weight_update()
    chunk: list[Any] = []
    for pair in weights:
        chunk.append(pair)
        if len(chunk) == CHUNK:
            _send(worker, engine, chunk)
            chunk = []
    if chunk:
        _send(worker, engine, chunk)
    worker.finish_weight_update()


def _send(worker: Any, engine: Any, chunk: list[Any]) -> None:
    engine.outbox = chunk
    worker.update_weights({"count": len(chunk)})
    engine.outbox = []


def _engine(worker: Any) -> Any:
    if getattr(worker, "weight_transfer_engine", None) is None:
        try:
            cls = _engine_class()
            from vllm.config.weight_transfer import WeightTransferConfig
        except ImportError as error:
            raise Unsupported(f"vLLM {versions.version()} has no weight transfer") from error
        config = WeightTransferConfig(backend=NAME)
        worker.weight_transfer_engine = cls(
            config, worker.vllm_config, worker.device, versions.model_of(worker)
        )
    return worker.weight_transfer_engine


def _engine_class() -> Any:
    from vllm.distributed.weight_transfer import base

    @dataclass
    class InitInfo(base.WeightTransferInitInfo):
        """Nothing to set up."""

    @dataclass
    class UpdateInfo(base.WeightTransferUpdateInfo):
        """How many tensors lie in the outbox."""

        count: int = field(default=0)

    class FileEngine(base.WeightTransferEngine):
        """Checkpoint-format weights, layer by layer, as vLLM's NCCL engine loads them."""

        init_info_cls = InitInfo
        update_info_cls = UpdateInfo
        outbox: list[Any]

        def init_transfer_engine(self, init_info: Any) -> None:
            """Nothing to connect."""

        def start_weight_update(self) -> None:
            """As vLLM's checkpoint-format engines do."""
            versions.layerwise().initialize_layerwise_reload(self.model)

        def finish_weight_update(self) -> None:
            """As vLLM's checkpoint-format engines do."""
            versions.layerwise().finalize_layerwise_reload(self.model, self.model_config)

        def receive_weights(self, update_info: Any) -> None:
            """Loads what lies in the outbox."""
            self.model.load_weights(iter(self.outbox[: update_info.count]))

        def shutdown(self) -> None:
            """Nothing to release."""

    return FileEngine
