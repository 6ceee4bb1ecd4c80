"""Everything of coldproof that is written in Rust. Import from ``coldproof`` instead."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

def main(argv: Sequence[str]) -> int:
    """Run one command line (program name first), print its result and return its exit code."""

def content_digest(address: int, nbytes: int) -> str:
    """Digest raw bytes of this process's memory, which the caller keeps readable."""

def source_digest(name: str, dtype: str, shape: Sequence[int], address: int, nbytes: int) -> str:
    """Digest a named source (R61): what ``coldproof digest`` says of the tensor in a file."""

def read_back(requests: bytes, ranges: Sequence[tuple[int, int, int]]) -> bytes:
    """Read slots back. Ranges are (protocol address, pointer, bytes); JSON in, JSON out."""

def walk(
    root: object, *, tensor_type: type, name: str = "", max_objects: int | None = None
) -> Walk:
    """Find every tensor that can be reached from ``root``, and what was not entered."""

def reconcile(
    transaction: int,
    expected: Mapping[tuple[int, int, int], tuple[set[str], int | None]],
    receipts: Sequence[Receipt],
) -> str:
    """Hold each rank's receipt against its expectation; return the generation's identity.

    A rank is (pp, ep, tp); what is expected of it, its slots and its number of applications.
    """

@final
class Walk:
    """What a walk found."""

    @property
    def tensors(self) -> list[tuple[str, Any]]:
        """Every tensor once, with the first path that was found."""
    @property
    def aliases(self) -> list[tuple[str, str]]:
        """Other ways to a tensor: (path, path in ``tensors``)."""
    @property
    def opaque(self) -> list[tuple[str, object]]:
        """Objects with something inside that cannot be entered."""
    @property
    def objects(self) -> int:
        """How many objects were found."""
    @property
    def capped(self) -> bool:
        """Whether ``max_objects`` left something out."""

@final
class Fingerprint:
    """The eight fields that make a storage the same storage."""

    @property
    def storage(self) -> int:
        """The serial of the allocation; never reused within its registry."""
    @property
    def address(self) -> int:
        """The address of the first element."""
    @property
    def storage_bytes(self) -> int:
        """Bytes of the whole storage."""
    @property
    def shape(self) -> list[int]:
        """Elements along each axis."""
    @property
    def stride(self) -> list[int]:
        """Elements between neighbours along each axis."""
    @property
    def offset(self) -> int:
        """Elements between the storage's start and the first element."""
    @property
    def dtype(self) -> str:
        """The element type, spelled as in safetensors."""
    @property
    def device(self) -> str:
        """Where the storage lies."""

@final
class Difference:
    """A slot that is not what it was at capture."""

    @property
    def name(self) -> str:
        """The slot."""
    @property
    def outcome(self) -> Literal["missing", "expired", "rebound", "respecified"]:
        """What became of it."""
    @property
    def fields(self) -> list[str]:
        """The fields that differ, for a slot that was rebound or respecified."""
    @property
    def captured(self) -> Fingerprint:
        """What was captured."""
    @property
    def now(self) -> Fingerprint | None:
        """What the slot has now, where it has anything."""

@final
class Registry:
    """Slots, while they are being registered."""

    def __new__(cls, hold: Literal["weak", "strong"] = "weak") -> Registry: ...
    def register(self, name: str, tensor: object, *, stable: bool = True) -> None:
        """Register a slot. One that is not stable may get another storage of the same layout."""
    def seal(self) -> Snapshot:
        """Make the registry final. Do so before capture."""

@final
class Snapshot:
    """The slots that were there at capture."""

    @property
    def names(self) -> list[str]:
        """All slots, by name."""
    def __len__(self) -> int: ...
    def compare(self, now: dict[str, Any]) -> list[Difference]:
        """Compare with the tensor that each slot has now; None is a storage that is gone."""

@final
class Transaction:
    """The machine that an engine asks before each risky call."""

    def __new__(cls) -> Transaction: ...
    def begin(self, scope: Literal["full", "partial"] = "full", *, id: int | None = None) -> int:
        """Open a transaction and return its id. Ids rise."""
    def apply(self, id: int) -> None:
        """Announce a write. Call it before the write."""
    def finish(self, id: int) -> None:
        """Announce post-load: no write is accepted any more."""
    def verify(self, id: int) -> None:
        """Announce the check of what was written."""
    def commit(self, id: int) -> int:
        """Close a verified transaction and return the generation that is served from here on."""
    def abort(self, id: int) -> str:
        """Give a transaction up and return the state: "failed" after the first write."""
    def sleep(self, keeps: bool) -> None:
        """Take the weights from device memory; ``keeps`` says whether they come back on wake."""
    def wake(
        self, residency: Literal["awake", "weights_only", "asleep", "unknown"] = "awake"
    ) -> None:
        """Say what a wake brought back."""
    @property
    def state(self) -> str:
        """One of idle, vacant, begun, applying, finalizing, verifying, failed."""
    @property
    def id(self) -> int | None:
        """The open or failed transaction."""
    @property
    def generation(self) -> int:
        """The last committed generation; 0 before any."""
    @property
    def may_serve(self) -> bool:
        """Whether requests may run."""

_Spans = Sequence[tuple[int, int]]

@final
class Ledger:
    """The accounts of one rank in one transaction. A fragment is one (start, end) an axis."""

    def __new__(
        cls,
        pieces: Sequence[tuple[str, _Spans, str, _Spans]],
        aliases: Sequence[tuple[str, str]] = (),
    ) -> Ledger: ...
    def record(
        self, source: str, source_fragment: _Spans, slot: str, slot_fragment: _Spans
    ) -> None:
        """Record one application, which may be any part of a piece."""
    @property
    def applications(self) -> int:
        """Applications that were accepted."""
    def missing(self) -> list[str]:
        """What is missing, a sentence for each source and slot."""

@final
class Receipt:
    """What one rank saw of a transaction."""

    def __new__(
        cls,
        rank: tuple[int, int, int],
        transaction: int,
        *,
        applications: int,
        contents: Mapping[str, str],
        unrouted: Sequence[str] = (),
        buffered: Sequence[str] = (),
        ready: bool = True,
    ) -> Receipt: ...

def device_status(ordinal: int = 0, platform: str = "cuda") -> str:
    """Say in one line what a device is, or what is missing."""

@final
class Device:
    """A device, opened by its number in the driver's order."""

    def __new__(cls, ordinal: int = 0, platform: str = "cuda") -> Device: ...
    def describe(self) -> str:
        """Return its name and driver, in one line."""
    def synchronise(self) -> None:
        """Wait for everything that was launched on it."""
    def allocation(self, address: int) -> tuple[int, int] | None:
        """Return the driver's allocation around an address, as (address, bytes)."""
    def capture_under_way(self, stream: int) -> int:
        """Return the handle of the graph that a stream records now."""
    def census(
        self, graph: int, known: Sequence[tuple[int, int]] = (), table_bytes: int = 4096
    ) -> Census:
        """Count what a raw ``CUgraph`` retains; ``known`` is memory that is or was there."""
    def digests(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int], Sequence[int], int]],
        tile_blocks: int = 2048,
    ) -> DigestPlan:
        """Load tensors, each as (name, dtype, shape, stride, address), for one launch."""

@final
class DigestPlan:
    """Tensors whose digests can be taken again and again."""

    def run(self, stream: int = 0) -> list[str]:
        """Digest all of them behind what ``stream`` holds."""
    def last_ms(self) -> float:
        """Return the milliseconds of device time of the last launch."""
    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
    def __len__(self) -> int: ...

@final
class Census:
    """What one graph retains."""

    @property
    def nodes(self) -> list[tuple[list[int], str, str, int, str | None]]:
        """Every node: (path, kind, kernel, arguments, why it could not be read)."""
    @property
    def addresses(self) -> list[tuple[int, int, int, int, int | None]]:
        """Every address: (node, argument, byte in it, address, place in a table)."""
    @property
    def others(self) -> list[tuple[int, int]]:
        """The driver's allocations under addresses that the caller did not know."""
    @property
    def unfollowed(self) -> list[int]:
        """Addresses behind which no table could be looked for.

        No memory is there any more, or it cannot be read and may hold any address.
        """
    def __len__(self) -> int: ...

@final
class RetainedLog:
    """An allocator's log, cut where graphs were captured."""

    def __new__(
        cls,
        events: Sequence[tuple[str, int, int, int]],
        captured: int,
        pools: Sequence[tuple[int, int]] = (),
    ) -> RetainedLog: ...
    def judge(
        self,
        addresses: Sequence[int],
        then: Sequence[tuple[str, int, int, str, bool]],
        now: Sequence[tuple[str, int, int, str, bool]],
    ) -> list[tuple[int, str, str | None, str, str]]:
        """Say what became of each address: (address, class, owner, fate, detail)."""
