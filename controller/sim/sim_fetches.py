"""Cached prefixes that instances copy from each other, and from their host caches, in virtual time.
Carries out what the machine of `core/migration/prefix_fetch.py` instructs, as
`runtime/instance/prefix_fetches.py` does on a live instance. Copies queue on the link of their
source, with those of moves."""

from collections.abc import Callable, Sequence

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
from controller.model.engine_state import SegmentAt
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
        self._latest: dict[str, _SimFetch] = {}
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
        if not fetch.instance_id:
            earlier = self._latest.get(destination.instance_id)
            if earlier is not None:
                earlier.after(run, enter)
            else:
                enter()
        elif source is None or run.request.segment_at is None:
            enter()
        else:
            segment_at = run.request.segment_at
            begun = _SimFetch(self, run, fetch, source, destination, segment_at, enter)
            self._latest[destination.instance_id] = begun
            begun.begin()

    def over(self, fetch: "_SimFetch", destination: SimInstance) -> None:
        if self._latest.get(destination.instance_id) is fetch:
            del self._latest[destination.instance_id]


class _SimFetch:
    def __init__(
        self,
        shared: SimFetches,
        run: RequestRun,
        fetch: Fetch,
        source: SimInstance,
        destination: SimInstance,
        segment_at: SegmentAt,
        enter: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._key = run.request.request_id
        self._source = source
        self._destination = destination
        self._segment_at = segment_at
        self._enter = enter
        self._num_blocks = fetch.num_tokens // shared.block_size
        self._num_cached = 0
        self._followers: list[tuple[str, Callable[[], None]]] = []
        self._num_tokens = fetch.num_tokens
        self._machine = PrefixFetch(fetch.limit_s, shared.events.now_s)
        destination.fetching[self._key] = run.request, fetch.num_tokens

    def begin(self) -> None:
        self._carry_out(self._machine.start())

    def after(self, run: RequestRun, enter: Callable[[], None]) -> None:
        """Calls `enter` when this fetch is over, for another request that begins alike."""
        self._destination.fetching[run.request.request_id] = run.request, self._num_tokens
        self._followers.append((run.request.request_id, enter))

    def _tell(self, event: Event) -> None:
        if self._destination.alive:
            self._carry_out(self._machine.handle(event, self._shared.events.now_s))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Reserve():
                    self._reserve()
                case Copy():
                    if self._source is self._destination:
                        self._load()
                    else:
                        self._shared.links.send(self._asked)
                    events, until_s = self._shared.events, self._machine.until_s
                    events.at(max(events.now_s, until_s), lambda: self._tell(Ticked()))
                case CancelCopy():
                    self._tell(CopyFailed())
                case Store(num_blocks):
                    self._destination.between_steps(lambda n=num_blocks: self._store(n))  # type: ignore[misc]
                case Enter():
                    self._shared.over(self, self._destination)
                    for key, enter in [(self._key, self._enter), *self._followers]:
                        del self._destination.fetching[key]
                        enter()

    def _reserve(self) -> None:
        fetches = self._destination.engine.fetches
        self._num_cached = fetches.num_cached(self._segment_at, self._num_blocks)
        num_lacking = self._num_blocks - self._num_cached
        reserved = fetches.reserve(self._key, self._segment_at, self._num_blocks)
        self._tell(Reserved(0 if reserved is None else num_lacking, num_lacking))

    def _store(self, num_blocks: int) -> None:
        fetches = self._destination.engine.fetches
        fetches.commit(self._key, self._segment_at, self._num_cached + num_blocks)
        self._tell(Stored())

    def _load(self) -> None:
        """Loads from the own host cache what is still there."""
        shared, there = self._shared, self._destination
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
        if self._source.alive:
            self._source.between_steps(self._lend)
        else:
            self._tell(CopyFailed())

    def _lend(self) -> None:
        source, shared = self._source, self._shared
        found = source.engine.fetches.lend(self._key, self._segment_at, self._num_blocks)
        num_blocks = max(0, found - self._num_cached)
        shared.outcome.num_fetched_tokens += num_blocks * shared.block_size

        def sent() -> None:
            source.between_steps(lambda: source.engine.fetches.give_back(self._key))

        def arrived() -> None:
            self._tell(Copied(num_blocks) if source.alive else CopyFailed())

        num_bytes = num_blocks * shared.block_bytes
        shared.links.copy(source.instance_id, num_bytes, sent, arrived)
