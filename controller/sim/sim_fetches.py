"""Cached prefixes that instances copy from each other, and from their host caches, in virtual time.
Carries out what the machine of `core/migration/prefix_fetch.py` instructs, as
`runtime/instance/prefix_fetches.py` does on a live instance. Copies queue on the link of their
source, with those of moves."""

from collections.abc import Callable, Sequence

from controller.core.migration.handover import leaves_room
from controller.core.migration.prefix_fetch import (
    CancelCopy,
    Copied,
    Copy,
    CopyFailed,
    Enter,
    Event,
    Instruction,
    PrefixFetch,
    Reserve,
    Reserved,
    Store,
    Stored,
    Ticked,
)
from controller.core.scheduler_events import Fetch
from controller.model.engine_state import ModelRequest, SegmentAt
from controller.sim.event_queue import EventQueue
from controller.sim.instance import SimInstance
from controller.sim.outcome import Outcome
from controller.sim.request_run import RequestRun
from controller.sim.sim_moves import Links


class SimFetches:
    """What all fetches share."""

    def __init__(
        self,
        events: EventQueue,
        links: Links,
        outcome: Outcome,
        block_size: int,
        block_bytes: int,
    ) -> None:
        self.events = events
        self.links = links
        self.outcome = outcome
        self.block_size = block_size
        self.block_bytes = block_bytes
        self._latest: dict[str, SimFetch] = {}
        """For each destination the fetch that began last, if it is under way."""

    def begin(
        self,
        run: RequestRun,
        fetch: Fetch,
        source: SimInstance | None,
        destination: SimInstance,
        enter: Callable[[], None],
    ) -> None:
        """Begins a fetch. The destination is between two steps. `enter` is called between two of
        its steps, unless it dies."""
        request, destination_id = run.request, destination.instance_id
        if not fetch.instance_id:
            earlier = self._latest.get(destination_id)
            if earlier is not None:
                earlier.lets_in(request, enter)
            else:
                enter()
        elif source is None or request.segment_at is None:
            enter()
        else:
            num_blocks = fetch.num_tokens // self.block_size
            begun = SimFetch(
                self,
                request.request_id,
                request.segment_at,
                num_blocks,
                source,
                destination,
                fetch.limit_s,
                self._over,
            )
            self._latest[destination_id] = begun
            begun.lets_in(request, enter)
            begun.begin()

    def _over(self, fetch: "SimFetch") -> None:
        if self._latest.get(fetch.destination.instance_id) is fetch:
            del self._latest[fetch.destination.instance_id]


class SimFetch:
    """The copy of the first `num_blocks` blocks of a prompt. `key`: no other copy at these two
    instances has it. `then` is called when it is over, unless the destination dies. `is_offered`:
    the source offered it, and no request waits for it."""

    def __init__(
        self,
        shared: SimFetches,
        key: str,
        segment_at: SegmentAt,
        num_blocks: int,
        source: SimInstance,
        destination: SimInstance,
        limit_s: float,
        then: Callable[["SimFetch"], None],
        *,
        is_offered: bool = False,
    ) -> None:
        self.source = source
        self.destination = destination
        self.num_copied = 0
        """How many blocks have arrived."""
        self.machine = PrefixFetch(limit_s, shared.events.now_s)
        self._shared = shared
        self._key = key
        self._segment_at = segment_at
        self._num_blocks = num_blocks
        self._num_cached = 0
        self._then = then
        self._is_offered = is_offered
        self._waiting: list[tuple[str, Callable[[], None]]] = []

    def begin(self) -> None:
        self._carry_out(self.machine.start())

    def lets_in(self, request: ModelRequest, enter: Callable[[], None]) -> None:
        """Calls `enter` when this fetch is over, for a request whose prompt begins with what is
        copied."""
        num_tokens = self._num_blocks * self._shared.block_size
        self.destination.fetching[request.request_id] = request, num_tokens
        self._waiting.append((request.request_id, enter))

    def _tell(self, event: Event) -> None:
        if self.destination.alive:
            self._carry_out(self.machine.handle(event, self._shared.events.now_s))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Reserve():
                    self._reserve()
                case Copy():
                    if self.source is self.destination:
                        self._load()
                    else:
                        self._shared.links.send(self._asked)
                    events, until_s = self._shared.events, self.machine.until_s
                    events.at(max(events.now_s, until_s), lambda: self._tell(Ticked()))
                case CancelCopy():
                    self._tell(CopyFailed())
                case Store(num_blocks):
                    self.destination.between_steps(lambda n=num_blocks: self._store(n))  # type: ignore[misc]
                case Enter():
                    self._then(self)
                    for key, enter in self._waiting:
                        del self.destination.fetching[key]
                        enter()

    def _reserve(self) -> None:
        engine = self.destination.engine
        self._num_cached = engine.fetches.num_cached(self._segment_at, self._num_blocks)
        num_lacking = self._num_blocks - self._num_cached
        reserved = engine.fetches.reserve(self._key, self._segment_at, self._num_blocks)
        num_reserved = 0 if reserved is None else num_lacking
        if num_reserved and self._is_offered:
            num_free = engine.snapshot("", 0).num_free_blocks
            if not leaves_room(num_free, num_reserved):
                engine.fetches.commit(self._key, self._segment_at, self._num_cached)
                num_reserved = 0
        self._tell(Reserved(num_reserved, num_lacking))

    def _store(self, num_blocks: int) -> None:
        self.num_copied = num_blocks
        fetches = self.destination.engine.fetches
        fetches.commit(self._key, self._segment_at, self._num_cached + num_blocks)
        self._tell(Stored())

    def _load(self) -> None:
        """Loads from the own host cache what is still there."""
        shared, there = self._shared, self.destination
        found = there.engine.fetches.with_host(self._segment_at, self._num_cached, self._num_blocks)
        num_blocks = found - self._num_cached
        shared.outcome.num_loaded_tokens += num_blocks * shared.block_size
        shared.links.load(
            there.instance_id,
            num_blocks * shared.block_bytes,
            lambda: self._tell(Copied(num_blocks)),
        )

    # -- source --------------------------------------------------------------------------

    def _asked(self) -> None:
        if self.source.alive:
            self.source.between_steps(self._lend)
        else:
            self._tell(CopyFailed())

    def _lend(self) -> None:
        source, shared = self.source, self._shared
        found = source.engine.fetches.lend(self._key, self._segment_at, self._num_blocks)
        num_blocks = max(0, found - self._num_cached)
        if not self._is_offered:
            shared.outcome.num_fetched_tokens += num_blocks * shared.block_size

        def sent() -> None:
            source.between_steps(lambda: source.engine.fetches.give_back(self._key))

        def arrived() -> None:
            self._tell(Copied(num_blocks) if source.alive else CopyFailed())

        num_bytes = num_blocks * shared.block_bytes
        shared.links.copy(source.instance_id, num_bytes, sent, arrived)
