"""vLLM behind the engine protocol: one method a command."""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

from coldproof.agent import Answer, Died, Refused, Unsupported, done

from . import versions

Ranked = list[Any]


class Adapter:
    """A vLLM engine that this process starts at ``load``."""

    def __init__(self, via: str, options: dict[str, Any]) -> None:
        self.via = via
        self.options = options
        self.llm: Any = None
        self.spec: dict[str, Any] = {}
        self.transaction = 1
        self.sources: list[dict[str, Any]] = []
        self.temporary: list[Any] = []
        self.importing: threading.Thread | None = None
        self.adapters: dict[str, str] = {}
        """Folders of adapters by name; the ordinal of a name, from 1, is vLLM's id."""

    # -- life --------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Sets the environment and begins to import vLLM, which takes longer than a small load."""
        versions.set_environment(eager=self.options.get("enforce_eager", True))
        self.importing = threading.Thread(
            target=importlib.import_module, args=("vllm",), daemon=True
        )
        self.importing.start()

    def _imported(self) -> None:
        """Waits for that import: two threads that import one package can each see half of it."""
        if self.importing is not None:
            self.importing.join()

    def initialize(self, spec: dict[str, Any]) -> Answer:
        """Checks what is asked for; weights come with ``load``."""
        if spec["faults"] or spec["lying"]:
            raise Refused("faults and lies belong to the embedded engine; vLLM has its own")
        topology = spec["topology"]
        if topology["pp"] != 1 or topology["ep"] != 1:
            raise Unsupported("this adapter starts vLLM with tensor parallelism alone")
        self.spec = spec
        return done()

    def capabilities(self) -> Answer:
        """What this build of vLLM can do on this platform."""
        self._imported()
        sleep = versions.supports_sleep()
        can = {"graphs": False, "sleep": sleep, "prefix_cache": True}
        about = {"kind": "vllm", "version": versions.version(), **can}
        return {
            "answer": "capabilities",
            "capabilities": {**about, "topology": self.spec["topology"]},
        }

    def deadline(self, ms: int) -> Answer:
        """The caller kills what is late; vLLM has no deadline of its own."""
        del ms
        return done()

    def shutdown(self) -> Answer:
        """Ends the workers."""
        executor = getattr(getattr(self.llm, "llm_engine", None), "model_executor", None)
        if executor is not None:
            executor.shutdown()
        for folder in self.temporary:
            folder.cleanup()
        return done()

    # -- engine ------------------------------------------------------------------------------

    def load(self, tensors: list[dict[str, Any]]) -> Answer:
        """A cold load: vLLM starts on the folder that holds the tensors."""
        self._imported()
        from vllm import LLM

        if self.llm is not None:
            raise Refused("this process has loaded a model; start another for a second cold load")
        topology = self.spec["topology"]
        options = {
            "model": str(self._folder(tensors)),
            "tensor_parallel_size": topology["tp"],
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "seed": self.spec["seed"] % (1 << 31),
            "logprobs_mode": "raw_logits",
            "max_logprobs": -1,
            "enable_prefix_caching": True,
            "worker_extension_cls": "coldproof.vllm.worker.WorkerExtension",
            "logits_processors": ["coldproof.vllm.forcing:Forcing"],
            "disable_log_stats": True,
            # The smallest that the CPU kernels take: a prompt of 70 tokens then fills two blocks.
            "block_size": 32,
        }
        options |= versions.adapter_options(self.spec.get("adapter_rank", 0))
        self.llm = LLM(**versions.start_options(options, self.options))
        self._all("record_forward")
        # What the first forward makes (a rotary table in another dtype) is there from here on.
        self._forward(16)
        self._all("before_forward")
        self._forward(20)
        self._all("after_forward")
        self._all("slots")
        return done()

    def _forward(self, tokens: int) -> None:
        """Serves a prompt that fills no block. Not one token: with experts that is an illegal
        instruction on CPUs with AMX (0.32.0)."""
        from vllm import SamplingParams

        one = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        self._llm().generate([{"prompt_token_ids": [0] * tokens}], one, use_tqdm=False)

    def _folder(self, tensors: list[dict[str, Any]]) -> Path:
        """The folder to start on: the tensors' own where it is a whole checkpoint."""
        folders = {Path(tensor["file"]).parent for tensor in tensors}
        own = folders.pop() if len(folders) == 1 else None
        if own is not None and (own / "config.json").is_file():
            return own
        made = tempfile.TemporaryDirectory(prefix="coldproof-")
        self.temporary.append(made)
        root = Path(made.name)
        shutil.copy(Path(self.spec["model"]) / "config.json", root / "config.json")
        for file in {tensor["file"] for tensor in tensors}:
            (root / Path(file).name).symlink_to(Path(file).resolve())
        return root

    def capture(self) -> Answer:
        """vLLM's CPU build captures no graphs."""
        raise Unsupported("vLLM's CPU build captures no graphs")

    def generate(self, request: dict[str, Any]) -> Answer:
        """One request, teacher-forced."""
        from vllm import SamplingParams

        from .forcing import KEY

        if request["mode"] != "eager":
            raise Unsupported("vLLM's CPU build captures no graphs")
        forced, greedy = request["forced"], request["greedy"]
        params = SamplingParams(
            max_tokens=max(len(forced) + max(greedy, 1), 1),
            temperature=0.0,
            logprobs=-1,
            detokenize=False,
            ignore_eos=True,
            extra_args={KEY: forced},
        )
        prompt: dict[str, Any] = {"prompt_token_ids": request["prompt"]}
        if not request["use_prefix_cache"]:
            prompt["cache_salt"] = uuid.uuid4().hex
        self._all("serving", request["name"])
        adapter = self._adapter(request.get("adapter"))
        completion = self._complete(prompt, params, adapter)
        self._all("serving", "")
        first = len(request["prompt"]) - 1
        vocabulary = versions.vocabulary_of(self.llm)
        rows = [
            [first + index, row_bits(completion.logprobs[index], vocabulary)]
            for index in range(len(forced) + 1)
        ]
        tokens = list(completion.token_ids)
        return {
            "answer": "output",
            "rows": rows,
            "greedy": tokens[len(forced) : len(forced) + greedy],
        }

    def _adapter(self, name: str | None, *, again: bool = False) -> Any:
        """How a request, or a load of what is there already (``again``), names an adapter."""
        if name is None:
            return None
        if name not in self.adapters:
            raise Refused(f"no adapter is called `{name}`; `load_adapter` comes first")
        number = list(self.adapters).index(name) + 1
        return versions.adapter_request(name, number, self.adapters[name], again=again)

    def _complete(self, prompt: dict[str, Any], params: Any, adapter: Any) -> Any:
        """Runs one request.

        An error after the request was taken leaves it unfinished. Where vLLM's engine core is a
        process of its own it ends on such an error, and so does this one.
        """
        llm = self._llm()
        try:
            served = llm.generate([prompt], params, use_tqdm=False, lora_request=adapter)
            return served[0].outputs[0]
        except Exception as error:
            if versions.is_dead(error) or llm.llm_engine.has_unfinished_requests():
                raise Died(f"{type(error).__name__}: {error}") from error
            self._all("serving", "")
            raise

    def pause(self) -> Answer:
        """Requests are served one by one: none is in flight between two commands."""
        if self._llm().llm_engine.has_unfinished_requests():
            raise Refused("requests are in flight")
        return done()

    def sleep(self, level: int) -> Answer:
        """Frees memory."""
        if not versions.supports_sleep():
            raise Unsupported("this platform frees no memory in sleep")
        self._llm().sleep(level=level)
        return done()

    def wake(self, tag: str) -> Answer:
        """Takes memory again."""
        if not versions.supports_sleep():
            raise Unsupported("this platform frees no memory in sleep")
        self._llm().wake_up(tags=[tag])
        return done()

    def begin(self, required: list[str]) -> Answer:
        """A transaction of the adapter: vLLM knows none."""
        del required
        self.transaction += 1
        self.sources = []
        self._all("begin", self.transaction)
        return {"answer": "transaction", "id": self.transaction}

    def apply(self, bucket: list[dict[str, Any]]) -> Answer:
        """Collects references; the weights move in ``finish``."""
        self.sources.extend(bucket)
        self._all("apply", bucket)
        return done()

    def finish(self) -> Answer:
        """The reload, by the way in that was asked for."""
        if self.via == "reload-path":
            files = sorted({source["file"] for source in self.sources})
            whole = sorted(name for file in files for name in names_in(Path(file)))
            if sorted(source["name"] for source in self.sources) != whole:
                raise Unsupported("a reload by path reads whole files: not what a payload alters")
            self._all("reload_path", str(self._folder(self.sources)))
        else:
            self._all("finish", self.via)
        return done()

    def commit(self) -> Answer:
        """vLLM has nothing to commit: each rank states what it saw."""
        self._all("commit")
        return done()

    def abort(self) -> Answer:
        """vLLM cannot go back."""
        raise Unsupported("vLLM has no way back from an update")

    def invalidate(self) -> Answer:
        """Empties the prefix cache."""
        if not self._llm().reset_prefix_cache():
            raise Refused("vLLM did not reset its prefix cache")
        return done()

    def resume(self) -> Answer:
        """Nothing was held back."""
        return done()

    def load_adapter(self, name: str, folder: str) -> Answer:
        """Loads an adapter, in place where the name is taken, as vLLM's own server does."""
        again = name in self.adapters
        self.adapters[name] = folder
        if not self._llm().llm_engine.add_lora(self._adapter(name, again=again)):
            raise Refused(f"vLLM did not load the adapter `{name}`")
        return done()

    def claims(self) -> Answer:
        """Slots, configuration and generation as of now."""
        facts = [*self._ranked("slots"), *self._ranked("state")]
        generation = str(self._all("generation_now")[0])
        claim = {"kind": "claim", "what": "generation", "value": generation}
        return {"answer": "facts", "facts": [*facts, [rank(0), claim]]}

    def drain_claims(self) -> Answer:
        """Applications, post-load stages and receipts."""
        return {"answer": "facts", "facts": self._ranked("drain_claims") if self.llm else []}

    # -- probe -------------------------------------------------------------------------------

    def allocator_log(self) -> Answer:
        """The CPU allocator keeps no log."""
        return {"answer": "facts", "facts": []}

    def census(self) -> Answer:
        """No graphs, no nodes."""
        return {"answer": "nodes", "nodes": []}

    def launches(self) -> Answer:
        """Forward passes by request."""
        found = self._ranked("drain_launches") if self.llm else []
        return {"answer": "launches", "launches": found}

    def read(self, rank: dict[str, int], range: dict[str, Any]) -> Answer:
        """Memory of one rank."""
        data = self._one(rank, "read", int(range["address"], 16), range["bytes"])
        return {"answer": "bytes", "bytes": list(data)}

    def write(self, rank: dict[str, int], address: str, bytes: list[int]) -> Answer:
        """Positive control."""
        self._one(rank, "write", int(address, 16), bytearray(bytes))
        return done()

    def pressure(self) -> Answer:
        """Garbage in freed memory."""
        self._all("pressure")
        return done()

    def release_pressure(self) -> Answer:
        """Gives it back."""
        self._all("release_pressure")
        return done()

    def digest(self, rank: dict[str, int], requests: list[dict[str, Any]]) -> Answer:
        """Reads slots back next to the memory."""
        answer = self._one(rank, "read_back", json.dumps(requests))
        return {"answer": "read_backs", "read_backs": json.loads(answer)}

    # -- ranks -------------------------------------------------------------------------------

    def _llm(self) -> Any:
        if self.llm is None:
            raise Refused("nothing is loaded; `load` comes first")
        return self.llm

    def _all(self, method: str, *args: Any) -> list[Any]:
        """Calls a method on every rank; the first that failed speaks for all."""
        worker = versions.worker_of(self._llm())
        try:
            answers = worker.collective_rpc("coldproof_call", args=(method, *args))
        except Exception as error:
            if versions.is_dead(error):
                raise Died(f"{type(error).__name__}: {error}") from error
            raise
        for index, (kind, value) in enumerate(answers):
            where = f"rank {index}: " if len(answers) > 1 else ""
            if kind == "unsupported":
                raise Unsupported(value)
            if kind != "ok":
                raise Refused(f"{where}{value}")
        return [value for _, value in answers]

    def _one(self, of: dict[str, int], method: str, *args: Any) -> Any:
        """Calls a method on one rank."""
        return self._all("only", of["tp"], method, *args)[of["tp"]]

    def _ranked(self, method: str) -> Ranked:
        """Facts of all ranks, each with its rank."""
        return [[rank(tp), fact] for tp, facts in enumerate(self._all(method)) for fact in facts]


def rank(tp: int) -> dict[str, int]:
    """A rank as the protocol spells it."""
    return {"pp": 0, "ep": 0, "tp": tp}


def names_in(file: Path) -> list[str]:
    """The tensors that the header of a safetensors file lists."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return [name for name in json.loads(stream.read(size)) if name != "__metadata__"]


def row_bits(row: dict[int, Any], vocabulary: int) -> list[int]:
    """All logits of a row by token, as the bits of f32; NaN for a token that vLLM left out."""
    import numpy as np

    values = np.full(vocabulary, np.nan, dtype=np.float32)
    for token, entry in row.items():
        values[token] = entry.logprob
    return [int(bits) for bits in values.view(np.uint32)]
