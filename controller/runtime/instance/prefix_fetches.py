"""Cached prefixes that this instance copies from others, or from its host cache, before it computes
a request, and those that it sends. Each fetch here carries out what its machine in
`core/migration/prefix_fetch.py` instructs."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.copy_checks import sample_of
from controller.core.migration.handover import leaves_room
from controller.core.migration.prefix_fetch import (
    HOST_BYTES_PER_S,
    CancelCopy,
    Copied,
    Copy,
    CopyFailed,
    Digested,
    Distrusted,
    Enter,
    Event,
    FetchOutcome,
    FetchState,
    Instruction,
    NoDigest,
    PrefixFetch,
    RequestLeft,
    Reserve,
    Reserved,
    Store,
    Stored,
    TellCorrupt,
    Ticked,
    Verify,
)
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.windows import CountWindow
from controller.ports.engine import Engine, ReservedPrefix, StageCopy
from controller.runtime.instance.live_requests import CorruptCopy, MoveHost
from controller.runtime.instance.move_ends import KvDigest
from controller.runtime.messages.move_messages import (
    PrefixAsked,
    PrefixDigest,
    PrefixUnwanted,
    PromptOffered,
)
from controller.runtime.messages.requests import AddRequest, FetchFrom

log = logging.getLogger(__name__)

ASSUMED_BYTES_PER_S = 10e9
"""The rate of a copy while none was measured. It is a fast link's: a fetch over a slower one is
given up when computing is sooner, and shows how slow the link is. With a low rate no fetch would
ever be tried."""
MEASURED_BYTES = 1 << 20
"""Smaller copies take as long as their messages."""
NUM_MEASURED = 16
MEASURED_FOR_S = 600.0
"""An older copy says nothing about the link any more."""

WORDS = {
    FetchOutcome.FETCHED: "copied",
    FetchOutcome.HAD_IT: "not needed, all of it is here",
    FetchOutcome.NO_ROOM: "not copied, no blocks are free for it",
    FetchOutcome.NOT_THERE: "not copied, the source has it no more",
    FetchOutcome.FAILED: "not copied, the link failed or the source is gone",
    FetchOutcome.LATE: "not copied in time",
    FetchOutcome.LEFT: "not copied, the client left",
    FetchOutcome.CORRUPT: "not used, what arrived differs from what the source has",
    FetchOutcome.DISTRUSTED: "not copied, another copy from there was corrupt",
}


@dataclass(slots=True)
class _Fetch:
    key: str
    add: AddRequest
    fetch: FetchFrom
    source: InstanceRef
    prepared: Any
    enter: Callable[[], None]
    machine: PrefixFetch
    reserved: ReservedPrefix | None = None
    followers: dict[str, "_Follower"] = field(default_factory=dict)
    """The requests that begin alike and wait for this fetch, by id."""
    told_digest: "asyncio.Future[bytes] | None" = None
    """The source's digest, when it comes; None if the fetch is not verified."""
    is_offered: bool = False
    """Whether a source offered the prefix, and no request waits for it."""


@dataclass(slots=True)
class _Follower:
    add: AddRequest
    fetch: FetchFrom
    enter: Callable[[], None]


class _Rate:
    """How fast the latest copies were."""

    def __init__(self, assumed_bytes_per_s: float) -> None:
        self._assumed_bytes_per_s = assumed_bytes_per_s
        self._measured: deque[tuple[float, int, float]] = deque(maxlen=NUM_MEASURED)
        """The latest copies: when they ended, their bytes, and how long they took."""

    def measure(self, num_bytes: int, took_s: float, now_s: float) -> None:
        if num_bytes >= MEASURED_BYTES:
            self._measured.append((now_s, num_bytes, took_s))

    def bytes_per_s(self, now_s: float) -> float:
        measured = self._measured
        while measured and measured[0][0] < now_s - MEASURED_FOR_S:
            measured.popleft()
        num_bytes = sum(num_bytes for _, num_bytes, _ in measured)
        took_s = sum(took_s for _, _, took_s in measured)
        return num_bytes / took_s if took_s else self._assumed_bytes_per_s


class PrefixFetches:
    """Used on the event loop's thread. `block_size`: tokens of a block."""

    def __init__(self, host: MoveHost, block_size: int) -> None:
        self._host = host
        self._block_size = block_size
        self._numbers = count()
        self._fetches: dict[str, _Fetch] = {}
        """The fetches under way, by request id, in the order in which they began; those whose
        client has left are not here."""
        self._offered: dict[str, _Fetch] = {}
        """The fetches under way of prompts that were offered, by key."""
        self._following: dict[str, _Fetch] = {}
        """By request id, the fetch for which the request waits."""
        self._sending: dict[str, InstanceRef] = {}
        """By key, the destination of each prefix that it asked for and that is not sent yet."""
        self._unwanted: set[str] = set()
        """The keys of those whose destination has given up."""
        self._verifying: dict[str, _Fetch] = {}
        """By key, the fetches whose sources are to tell digests."""
        self._loading: set[str] = set()
        """The keys of the fetches that hold blocks of the host cache."""
        self._link_rate, self._host_rate = _Rate(ASSUMED_BYTES_PER_S), _Rate(HOST_BYTES_PER_S)
        self.num_fetched_tokens = self.num_loaded_tokens = 0
        """The tokens that other instances had, and those that the host cache had, of all
        requests."""
        self._fetched_lately, self._loaded_lately = CountWindow(), CountWindow()

    def __len__(self) -> int:
        return len(self._fetches) + len(self._following)

    @property
    def quiet(self) -> bool:
        """Whether nothing is fetched, and no block is held to be sent."""
        works = (self._offered, self._verifying, self._sending, self._loading)
        return not (len(self) or any(works))

    def waiting(self) -> Iterator[tuple[AddRequest, FetchFrom]]:
        """The requests that are not in the engine yet because their prefixes are being fetched."""
        for found in self._fetches.values():
            yield found.add, found.fetch
        for request_id, found in self._following.items():
            follower = found.followers[request_id]
            yield follower.add, follower.fetch

    def fetched_last_minute(self) -> int:
        return self._fetched_lately.total(self._host.now_s())

    def loaded_last_minute(self) -> int:
        return self._loaded_lately.total(self._host.now_s())

    def load_token_s(self) -> float:
        """How long it takes to load a token's blocks from the host cache, by the latest loads."""
        rate = self._host_rate.bytes_per_s(self._host.now_s())
        return self._host.blocks.block_bytes / self._block_size / rate

    def copy_token_s(self) -> float:
        """How long the copy of a token's blocks takes, by the latest copies."""
        rate = self._link_rate.bytes_per_s(self._host.now_s())
        limit = self._host.transfer.max_bytes_per_s
        rate = min(rate, limit) if limit else rate
        return self._host.blocks.block_bytes / self._block_size / rate

    # -- destination ---------------------------------------------------------------------

    def begin(
        self, add: AddRequest, fetch: FetchFrom, prepared: Any, enter: Callable[[], None]
    ) -> None:
        """Fetches what the source has of the request's prompt. `enter` is called then, unless the
        request has left. Without a source, it is called after the fetch that began last."""
        source = fetch.source
        if source is None:
            if not self._fetches:
                enter()
                return
            latest = next(reversed(self._fetches.values()))
            latest.followers[add.request_id] = _Follower(add, fetch, enter)
            self._following[add.request_id] = latest
            return
        found = self._new(add, fetch, source, prepared, enter)
        self._fetches[add.request_id] = found
        self._start(found)

    def take_offer(
        self, offered: PromptOffered, prepared: Any, then: Callable[[FetchOutcome, int], None]
    ) -> None:
        """Fetches what a source offers of a prompt, if there is room enough beside the requests.
        `then` gets the outcome and the number of tokens that were copied."""

        def over() -> None:
            view = found.machine.view()
            assert view.outcome is not None
            is_here = view.outcome is FetchOutcome.FETCHED
            then(view.outcome, view.num_blocks * self._block_size * is_here)

        # No request has this id: it stands for the prompt in the engine's books.
        add = AddRequest(offered.key, "", self._host.me.incarnation, 0)
        num_tokens = offered.num_tokens
        fetch = FetchFrom(offered.source, num_tokens, num_tokens, offered.limit_s)
        found = self._new(add, fetch, offered.source, prepared, over)
        found.is_offered = True
        self._offered[found.key] = found
        self._start(found)

    def _new(
        self,
        add: AddRequest,
        fetch: FetchFrom,
        source: InstanceRef,
        prepared: Any,
        enter: Callable[[], None],
    ) -> _Fetch:
        me = self._host.me
        key = f"prefix-{me.instance_id}-{me.incarnation}-{next(self._numbers)}"
        verified = source.key != me.key and self._host.links.verifies(source)
        machine = PrefixFetch(fetch.limit_s, self._host.now_s(), verified=verified)
        return _Fetch(key, add, fetch, source, prepared, enter, machine)

    def _start(self, found: _Fetch) -> None:
        trusts = self._is_load(found) or self._host.links.trusts(found.source, self._host.now_s())
        self._follow(found, found.machine.start(trusts=trusts))

    def left(self, request_ids: Collection[str]) -> None:
        """These requests are not to enter the engine."""
        for request_id in request_ids:
            if (followed := self._following.pop(request_id, None)) is not None:
                del followed.followers[request_id]
            if (found := self._fetches.pop(request_id, None)) is not None:
                self._tell(found, RequestLeft())

    def peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        """Ends the copies from and to instances that are gone."""
        sources = {each.source for each in self._under_way()}
        for peer in {*sources, *self._sending.values()}:
            if is_lost(peer):
                self._host.transfer.forget(peer)
        for found in list(self._verifying.values()):
            if is_lost(found.source):
                _resolve(found.told_digest, b"")
        self._host.links.lost(is_lost)

    def distrust(self, source: InstanceRef) -> None:
        """A copy from there was corrupt: ends the other fetches from there."""
        for found in list(self._under_way()):
            if found.source.instance_id == source.instance_id:
                self._tell(found, Distrusted())

    def _under_way(self) -> Iterator[_Fetch]:
        yield from self._fetches.values()
        yield from self._offered.values()

    def _tell(self, found: _Fetch, event: Event) -> None:
        if not found.machine.over:
            self._follow(found, found.machine.handle(event, self._host.now_s()))

    def _follow(self, found: _Fetch, instructions: Sequence[Instruction]) -> None:
        if found.machine.over:
            under_way = self._offered if found.is_offered else self._fetches
            under_way.pop(found.key if found.is_offered else found.add.request_id, None)
            self._learn(found)
            if not found.is_offered:
                self._report(found)
        self._carry_out(found, instructions)
        if found.machine.over:
            if self._verifying.pop(found.key, None) is not None:
                _resolve(found.told_digest, b"")  # nobody waits for it any more
            for request_id, follower in list(found.followers.items()):
                del found.followers[request_id], self._following[request_id]
                follower.enter()

    def _carry_out(self, found: _Fetch, instructions: Sequence[Instruction]) -> None:
        host = self._host
        for instruction in instructions:
            match instruction:
                case Reserve():
                    host.between_steps(partial(_reserve, found), partial(self._reserved, found))
                case Copy():
                    self._copy(found)
                case CancelCopy():
                    host.transfer.cancel(found.key)
                    if not self._is_load(found):
                        host.send(found.source.address, PrefixUnwanted(found.key))
                case Verify(num_blocks):
                    self._verify(found, num_blocks)
                case TellCorrupt():
                    log.error("what came as %s differs from what its source has", found.key)
                    num_blocks, request_id = found.machine.view().num_blocks, found.add.request_id
                    copied = CorruptCopy(
                        found.source, found.key, request_id, "its prefix", num_blocks
                    )
                    host.copy_differed(copied, found.add.reply_to)
                case Store(num_blocks):
                    if not found.is_offered:
                        self._count(found, num_blocks)
                    host.between_steps(
                        partial(_store, found.key, num_blocks),
                        lambda _: self._tell(found, Stored()),
                    )
                case Enter():
                    found.enter()

    def _reserved(self, found: _Fetch, reserved: ReservedPrefix | bool) -> None:
        if isinstance(reserved, ReservedPrefix):
            found.reserved = reserved
            self._tell(found, Reserved(len(reserved.block_ids)))
        else:
            self._tell(found, Reserved(0, num_lacking=int(not reserved)))

    def _copy(self, found: _Fetch) -> None:
        host, source, reserved = self._host, found.source, found.reserved
        assert reserved is not None
        wait_s = found.machine.until_s - host.now_s()
        asyncio.get_running_loop().call_later(wait_s, self._tell, found, Ticked())
        if self._is_load(found):
            self._loading.add(found.key)
            host.between_steps(
                partial(_lend, found.key, reserved.names), partial(self._load, found)
            )
            return
        receiving = host.transfer.receive(source, found.key, reserved.block_ids)
        receiving.add_done_callback(partial(self._copied, found))
        if found.machine.verified:
            found.told_digest = asyncio.get_running_loop().create_future()
            self._verifying[found.key] = found
        asked = PrefixAsked(found.key, host.me, host.fingerprint, found.machine.verified)
        host.send(source.address, asked, [reserved.names])

    def _is_load(self, found: _Fetch) -> bool:
        """Whether the prefix comes from the host cache of this instance."""
        return found.source.key == self._host.me.key

    def _load(self, found: _Fetch, block_ids: tuple[int, ...]) -> None:
        assert found.reserved is not None
        loading = self._host.transfer.load(
            found.key, block_ids, found.reserved.block_ids[: len(block_ids)]
        )
        loading.add_done_callback(partial(self._loaded, found))
        if found.machine.state is not FetchState.COPYING:  # it was given up meanwhile
            self._host.transfer.cancel(found.key)

    def _loaded(self, found: _Fetch, loading: "asyncio.Future[StageCopy]") -> None:
        self._loading.discard(found.key)
        self._host.between_steps(partial(_take_back, found.key))
        self._copied(found, loading)

    def _copied(self, found: _Fetch, receiving: "asyncio.Future[StageCopy]") -> None:
        if receiving.cancelled() or (error := receiving.exception()) is not None:
            log.info("%s was not copied: %s", found.key, None if receiving.cancelled() else error)
            self._tell(found, CopyFailed())
            return
        done = receiving.result()
        self._measure(found, done.num_bytes, done.copy_time_s)
        if done.num_blocks and not self._is_load(found):
            self._host.links.copied(found.source, verified=found.machine.verified)
        self._tell(found, Copied(done.num_blocks))

    def _count(self, found: _Fetch, num_blocks: int) -> None:
        num_tokens, now_s = num_blocks * self._block_size, self._host.now_s()
        if self._is_load(found):
            self.num_loaded_tokens += num_tokens
            self._loaded_lately.add(num_tokens, now_s)
        else:
            self.num_fetched_tokens += num_tokens
            self._fetched_lately.add(num_tokens, now_s)

    def _verify(self, found: _Fetch, num_blocks: int) -> None:
        assert found.reserved is not None
        assert found.told_digest is not None
        own = self._digest(found.reserved.block_ids[:num_blocks])
        both = asyncio.gather(found.told_digest, own)
        both.add_done_callback(partial(self._digested, found))

    def _digest(self, block_ids: Sequence[int]) -> "asyncio.Future[bytes]":
        blocks = self._host.blocks
        return KvDigest(blocks).add(sample_of(block_ids, blocks.block_bytes))

    def _digested(self, found: _Fetch, both: "asyncio.Future[list[bytes]]") -> None:
        if both.cancelled() or (error := both.exception()) is not None:
            log.info("no digest of %s: %s", found.key, None if both.cancelled() else error)
            self._tell(found, NoDigest())
            return
        told, own = both.result()
        self._tell(found, Digested(told == own) if told else NoDigest())

    def digest_told(self, told: PrefixDigest) -> None:
        """Takes the digest of a source."""
        if (found := self._verifying.get(told.key)) is not None:
            _resolve(found.told_digest, told.digest)

    def _measure(self, found: _Fetch, num_bytes: int, took_s: float) -> None:
        rate = self._host_rate if self._is_load(found) else self._link_rate
        rate.measure(num_bytes, took_s, self._host.now_s())

    def _learn(self, found: _Fetch) -> None:
        """A fetch that was given up says something about its link: it was at most so fast."""
        view = found.machine.view()
        is_late = view.outcome is FetchOutcome.LATE and not view.num_blocks
        if is_late and found.reserved is not None:
            num_bytes = len(found.reserved.block_ids) * self._host.blocks.block_bytes
            self._measure(found, num_bytes, view.took_s)

    def _report(self, found: _Fetch) -> None:
        view, add, host = found.machine.view(), found.add, self._host
        assert view.outcome is not None
        source = found.source.instance_id
        where = "its host cache" if self._is_load(found) else source
        event = LoggedEvent(
            EventKind.PREFIX_FETCHED,
            time.time(),
            found.key,
            f"its prefix from {where}: {WORDS[view.outcome]}",
            instance_id=host.me.instance_id,
            incarnation=host.me.incarnation,
            request_id=add.request_id,
            numbers={
                "num_tokens": view.num_blocks * self._block_size,
                "num_blocks": view.num_blocks,
                "time_s": round(view.took_s, 4),
            },
            labels={"from": source, "outcome": str(view.outcome)},
        )
        host.tell(event, add.reply_to)

    # -- source --------------------------------------------------------------------------

    def asked(self, asked: PrefixAsked, payload: Sequence[Any]) -> None:
        """Sends what the cache has of the prefix."""
        names = bytes(payload[0]) if payload else b""
        self._sending[asked.key] = asked.destination
        is_alike = asked.fingerprint == self._host.fingerprint
        self._host.between_steps(
            partial(_lend, asked.key, names if is_alike else b""), partial(self._send, asked)
        )

    def _send(self, asked: PrefixAsked, block_ids: tuple[int, ...]) -> None:
        sending = self._host.transfer.send(asked.destination, asked.key, block_ids)
        if asked.key in self._unwanted:
            self._host.transfer.cancel(asked.key)
        reading: list[asyncio.Future[Any]] = [sending]
        if asked.verify and block_ids:
            digest = self._digest(block_ids)
            digest.add_done_callback(partial(self._tell_digest, asked))
            reading.append(digest)
        elif asked.verify:
            self._host.send(asked.destination.address, PrefixDigest(asked.key, b""))
        both = asyncio.gather(*reading, return_exceptions=True)
        both.add_done_callback(partial(self._sent, asked))

    def unwanted(self, key: str) -> None:
        """Ends what is sent as `key`. Over a slow link it would hold its blocks for hours."""
        if key in self._sending:
            self._unwanted.add(key)
            self._host.transfer.cancel(key)

    def _tell_digest(self, asked: PrefixAsked, digest: "asyncio.Future[bytes]") -> None:
        taken = not digest.cancelled() and digest.exception() is None
        told = PrefixDigest(asked.key, digest.result() if taken else b"")
        self._host.send(asked.destination.address, told)

    def _sent(self, asked: PrefixAsked, both: "asyncio.Future[list[Any]]") -> None:
        """Called when nothing reads the blocks any more."""
        if isinstance(error := both.result()[0], Exception):
            log.info("%s was not sent: %s", asked.key, error)
        del self._sending[asked.key]
        self._unwanted.discard(asked.key)
        self._host.between_steps(partial(_take_back, asked.key))


def _resolve(digest: "asyncio.Future[bytes] | None", told: bytes) -> None:
    if digest is not None and not digest.done():
        digest.set_result(told)


# -- on the engine's thread ------------------------------------------------------------------------


def _reserve(found: _Fetch, engine: Engine) -> ReservedPrefix | bool:
    """Returns True if the engine lacks nothing, and False if it has no room."""
    if engine.prefixes is None:
        return False
    reserved = engine.prefixes.reserve(found.key, found.prepared, found.fetch.num_tokens)
    if found.is_offered and reserved is not None and reserved.block_ids:
        me = found.source  # only the blocks count in the snapshot
        num_left = engine.snapshot(me.instance_id, me.incarnation).num_free_blocks
        if not leaves_room(num_left, len(reserved.block_ids)):
            engine.prefixes.store(found.key, 0)
            return False
    return False if reserved is None else reserved if reserved.block_ids else True


def _store(key: str, num_blocks: int, engine: Engine) -> None:
    if engine.prefixes is not None:
        engine.prefixes.store(key, num_blocks)


def _lend(key: str, names: bytes, engine: Engine) -> tuple[int, ...]:
    return () if engine.prefixes is None else engine.prefixes.lend(key, names)


def _take_back(key: str, engine: Engine) -> None:
    if engine.prefixes is not None:
        engine.prefixes.take_back(key)
