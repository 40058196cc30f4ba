"""Handovers of cached prompts in virtual time: carries out what the machines of
`core/migration/handover.py` instruct, as `runtime/instance/handovers.py` does on a live
instance."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count

from controller.core.migration.handover import (
    FILL_WITHIN_S,
    Answered,
    Began,
    DestinationLost,
    Event,
    Fill,
    Handover,
    HandoverView,
    Offer,
    Ticked,
)
from controller.core.migration.prefix_fetch import FetchOutcome
from controller.model.engine_state import ModelRequest
from controller.sim.event_queue import EventQueue
from controller.sim.instance import SimInstance
from controller.sim.outcome import Outcome
from controller.sim.sim_fetches import SimFetch, SimFetches

Then = Callable[[HandoverView], None]


class SimHandovers:
    def __init__(self, events: EventQueue, fetches: SimFetches, outcome: Outcome) -> None:
        self.events = events
        self.fetches = fetches
        self.outcome = outcome
        self.numbers = count()
        self._under_way: dict[str, _SimHandover] = {}
        """By the id of the source."""

    def begin(
        self,
        source: SimInstance,
        destinations: Sequence[SimInstance],
        limit_s: float,
        max_tokens: int | None,
        then: Then,
    ) -> None:
        """Begins a handover, after the one that is under way from this source. `then` is called
        when it is over, unless the source dies."""
        begin = partial(self._begin, source, destinations, limit_s, max_tokens, then)
        under_way = self._under_way.get(source.instance_id)
        if under_way is None:
            begin()
        else:
            under_way.following = begin

    def fill(self, fill: Fill, newcomer: SimInstance, sources: Sequence[SimInstance]) -> None:
        """Lets these instances hand prompts over to a new one."""
        max_tokens = fill.tokens_each(
            newcomer.status().num_total_blocks * newcomer.engine.config.block_size
        )
        for source in sources:
            self.begin(source, [newcomer], FILL_WITHIN_S, max_tokens, lambda _view: None)

    def gone(self, instance: SimInstance) -> None:
        """The instance died, or was removed."""
        self._under_way.pop(instance.instance_id, None)
        for handover in list(self._under_way.values()):
            handover.tell(DestinationLost(instance.instance_id))

    def over(self, handover: "_SimHandover") -> None:
        view = handover.machine.view()
        self.outcome.num_handed_over_tokens += view.num_tokens
        del self._under_way[handover.source.instance_id]
        handover.then(view)
        if handover.following is not None:
            handover.following()

    def _begin(
        self,
        source: SimInstance,
        destinations: Sequence[SimInstance],
        limit_s: float,
        max_tokens: int | None,
        then: Then,
    ) -> None:
        if not source.alive:
            return
        there = [each for each in destinations if each.alive]
        begun = _SimHandover(self, source, there, limit_s, max_tokens, then)
        self._under_way[source.instance_id] = begun
        self.events.after(limit_s, lambda: begun.tell(Ticked()))
        begun.tell(Began())


class _SimHandover:
    """A handover under way. `following`: begins the one that was ordered meanwhile."""

    def __init__(
        self,
        shared: SimHandovers,
        source: SimInstance,
        destinations: Sequence[SimInstance],
        limit_s: float,
        max_tokens: int | None,
        then: Then,
    ) -> None:
        self.source = source
        self.then = then
        self.following: Callable[[], None] | None = None
        self._shared = shared
        self._destinations = {each.instance_id: each for each in destinations}
        self._prompts = dict(reversed(source.finished.items()))
        self.machine = Handover(
            list(self._prompts),
            list(self._destinations),
            self._names,
            limit_s,
            shared.events.now_s,
            max_tokens,
        )

    def tell(self, event: Event) -> None:
        if not self.source.alive or self.machine.over:
            return
        for instruction in self.machine.handle(event, self._shared.events.now_s):
            if isinstance(instruction, Offer):
                self._offer(instruction)
            else:
                self._shared.over(self)

    def _offer(self, offer: Offer) -> None:
        destination, shared = self._destinations[offer.destination_id], self._shared
        segment_at, end = self._prompts[offer.prompt_id].segment_at, 0
        assert segment_at is not None
        for _ in range(offer.num_blocks):
            _, _, end = segment_at(end)

        def copied(fetch: SimFetch) -> None:
            outcome = fetch.machine.outcome
            assert outcome is not None
            num_tokens = fetch.num_copied * self._shared.fetches.block_size
            answered(outcome, num_tokens)

        def answered(outcome: FetchOutcome, num_tokens: int = 0) -> None:
            self.tell(Answered(offer.destination_id, offer.prompt_id, outcome, num_tokens))

        def begin() -> None:
            if destination.draining:
                answered(FetchOutcome.NO_ROOM)
                return
            key = f"handover-{next(shared.numbers)}"
            limit_s = self.machine.until_s - shared.events.now_s
            SimFetch(
                shared.fetches,
                key,
                segment_at,
                end,
                self.source,
                destination,
                limit_s,
                copied,
                is_offered=True,
            ).begin()

        shared.fetches.links.send(lambda: destination.between_steps(begin))

    def _names(self, prompt_id: str) -> Sequence[Hashable]:
        """The names of the whole segments of the prompt: cheaper than the names of its blocks."""
        return _segments(self._prompts[prompt_id], self._shared.fetches.block_size)


def _segments(request: ModelRequest, block_size: int) -> list[Hashable]:
    assert request.segment_at is not None
    names, begin, num_blocks = list[Hashable](), 0, (request.num_prompt_tokens - 1) // block_size
    while begin < num_blocks:
        name, _, end = request.segment_at(begin)
        if end > num_blocks:
            break
        names.append(name)
        begin = end
    return names
