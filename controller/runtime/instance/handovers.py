"""Prompts that this instance hands over to others, and those that others hand over to it. Each
handover here carries out what its machine in `core/migration/handover.py` instructs; the copies are
those of `prefix_fetches.py`."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from typing import Any

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.handover import (
    MAX_PROMPTS,
    Answered,
    Began,
    DestinationLost,
    Event,
    Handover,
    Offer,
    Ticked,
)
from controller.core.migration.prefix_fetch import FetchOutcome
from controller.ports.engine import EnginePrefixes
from controller.runtime.instance.live_requests import MoveHost
from controller.runtime.instance.prefix_fetches import PrefixFetches
from controller.runtime.messages.move_messages import (
    HandoverEnded,
    HandoverOrdered,
    PromptOffered,
    PromptTaken,
)

log = logging.getLogger(__name__)

MAX_PROMPT_BYTES = 64 << 20
"""How many bytes the prompts take that are remembered. A token takes up to 5 bytes, so these are 13
million tokens."""
MARGIN_S = 1.0
"""How much later than its limit a destination may answer."""


class RecentPrompts:
    """The prompts of the requests that finished here last, as their frontends encoded them."""

    def __init__(self) -> None:
        self._frames: OrderedDict[str, Sequence[bytes]] = OrderedDict()
        """By request id; what finished last comes last."""
        self._num_bytes = 0

    def add(self, request_id: str, frames: Sequence[bytes]) -> None:
        self._drop(request_id)
        self._frames[request_id] = frames
        self._num_bytes += _size(frames)
        while self._num_bytes > MAX_PROMPT_BYTES or len(self._frames) > MAX_PROMPTS:
            self._drop(next(iter(self._frames)))

    def latest_first(self) -> dict[str, Sequence[bytes]]:
        return dict(reversed(self._frames.items()))

    def _drop(self, request_id: str) -> None:
        self._num_bytes -= _size(self._frames.pop(request_id, ()))


def _size(frames: Sequence[bytes]) -> int:
    return sum(len(frame) for frame in frames)


class _Source:
    """A handover under way from here."""

    def __init__(self, ordered: HandoverOrdered, machine: Handover) -> None:
        self.machine = machine
        self.cause_id = ordered.cause_id
        self.destinations = {each.instance_id: each for each in ordered.destinations}
        self.keys: dict[str, tuple[str, str]] = {}
        """By key of an offer under way: the destination's id, and the prompt's."""


class Handovers:
    """Used on the event loop's thread. `prefixes`: of the engine; None if it cannot copy cached
    blocks. `tell_controller`: sends the controller a message. `is_leaving`: whether this instance
    takes no prompts."""

    def __init__(
        self,
        host: MoveHost,
        fetches: PrefixFetches,
        prefixes: EnginePrefixes | None,
        block_size: int,
        tell_controller: Callable[[HandoverEnded], None],
        is_leaving: Callable[[], bool],
    ) -> None:
        self._host = host
        self._fetches = fetches
        self._prefixes = prefixes
        self._block_size = block_size
        self._tell_controller = tell_controller
        self._is_leaving = is_leaving
        self._numbers = count()
        self._prompts = RecentPrompts()
        self._frames: dict[str, Sequence[bytes]] = {}
        """The prompts of the handover under way, by request id."""
        self._source: _Source | None = None
        self._next: HandoverOrdered | None = None
        """The order that came last while a handover was under way."""

    # -- source --------------------------------------------------------------------------

    def finished(self, request_id: str, frames: Sequence[bytes]) -> None:
        """Remembers the prompt of a request."""
        if self._prefixes is not None:
            self._prompts.add(request_id, frames)

    def ordered(self, ordered: HandoverOrdered) -> None:
        """Begins a handover, after the one that is under way."""
        if self._source is not None:
            self._next = ordered
            return
        self._frames = {} if self._prefixes is None else self._prompts.latest_first()
        destinations = [each.instance_id for each in ordered.destinations]
        limit_s, now_s = ordered.within_s, self._host.now_s()
        names_of = cache(self._names)  # hashing 100,000 tokens takes the loop tens of milliseconds
        machine = Handover(
            list(self._frames), destinations, names_of, limit_s, now_s, ordered.max_tokens
        )
        self._source = _Source(ordered, machine)
        self._tell(Began())
        if self._source is not None:
            loop = asyncio.get_running_loop()
            for delay_s, event in ((limit_s, self._tick), (limit_s + MARGIN_S, self._give_up)):
                loop.call_later(delay_s, event, machine)

    def taken(self, taken: PromptTaken) -> None:
        """Takes the answer of a destination."""
        if self._source is None:
            return
        destination_id, prompt_id = self._source.keys.pop(taken.key, ("", ""))
        if destination_id:
            outcome = FetchOutcome(taken.outcome)
            self._tell(Answered(destination_id, prompt_id, outcome, taken.num_tokens))

    def peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        source = self._source
        for destination_id, ref in () if source is None else tuple(source.destinations.items()):
            if is_lost(ref):
                self._tell(DestinationLost(destination_id))

    def _names(self, request_id: str) -> Sequence[bytes]:
        assert self._prefixes is not None
        try:
            prepared = self._prefixes.prompt(self._frames[request_id])
        except ValueError as error:
            log.info("the prompt of %s is not handed over: %s", request_id, error)
            return ()
        return () if prepared is None else self._prefixes.names(prepared)

    def _tick(self, machine: Handover) -> None:
        if self._source is not None and self._source.machine is machine:
            self._tell(Ticked())

    def _give_up(self, machine: Handover) -> None:
        """The destinations that have not answered by now may be gone."""
        if self._source is not None and self._source.machine is machine:
            for destination_id in self._source.destinations:
                self._tell(DestinationLost(destination_id))

    def _tell(self, event: Event) -> None:
        source, host = self._source, self._host
        if source is None:
            return
        for instruction in source.machine.handle(event, host.now_s()):
            if isinstance(instruction, Offer):
                self._offer(source, instruction)
            else:
                view = source.machine.view()
                self._source, self._frames = None, {}
                ended = (view.num_prompts, view.num_tokens, view.complete, view.took_s)
                self._tell_controller(HandoverEnded(source.cause_id, host.me, *ended))
                if self._next is not None:
                    following, self._next = self._next, None
                    self.ordered(following)

    def _offer(self, source: _Source, offer: Offer) -> None:
        me = self._host.me
        key = f"handover-{me.instance_id}-{me.incarnation}-{next(self._numbers)}"
        source.keys[key] = offer.destination_id, offer.prompt_id
        num_tokens = offer.num_blocks * self._block_size
        limit_s = source.machine.until_s - self._host.now_s()
        offered = PromptOffered(key, me, num_tokens, limit_s)
        address = source.destinations[offer.destination_id].address
        self._host.send(address, offered, self._frames[offer.prompt_id])

    # -- destination ---------------------------------------------------------------------

    def offered(self, offered: PromptOffered, payload: Sequence[Any]) -> None:
        """Copies what is lacking of a prompt that another instance offers."""
        answer = partial(self._answer, offered)
        if self._prefixes is None or self._is_leaving():
            answer(FetchOutcome.NO_ROOM, 0)
            return
        try:
            prepared = self._prefixes.prompt(payload)
        except ValueError as error:
            log.info("%s is not taken: %s", offered.key, error)
            prepared = None
        if prepared is None:
            answer(FetchOutcome.NO_ROOM, 0)
        else:
            self._fetches.take_offer(offered, prepared, answer)

    def _answer(self, offered: PromptOffered, outcome: FetchOutcome, num_tokens: int) -> None:
        taken = PromptTaken(offered.key, self._host.me, str(outcome), num_tokens)
        self._host.send(offered.source.address, taken)
