"""The forecast of a drain that begins now: which request goes where, and how long that takes.

A forecast runs the drain's rounds on a copy of what the controller sees. Each round pairs the
draining instance with a destination, as the controller's rounds do (`rounds.pair`). It sends to
that destination, in turn, the requests that the instance itself would send (`relief`), as many as
may move at a time. In the next round these requests count at the destination. A destination to
which no request can go is left out from then on. So the same functions choose the plan and the
moves that follow. The real moves differ from the plan only because of what happens meanwhile.
Requests grow, end and arrive; and a move may take longer or shorter than a round, so that another
instance is the freest by then.
"""

import bisect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.emptying.relief import (
    NO_DESTINATION,
    Candidate,
    ReliefRules,
    ReliefView,
    lacks,
    with_arrivals,
    with_queued,
)
from controller.core.emptying.rounds import InstanceLoad, pair
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.migration.move_records import MovePace
from controller.core.migration.refusals import MoveRefusal, reason_of
from controller.core.settings import ReschedulingConfig

TOO_BUSY = "too_busy"
"""The code for a request that stays although some instances have room for it: they are no
destinations now, because they are below the threshold or have evicted requests that wait."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a request would go, or the code of the reason why it stays. `client_id`: the id that
    the client gave the request."""

    request: Candidate
    client_id: str
    destination_id: str | None
    code: str = ""


class DrainForecast:
    """The forecast of one drain. `source`: the instance that is to be emptied; `requests`: all of
    its requests. `others`: the other instances that may serve, and `no_destination` the code if
    there are none. `closed`: the ids of the others to which no move may go now. `max_moves`: how
    many moves the source may have at a time.

    10,000 requests among 64 instances take 2,500 rounds. Each call of `round` does one of them, so
    that the caller can do other work in between.
    """

    def __init__(
        self,
        source: InstanceSnapshot,
        requests: Iterable[Candidate],
        others: Iterable[InstanceSnapshot],
        levels: Sequence[Level],
        config: ReschedulingConfig,
        max_moves: int,
        closed: Collection[str] = (),
        no_destination: str = NO_DESTINATION,
    ) -> None:
        self._source = replace(source, draining=True)
        self._levels, self._config = levels, config
        self._max_moves = max(1, max_moves)
        self._no_destination = no_destination
        self._there = {each.instance_id: each for each in others if not each.draining}
        """The destinations by id, each including the requests that the forecast has sent to it so
        far."""
        self._closed = frozenset(closed)
        self._loads = {each.instance_id: self._load(each) for each in self._there.values()}
        """The loads of the same instances, by id."""
        rules = ReliefRules(self._view(list(requests), self._source, ()))
        self._in_turn = tuple(rules.in_turn())
        self._staying = [each for each in self._in_turn if each.refusal is None]
        """The requests that can move and have not moved yet, in the order in which they are tried.
        """
        self._gone_to: dict[str, str] = {}
        """Where each request went, by request id."""
        self._refused: dict[str, set[tuple[int, bool]]] = {each: set() for each in self._there}
        """For each destination, the (blocks, queued) of requests that it refused. It would refuse
        such a request again, as a destination only gets fuller."""
        self._fruitless: set[tuple[str, str]] = set()

    def round(self) -> bool:
        """Forecasts one more round. Returns False if no more requests can move."""
        if not self._staying:
            return False
        draining = InstanceLoad(self._source.instance_id, -math.inf, draining=True)
        pairs = pair((draining, *self._loads.values()), self._config, self._fruitless)
        if not pairs:
            return False
        if not self._relieved_towards(pairs[0].destination_id):
            self._fruitless.add((self._source.instance_id, pairs[0].destination_id))
        return True

    def departures(self, client_ids: Mapping[str, str]) -> tuple[Departure, ...]:
        """Where each request would go, in the order in which the requests are tried."""
        return tuple(
            Departure(
                each,
                client_ids[each.request_id],
                self._gone_to.get(each.request_id),
                "" if each.request_id in self._gone_to else self._why_it_stays(each),
            )
            for each in self._in_turn
        )

    def _relieved_towards(self, destination_id: str) -> int:
        """Moves requests to the destination in one round. Returns how many went."""
        sent, passed = list[Candidate](), list[Candidate]()
        num_tried = 0
        for request in self._staying:
            if len(sent) == self._max_moves:
                break
            num_tried += 1
            goes = self._may_go(request, destination_id, sent)
            (sent if goes else passed).append(request)
        self._staying[:num_tried] = passed
        if sent:
            self._gone_to |= {each.request_id: destination_id for each in sent}
            running = [each for each in sent if not each.queued]
            queued = [each for each in sent if each.queued]
            there = with_queued(with_arrivals(self._there[destination_id], running), queued)
            self._there[destination_id] = there
            self._loads[destination_id] = self._load(there)
        return len(sent)

    def _may_go(self, request: Candidate, destination_id: str, sent: Sequence[Candidate]) -> bool:
        alike, refused = (request.num_blocks, request.queued), self._refused[destination_id]
        if alike in refused:
            return False
        # For a draining source, the rules do not look at its other requests.
        rules = ReliefRules(self._view([request], self._there[destination_id], sent))
        if rules.refusal(request) is None:
            return True
        refused.add(alike)
        return False

    def _view(
        self, requests: list[Candidate], there: InstanceSnapshot, sent: Sequence[Candidate]
    ) -> ReliefView:
        levels, config = self._levels, self._config
        return ReliefView(self._source, requests, there, sent, levels, config, block_bytes=1)

    def _load(self, there: InstanceSnapshot) -> InstanceLoad:
        may_receive = there.instance_id not in self._closed
        return InstanceLoad.of(there, self._levels, may_send=False, may_receive=may_receive)

    def _why_it_stays(self, request: Candidate) -> str:
        if request.refusal is not None:
            return request.refusal
        lacking = {lacks(each, request.num_blocks) for each in self._there.values()}
        if None in lacking:
            return TOO_BUSY
        if MoveRefusal.NO_SLOT in lacking:  # some instance has the blocks for it
            return MoveRefusal.NO_SLOT
        return MoveRefusal.NO_BLOCKS if lacking else self._no_destination


# -- what cannot move ----------------------------------------------------------------------------


def to_replay(
    departures: Sequence[Departure], spare_blocks: Iterable[int], waiting_blocks: int = 0
) -> tuple[str, ...]:
    """The requests to replay elsewhere, because they could move but no instance has room for them:
    as many as fit into the blocks that each other instance has to spare. The others wait at their
    old instance, where they still run. `waiting_blocks`: what requests at the controller wait for;
    they come first."""
    spare = sorted(spare_blocks)
    left = sum(spare) - waiting_blocks
    chosen = list[str]()
    for each in departures:
        reason, num_blocks = reason_of(each.code), max(1, each.request.num_blocks)
        if each.destination_id is not None or each.code == TOO_BUSY:
            continue
        if reason.lasts or reason.passes:
            continue
        if left < num_blocks or spare[-1] < num_blocks:
            continue
        left -= num_blocks
        bisect.insort(spare, spare.pop() - num_blocks)
        chosen.append(each.request.request_id)
    return tuple(chosen)


# -- how long ---------------------------------------------------------------------------------


def estimate_s(
    departures: Sequence[Departure], pace: MovePace | None, max_moves: int, num_left: int = 0
) -> float | None:
    """How many seconds it takes until all `departures` have left, `max_moves` at a time. None if
    this is not known: nothing was moved yet, a request stays until it ends or until there is room,
    or the instance counts more requests (`num_left`) than the plan has."""
    if len(departures) < num_left:
        return None
    if not departures:
        return 0.0
    stays = any(
        each.destination_id is None and not reason_of(each.code).passes for each in departures
    )
    if stays or pace is None:
        return None
    num_blocks = sum(each.request.num_blocks for each in departures)
    copy_time_s = 0.0
    if num_blocks:
        if not pace.blocks_per_s:
            return None
        copy_time_s = num_blocks / pace.blocks_per_s
    # Copies share the link. The other parts of several moves run at the same time.
    return copy_time_s + len(departures) * pace.overhead_s / max(1, max_moves)
