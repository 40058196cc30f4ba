"""The requests that live on an instance, and what their moves need: the llumlet as moves see it,
and a digest of the blocks that they copy.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from controller.core.emptying.relief import PastMoves
from controller.core.instance_ref import InstanceRef
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.ownership import Epoch
from controller.core.record.event_log import LoggedEvent
from controller.ports.engine import Engine, Frames, KvBlocks
from controller.ports.kv_transfer import KvTransfer
from controller.runtime.messages.members import Message

MAX_HOPS = 32
"""Moves kept of one request, and so the largest limit of moves in a minute."""


@dataclass(slots=True)
class PastInstances:
    """The instances that a request has left by moves. Times are the llumlet's, in seconds.

    The list travels with the request, and its times as ages, because clocks differ between
    machines; so the duration of each move, some tens of milliseconds, is not counted.
    """

    _hops: list[tuple[str, float]] = field(default_factory=list)

    @classmethod
    def after(cls, ages: PastMoves, source_id: str, now_s: float) -> "PastInstances":
        """The list of a request that has just come from `source_id`, which knew `ages`."""
        hops = [(instance_id, now_s - ago_s) for instance_id, ago_s in ages]
        return cls([*hops, (source_id, now_s)][-MAX_HOPS:])

    def ages(self, now_s: float) -> PastMoves:
        return tuple((instance_id, now_s - at_s) for instance_id, at_s in self._hops)


@dataclass(frozen=True, slots=True)
class Kept:
    """A step's tokens for the request: the engine's own object, or frames that an earlier source
    encoded."""

    first_index: int
    num_tokens: int
    body: Any
    encoded: bool = False


@dataclass(slots=True)
class LiveRequest:
    """A request that lives on this instance. `frames`: the request as its frontend encoded it."""

    frontend: str
    attempt: int
    hop: int
    arrival_time_s: float
    frames: Sequence[bytes]
    next_index: int = 0
    kept: deque[Kept] = field(default_factory=deque)
    rank: int = 0
    evicted_at_s: float | None = None
    """When it lost its blocks last; seconds since the epoch."""
    rank_change: int = 0
    """The number, by its frontend's count, of the last change of its rank that counts here; 0:
    none."""
    arrived_by: MoveRecord | None = None
    """The move that brought it, until its first token here."""
    past_instances: PastInstances = field(default_factory=PastInstances)

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.attempt, self.hop)

    def keep(self, num_tokens: int, body: Any) -> None:
        """Call it before `next_index` counts the tokens."""
        if num_tokens:
            self.kept.append(Kept(self.next_index, num_tokens, body))

    def received(self, next_index: int) -> None:
        """The frontend has all tokens below `next_index`."""
        while self.kept and self.kept[0].first_index + self.kept[0].num_tokens <= next_index:
            self.kept.popleft()


T = TypeVar("T")


class MoveHost(Protocol):
    """The part of the llumlet that moves use. All of it is used on the event loop's thread."""

    requests: dict[str, LiveRequest]
    transfer: KvTransfer
    blocks: KvBlocks
    fingerprint: str

    @property
    def me(self) -> InstanceRef: ...

    def now_s(self) -> float: ...

    def between_steps(
        self, work: Callable[[Engine], T], then: Callable[[T], None] | None = None
    ) -> None:
        """Runs `work` on the engine's thread before its next step, in the order of the calls;
        `then` gets the result before any output of that step."""

    def push_status(self) -> None:
        """Tells the controller of the room that the calls so far have made, before the next
        step."""

    def send(self, address: str, message: Message, payload: Sequence[Any] = ()) -> None: ...

    def tell(self, event: LoggedEvent, frontend: str) -> None:
        """Sends an event to the cluster's log and to the request's history at its frontend."""

    def prepare(self, frames: Sequence[Any], frontend: str) -> Any:
        """Raises ValueError for a request that this engine cannot take."""

    def compiling(self, prepared: Any) -> Future[Any] | None:
        """The compile of a prepared request's grammar."""

    def encode_kept(self, kept: Kept, request_id: str) -> Frames:
        """Encodes one request's part of a step's outputs for its frontend."""

    def set_rank(self, request_id: str, rank: int) -> None:
        """Sets the rank of a request that is here, also during a move."""

    def end(self, request_id: str, epoch: Epoch) -> None:
        """The client left: frees the request, or has it freed at the instance to which it moved in
        or after `epoch`. A later attempt of it that is here goes on."""


SLICE_BYTES = 4 << 20
"""So much is read at once for a digest."""


class KvDigest:
    """A digest of the copied blocks of one move, to compare both sides with (`--verify-kv`). Used
    from the event loop's thread; another thread reads the blocks in slices, about 1 s per GiB.

    Full blocks do not change any more, so each stage's blocks are read after their copy, while the
    request decodes on. Only the last stage's, one block or two, are read while it is suspended.
    """

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._digest = hashlib.blake2b(digest_size=32)
        self._last: asyncio.Task[bytes] | None = None

    def add(self, block_ids: Sequence[int]) -> "asyncio.Future[bytes]":
        """Adds blocks, which must not change until the future is done; its result is 32 bytes over
        all blocks so far, in order. If blocks cannot be read, this future fails and all later
        ones."""
        taking = self._take(self._last, tuple(block_ids))
        self._last = asyncio.get_running_loop().create_task(taking)
        self._last.add_done_callback(_heeded)
        return self._last

    async def _take(self, before: "asyncio.Task[bytes] | None", block_ids: Sequence[int]) -> bytes:
        if before is not None:
            await before
        return await asyncio.get_running_loop().run_in_executor(None, self._read, block_ids)

    def _read(self, block_ids: Sequence[int]) -> bytes:
        num_per_slice = max(1, SLICE_BYTES // self._blocks.block_bytes)
        buffer = self._blocks.buffer(num_per_slice)
        for first in range(0, len(block_ids), num_per_slice):
            there = block_ids[first : first + num_per_slice]
            self._digest.update(self._blocks.gather(there, buffer))
        return self._digest.digest()


def _heeded(taking: "asyncio.Task[bytes]") -> None:
    """Marks a failure as seen: the next `add` fails too, or the move is over."""
    if not taking.cancelled():
        taking.exception()
