"""The rules of a source: which request it sends next to the destination with which it is paired.

The rules are asked again after each move that begins. A move under way counts as gone from the
source and as arrived at the destination, so a source stops by itself once it has relieved itself
enough.

    drain         all requests leave: the queue in its order, then the running ones
    evacuate      all leave that arrive before the instance goes (`Evacuation`)
    headroom      the instance is a source only because of a headroom: other requests leave, but
                  never a request to which the headroom belongs
    queue head    the first request in the queue does not fit: others make room, or it leaves itself
    balance       the batch has too little room to grow
    gain          tokens come sooner elsewhere (`gain.GainRules`)

Requests of the lowest rank are tried first, and among them the requests with the fewest tokens.
Candidates are the running requests and the head of the queue; until the head has left, the requests
behind it do not count in the virtual usage. If a request is refused, the next one is tried.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter

from controller.core.load.freeness import (
    batch_size,
    finite,
    freeness,
    freest_first,
    headroom_blocks,
)
from controller.core.load.snapshot import InstanceSnapshot, Level, QueueHead, blocks_for, with_batch
from controller.core.migration.refusals import (
    MOVABLE,
    MoveFacts,
    MoveRefusal,
    ReliefRefusal,
    reason_of,
)
from controller.core.record.event_log import Number
from controller.core.settings import ReschedulingConfig
from controller.core.value import value


class MoveReason(StrEnum):
    """Why an instance is relieved of requests (`next_move`)."""

    DRAIN = "drain"
    EVACUATE = "evacuate"
    HEADROOM = "headroom"
    QUEUE_HEAD = "queue head"
    BALANCE = "balance"
    GAIN = "gain"


class HelpReason(StrEnum):
    """Why requests leave an instance so that a blocked request can go on."""

    BLOCKED_HEAD = "blocked head"
    BEHIND_HEAD = "behind a blocked head"
    ROOM = "room"
    BEFORE_EVICTION = "before eviction"


# -- one request of a source -----------------------------------------------------------------------

PastMoves = tuple[tuple[str, float], ...]
"""The past moves of one request, in any order. Each move is (the instance that the request left,
how many seconds ago)."""


@value
class Candidate:
    """A request of a source. Every request that the instance's snapshot counts is a candidate, even
    if it cannot move.

    `num_tokens` counts prompt and outputs. `num_blocks`: the blocks that it holds, none when
    queued. `num_freed_blocks`: how many of these blocks become free when it leaves; shared blocks
    do not. `num_tokens_left`: how many tokens it may still emit (None: not known). `refusal` says
    why it cannot move now; `facts` are what its engine knows of it; the refusal follows from them.

    `outgoing`: a move of the request is under way. The request stays a candidate for as long as the
    snapshot counts it, so that `without` takes it out exactly once.
    """

    request_id: str
    rank: int
    num_tokens: int
    num_blocks: int
    num_freed_blocks: int
    queued: bool
    evicted: bool = False
    arrival_time_s: float = 0.0
    num_tokens_left: int | None = None
    refusal: str | None = None
    outgoing: bool = False
    moves: PastMoves = ()
    """All moves of this request that are still remembered."""
    facts: MoveFacts = MOVABLE
    num_tail_blocks: int = 0
    """How many blocks it needs in order to start, beside those of full attention."""
    num_outputs: int = 0
    """How many tokens it has emitted."""

    def as_known(self, refusal: str | None, outgoing: bool, moves: PastMoves) -> "Candidate":
        """The fields are passed by position: `replace` takes four times as long, and each look
        makes many candidates."""
        return Candidate(
            self.request_id,
            self.rank,
            self.num_tokens,
            self.num_blocks,
            self.num_freed_blocks,
            self.queued,
            self.evicted,
            self.arrival_time_s,
            self.num_tokens_left,
            refusal,
            outgoing,
            moves,
            self.facts,
            self.num_tail_blocks,
            self.num_outputs,
        )

    def demand_blocks(self, block_size: int) -> int:
        """The blocks for all of the request's tokens, as if nothing were cached."""
        return blocks_for(self.num_tokens, block_size) + self.num_tail_blocks

    def blocks_there(self, block_size: int) -> int:
        """The blocks that the request takes at a destination where it runs, even if it was queued
        here."""
        return self.demand_blocks(block_size) if self.queued else self.num_blocks

    @property
    def queue_order(self) -> tuple[int, float, str]:
        return (-self.rank, self.arrival_time_s, self.request_id)

    @property
    def victim_order(self) -> tuple[int, int, str]:
        """The paper's order: the lowest rank first, so that it makes room for higher ranks; then
        the fewest tokens, which are the cheapest to copy."""
        return (self.rank, self.num_tokens, self.request_id)


def departing_in_turn(departing: Iterable[Candidate]) -> list[Candidate]:
    """All requests of a draining instance in the order in which they leave: first the queue in its
    own order, because queued requests move without a copy, then the running requests."""
    everybody = list(departing)
    queued = (each for each in everybody if each.queued)
    running = (each for each in everybody if not each.queued)
    return [
        *sorted(queued, key=attrgetter("queue_order")),
        *sorted(running, key=attrgetter("victim_order")),
    ]


# -- where a request may go ------------------------------------------------------------------------

NO_DESTINATION = "no_destination"
"""The code for a request that stays because no other instance may take requests at all."""


def lacks(snapshot: InstanceSnapshot, num_blocks: int) -> MoveRefusal | None:
    """What an instance lacks for a request that holds `num_blocks`. A queued request holds 0
    blocks, and needs neither blocks nor a place in the batch."""
    if num_blocks == 0:
        return None
    if snapshot.arrivable_blocks < num_blocks:
        return MoveRefusal.NO_BLOCKS
    if snapshot.max_num_running and snapshot.num_running >= snapshot.max_num_running:
        return MoveRefusal.NO_SLOT
    return None


def choose_destination(
    candidates: Iterable[InstanceSnapshot], levels: Sequence[Level], num_blocks: int
) -> str | None:
    """The id of the chosen instance; None if none may take the request."""
    scores = {
        snapshot.instance_id: freeness(snapshot, levels)
        for snapshot in candidates
        if not snapshot.draining and lacks(snapshot, num_blocks) is None
    }
    return min(scores, key=lambda each: freest_first(scores[each], each), default=None)


# -- both instances as they will be once moves are over --------------------------------------------


def without(
    snapshot: InstanceSnapshot, candidates: Iterable[Candidate], leaving: Collection[str]
) -> InstanceSnapshot:
    """The instance once the requests `leaving`, which are some of its `candidates`, are gone.

    If the queue's head leaves, the next in the queue becomes the head.
    """
    candidates = tuple(candidates)
    gone = [c for c in candidates if c.request_id in leaving]
    running, queued = [c for c in gone if not c.queued], [c for c in gone if c.queued]
    if running:
        num_freed_blocks = sum(c.num_freed_blocks for c in running)
        by_rank = dict(snapshot.num_running_by_rank)
        for c in running:
            by_rank[c.rank] = by_rank.get(c.rank, 0) - 1
        snapshot = with_batch(
            snapshot,
            snapshot.num_free_blocks + num_freed_blocks,
            snapshot.num_running - len(running),
            {rank: num for rank, num in by_rank.items() if num > 0},
        )
    if not queued:
        return snapshot
    bs = snapshot.block_size
    queued_by_rank = Counter(snapshot.num_queued_by_rank)
    queued_by_rank.subtract(c.rank for c in queued)
    head = snapshot.queue_head
    if head is not None and any(c.request_id == head.request_id for c in queued):
        waiting = [c for c in candidates if c.queued and c.request_id not in leaving]
        waiting.sort(key=lambda c: c.queue_order)
        head = _as_head(waiting[0], bs) if waiting else None
    return replace(
        snapshot,
        num_queued=snapshot.num_queued - len(queued),
        num_queued_by_rank=+queued_by_rank,
        queued_demand_blocks=snapshot.queued_demand_blocks
        - sum(c.demand_blocks(bs) for c in queued),
        queue_head=head,
        num_evicted_queued=snapshot.num_evicted_queued - sum(c.evicted for c in queued),
    )


def with_arrivals(snapshot: InstanceSnapshot, arriving: Iterable[Candidate]) -> InstanceSnapshot:
    """The instance once all of these requests run on it, including requests that were queued."""
    arriving = tuple(arriving)
    if not arriving:
        return snapshot
    by_rank = dict(snapshot.num_running_by_rank)
    num_blocks = 0
    for c in arriving:
        by_rank[c.rank] = by_rank.get(c.rank, 0) + 1
        num_blocks += c.blocks_there(snapshot.block_size)
    return with_batch(
        snapshot,
        snapshot.num_free_blocks - num_blocks,
        snapshot.num_running + len(arriving),
        by_rank,
    )


def with_queued(snapshot: InstanceSnapshot, arriving: Iterable[Candidate]) -> InstanceSnapshot:
    """The snapshot as it will be when all these requests have joined the instance's queue, each at
    its place in the queue's order."""
    waiting = sorted(arriving, key=lambda c: c.queue_order)
    if not waiting:
        return snapshot
    bs, by_rank = snapshot.block_size, Counter(snapshot.num_queued_by_rank)
    by_rank.update(c.rank for c in waiting)
    return replace(
        snapshot,
        num_queued=snapshot.num_queued + len(waiting),
        num_queued_by_rank=by_rank,
        queued_demand_blocks=snapshot.queued_demand_blocks
        + sum(c.demand_blocks(bs) for c in waiting),
        queue_head=_first(snapshot.queue_head, _as_head(waiting[0], bs)),
        num_evicted_queued=snapshot.num_evicted_queued + sum(c.evicted for c in waiting),
    )


def _first(present: QueueHead | None, arriving: QueueHead) -> QueueHead:
    if present is None:
        return arriving
    return min(present, arriving, key=lambda h: (-h.rank, h.arrival_time_s, h.request_id))


def _as_head(candidate: Candidate, block_size: int) -> QueueHead:
    return QueueHead(
        candidate.request_id,
        candidate.rank,
        candidate.demand_blocks(block_size),
        candidate.arrival_time_s,
        candidate.evicted,
    )


# -- what a move is worth --------------------------------------------------------------------------
#
# The cost of a move and its gain, both in seconds.
#
#     cost      the time of the copy: bytes / measured bandwidth of the link; nothing for a queued
#               request, nor where no bandwidth was measured yet
#     gain      + how long the source's batch lives on what the move frees: tokens freed / requests
#                 in the batch * time of a step
#               + the time that the head of the source's queue waits less, as far as the move frees
#                 the blocks that the head lacks
#               - how far the destination falls below its threshold: steps below it * time of a step
#
# A move is worth its cost if its gain is larger than the time of the copy. The length of the
# request counts on both sides, so the link, the batch and shared blocks decide. On an A10 with
# LLaMA-7B, a block of 16 tokens takes 3.5 ms to copy, and a batch of 40 lives on it for 16 / 40 of
# a step of 80 ms, which is 32 ms.


@value
class Link:
    """The link from a source to other instances. `bytes_per_s` is None until something was
    copied."""

    block_bytes: int
    bytes_per_s: float | None

    def copy_time_s(self, num_blocks: int) -> float:
        if not self.bytes_per_s:
            return 0.0
        return num_blocks * self.block_bytes / self.bytes_per_s


@value
class HeadWait:
    """What the head of the source's queue lacks, and how long until that much is free without a
    move."""

    lacking_blocks: int = 0
    wait_s: float = 0.0


@value
class Worth:
    copy_time_s: float
    relief_s: float
    head_wait_s: float
    destination_loss_s: float

    @property
    def gain_s(self) -> float:
        return self.relief_s + self.head_wait_s - self.destination_loss_s

    @property
    def costs_more(self) -> bool:
        return self.copy_time_s >= self.gain_s

    def numbers(self) -> Mapping[str, Number]:
        return {
            "expected_copy_time_s": self.copy_time_s,
            "gain_s": self.gain_s,
            "relief_s": self.relief_s,
            "head_wait_s": self.head_wait_s,
            "destination_loss_s": self.destination_loss_s,
        }


def head_wait(
    source: InstanceSnapshot, staying: Iterable[Candidate], step_time_s: float
) -> HeadWait:
    """Estimates what the head of the queue lacks, and for how long. The estimate is only used for a
    comparison with the time of a copy. It assumes that the running requests end at their limits and
    that none grows. Requests without a limit are left out."""
    head = source.queue_head
    if head is None:
        return HeadWait()
    lacking = head.demand_blocks - source.admissible_blocks
    if lacking <= 0:
        return HeadWait()
    ending = sorted(
        (c.num_tokens_left, c.num_freed_blocks)
        for c in staying
        if not c.queued and c.num_tokens_left is not None
    )
    wait_s, num_freed = 0.0, 0
    for num_tokens_left, num_blocks in ending:
        if num_freed >= lacking:
            break
        num_freed += num_blocks
        wait_s = num_tokens_left * step_time_s
    return HeadWait(lacking, wait_s)


def weigh(
    candidate: Candidate,
    source: InstanceSnapshot,
    head: HeadWait,
    link: Link,
    step_time_s: float,
    destination_steps_below: float,
) -> Worth:
    """Weighs a move's cost and gain. `source` is the instance before this move.
    `destination_steps_below`: how far the destination is below its threshold after the move;
    negative if it is above."""
    bs = source.block_size
    if candidate.queued:
        freed, spared = candidate.demand_blocks(bs), 1.0
    else:
        freed = candidate.num_freed_blocks
        spared = min(1.0, freed / head.lacking_blocks) if head.lacking_blocks else 0.0
    return Worth(
        copy_time_s=link.copy_time_s(candidate.num_blocks),
        relief_s=bs * freed / batch_size(source) * step_time_s,
        head_wait_s=spared * head.wait_s,
        destination_loss_s=max(0.0, destination_steps_below) * step_time_s,
    )


# -- an instance that must go by a moment ----------------------------------------------------------
#
# `evacuation` decides which of the instance's requests leave in time, and in which order. The
# highest rank comes first. Within a rank the smallest requests are chosen, as many as the link can
# carry until that moment. Of the chosen requests the largest leaves first, because there may be no
# time for it later. A request that certainly ends by itself before the moment needs no move, and
# comes last. Requests for which the time does not suffice stay: a copy that is cut off takes the
# link's time from requests that would have arrived.

MARGIN_S = 0.5
"""How much of the time that is left is set aside for everything but the copy: the last stage, the
commit, and the answers. Between two CPU instances, a move took 0.05 to 0.2 s more than its copy."""


@dataclass(frozen=True, slots=True)
class Evacuation:
    """Which requests leave an instance before it is ended. `in_turn`: the requests that leave, in
    order; `too_late`: the ids of the requests that would not arrive in time."""

    in_turn: tuple[Candidate, ...]
    too_late: frozenset[str] = frozenset()


def evacuation(
    candidates: Iterable[Candidate],
    link: Link,
    left_s: float,
    step_time_s: float | None = None,
) -> Evacuation:
    """Decides which requests leave in time. `candidates`: all requests of the instance; requests
    with a move under way take their share of the link. `left_s`: seconds until the instance is
    ended. Takes n log n."""
    everybody = list(candidates)
    room_s = left_s - MARGIN_S
    staying = [each for each in everybody if not each.outgoing]
    under_way_s = sum(link.copy_time_s(each.num_blocks) for each in everybody if each.outgoing)
    ends = {each.request_id for each in staying if _ends(each, room_s, step_time_s)}
    chosen = list[Candidate]()
    too_late = set[str]()
    for each in sorted(staying, key=lambda each: (each.request_id in ends, *_smallest(each))):
        takes_s = link.copy_time_s(each.num_blocks)
        if room_s <= 0 or under_way_s + takes_s > room_s:
            too_late.add(each.request_id)
        else:
            under_way_s += takes_s
            chosen.append(each)
    chosen.sort(key=lambda each: (each.request_id in ends, *_largest(each)))
    return Evacuation(tuple(chosen), frozenset(too_late))


def _ends(candidate: Candidate, room_s: float, step_time_s: float | None) -> bool:
    """Whether the request runs, and will have emitted its last possible token within `room_s`."""
    if candidate.queued or candidate.num_tokens_left is None or not step_time_s:
        return False
    return candidate.num_tokens_left * step_time_s < room_s


def _smallest(candidate: Candidate) -> tuple[int, int, int, str]:
    return (-candidate.rank, candidate.num_blocks, candidate.num_tokens, candidate.request_id)


def _largest(candidate: Candidate) -> tuple[int, int, int, str]:
    return (-candidate.rank, -candidate.num_blocks, -candidate.num_tokens, candidate.request_id)


# -- the decision ----------------------------------------------------------------------------------

MINUTE_S = 60.0


@value
class ReliefView:
    """What one decision looks at. `source` and `candidates` are of the same moment, between two
    steps, and every request that `source` counts is among the candidates.

    `sent`: the requests on their way to `destination` that its snapshot does not count yet.
    `bytes_per_s` of the link and `step_time_s` of the source are the latest measured values; None
    if there are none. `leaves_in_s`: how long until the source is ended, whatever requests it has
    then; None if that is not planned.
    """

    source: InstanceSnapshot
    candidates: Sequence[Candidate]
    destination: InstanceSnapshot
    sent: Sequence[Candidate]
    levels: Sequence[Level]
    config: ReschedulingConfig
    block_bytes: int
    bytes_per_s: float | None = None
    step_time_s: float | None = None
    leaves_in_s: float | None = None


@value
class NotMoved:
    """A request that was tried and not moved. `code`: a `ReliefRefusal` or a `MoveRefusal`."""

    request_id: str
    code: str
    numbers: Mapping[str, Number] = field(default_factory=dict)


@value
class Decision:
    """Which request leaves next, if any. `reason`: why requests are to leave; empty if the instance
    need not be relieved any more. `numbers`: the figures of the chosen request. `refused`: the
    requests that were tried before the chosen one, or all of them if none was chosen."""

    chosen: Candidate | None = None
    reason: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    refused: tuple[NotMoved, ...] = ()


class ReliefRules:
    """The rules of one decision: both instances as they will be, and how each candidate is judged.

    The simulator compares other rules (`sim.baselines`), which override the part "the rules".
    """

    def __init__(self, view: ReliefView) -> None:
        self._view = view
        self._config = view.config
        self._draining = view.source.draining
        leaving = {c.request_id for c in view.candidates if c.outgoing}
        self._staying = [c for c in view.candidates if not c.outgoing]
        self._source = without(view.source, view.candidates, leaving) if leaving else view.source
        self._source_steps = freeness(self._source, view.levels)
        self._link = Link(view.block_bytes, view.bytes_per_s)
        self._step_time_s = view.step_time_s or 0.0
        self._destination_after_steps: dict[tuple[int, int], float] = {}
        """The destination's freeness after the move, by the rank and the blocks of the request:
        many requests of a batch have the same rank and number of blocks."""

    # More than half of all decisions need only the values above, because the instance need not be
    # relieved any more.

    @cached_property
    def _destination(self) -> InstanceSnapshot:
        # A request from a draining instance's queue takes no room at the destination, where it
        # joins the queue.
        taking_room = [c for c in self._view.sent if not (c.queued and self._draining)]
        return with_arrivals(self._view.destination, taking_room)

    @cached_property
    def _evacuation(self) -> Evacuation | None:
        view = self._view
        if not self._draining or view.leaves_in_s is None:
            return None
        return evacuation(view.candidates, self._link, view.leaves_in_s, view.step_time_s)

    @cached_property
    def _steps_without_headroom(self) -> float:
        return freeness(self._source, ())

    @cached_property
    def _lowest_rank(self) -> int:
        """The lowest rank of the requests that may go now or soon. A request that may never go does
        not hold up others."""
        return min((c.rank for c in self._tried if not reason_of(c.refusal or "").lasts), default=0)

    @cached_property
    def _head_wait(self) -> HeadWait:
        return head_wait(self._source, self._staying, self._step_time_s)

    def reason(self) -> MoveReason | None:
        """Why requests are to leave; None if the instance need not be relieved any more."""
        if self._draining:
            return MoveReason.DRAIN if self._evacuation is None else MoveReason.EVACUATE
        if self._source_steps >= self._enough_steps:
            return None
        if self._steps_without_headroom >= self._enough_steps:
            return MoveReason.HEADROOM
        head_fits = self._head_wait.lacking_blocks == 0
        return MoveReason.BALANCE if head_fits else MoveReason.QUEUE_HEAD

    def in_turn(self) -> list[Candidate]:
        if self._evacuation is not None:
            too_late = self._evacuation.too_late
            late = (each for each in self._staying if each.request_id in too_late)
            return [*self._evacuation.in_turn, *late]
        return departing_in_turn(self._staying) if self._draining else self._in_victim_order()

    # -- the rules ---------------------------------------------------------------------------

    @cached_property
    def _tried(self) -> list[Candidate]:
        """The requests that may be chosen, in no order."""
        head = self._source.queue_head
        head_id = head.request_id if head is not None else None
        return [c for c in self._staying if not c.queued or c.request_id == head_id]

    def _in_victim_order(self) -> list[Candidate]:
        return sorted(self._tried, key=attrgetter("victim_order"))

    @cached_property
    def _enough_steps(self) -> float:
        """The freeness from which on an instance need not be relieved any more."""
        return self._config.source_below_steps

    def _least_steps_there(self, _candidate: Candidate) -> float:
        """The least freeness that the destination must have once the request runs on it."""
        return self._config.source_below_steps

    def _steps_below(self, candidate: Candidate) -> float:
        """How far the destination is below its threshold once the request runs on it; negative if
        it is above."""
        return self._config.destination_above_steps - self._destination_after(candidate)

    # -- the reasons against a move --------------------------------------------------------

    def refusal(self, candidate: Candidate) -> NotMoved | None:
        """Why this request may not go now; None if it may. If the source drains, only a few reasons
        count: the request cannot move, arrives too late, finds no room, or, with the guard, would
        end before it could be moved."""
        if candidate.refusal is not None:
            return NotMoved(candidate.request_id, candidate.refusal)
        if self._evacuation is not None and candidate.request_id in self._evacuation.too_late:
            return self._comes_too_late(candidate)
        refusal = self._lacks_room(candidate)
        if not self._draining:
            refusal = self._keeps_headroom(candidate) or refusal
        if refusal is None and self._config.guard:
            refusal = self._ends_first(candidate)
            if refusal is None and not self._draining:
                refusal = (
                    self._moved_lately(candidate)
                    or self._moves_often(candidate)
                    or self._would_overload(candidate)
                    or self._costs_more(candidate)
                )
        return refusal

    def _comes_too_late(self, candidate: Candidate) -> NotMoved:
        numbers = {
            "leaves_in_s": self._view.leaves_in_s,
            "expected_copy_time_s": self._link.copy_time_s(candidate.num_blocks),
        }
        return NotMoved(candidate.request_id, ReliefRefusal.TOO_LATE, numbers)

    def _keeps_headroom(self, candidate: Candidate) -> NotMoved | None:
        """Whether the request stays because it would take its headroom along. It may leave only
        when no movable request of a lower rank is left, and only if the instance would need relief
        even without any headroom."""
        if candidate.queued or not self._has_headroom(candidate.rank):
            return None
        needed = self._steps_without_headroom < self._enough_steps
        if needed and self._lowest_rank >= candidate.rank:
            return None
        return NotMoved(
            candidate.request_id,
            ReliefRefusal.HEADROOM,
            {
                "source_freeness_steps": finite(self._source_steps),
                "without_headroom_steps": self._steps_without_headroom,
            },
        )

    def _lacks_room(self, candidate: Candidate) -> NotMoved | None:
        """Whether the destination lacks room for the request. A request from a draining instance's
        queue needs none: it waits at the destination as it does at the source."""
        to = self._destination
        waits_on = candidate.queued and self._draining
        num_blocks = 0 if waits_on else candidate.blocks_there(to.block_size)
        lacking = lacks(to, num_blocks)
        if lacking is None:
            return None
        return NotMoved(
            candidate.request_id,
            lacking,
            {
                "needed_blocks": num_blocks,
                "destination_free_blocks": to.arrivable_blocks,
                "destination_num_running": to.num_running,
                "destination_max_num_running": to.max_num_running,
            },
        )

    def _ends_first(self, candidate: Candidate) -> NotMoved | None:
        if candidate.queued or candidate.num_tokens_left is None or not self._step_time_s:
            return None
        left_s = candidate.num_tokens_left * self._step_time_s
        copy_time_s = self._link.copy_time_s(candidate.num_blocks)
        if left_s > copy_time_s + self._step_time_s:
            return None
        return NotMoved(
            candidate.request_id,
            ReliefRefusal.ENDS_FIRST,
            {
                "left_s": left_s,
                "expected_copy_time_s": copy_time_s,
                "step_time_s": self._step_time_s,
            },
        )

    def _moved_lately(self, candidate: Candidate) -> NotMoved | None:
        """Refuses a request that left this destination lately. All instances that it left count,
        not only the latest one: three instances that pass a request around are no better than two.
        """
        to, not_back_s = self._destination.instance_id, self._config.not_back_s
        left_ago_s = min((ago_s for left, ago_s in candidate.moves if left == to), default=None)
        if left_ago_s is None or left_ago_s >= not_back_s:
            return None
        numbers = {"left_ago_s": left_ago_s, "not_back_s": not_back_s}
        return NotMoved(candidate.request_id, ReliefRefusal.MOVED_LATELY, numbers)

    def _moves_often(self, candidate: Candidate) -> NotMoved | None:
        num_moves = sum(ago_s < MINUTE_S for _, ago_s in candidate.moves)
        most = self._config.max_moves_per_minute
        if num_moves < most:
            return None
        numbers = {"num_moves_last_minute": num_moves, "max_moves_per_minute": most}
        return NotMoved(candidate.request_id, ReliefRefusal.MOVES_OFTEN, numbers)

    def _would_overload(self, candidate: Candidate) -> NotMoved | None:
        after_steps = self._destination_after(candidate)
        least_steps = self._least_steps_there(candidate)
        if after_steps >= least_steps:
            return None
        numbers = {
            "destination_freeness_after_steps": after_steps,
            "destination_least_steps": least_steps,
        }
        return NotMoved(candidate.request_id, ReliefRefusal.WOULD_OVERLOAD, numbers)

    def _costs_more(self, candidate: Candidate) -> NotMoved | None:
        if not self._step_time_s:
            return None
        worth = self._worth(candidate)
        if not worth.costs_more:
            return None
        return NotMoved(candidate.request_id, ReliefRefusal.COSTS_MORE, worth.numbers())

    # -- the outcome -----------------------------------------------------------------------

    def figures(self, candidate: Candidate) -> Mapping[str, Number]:
        """The freeness of source and destination before and after the move, and what the move is
        worth."""
        return {
            "source_freeness_steps": finite(self._source_steps),
            "source_freeness_after_steps": finite(self._source_after(candidate)),
            "destination_freeness_steps": freeness(self._destination, self._view.levels),
            "destination_freeness_after_steps": self._destination_after(candidate),
            "request_blocks": candidate.num_blocks,
            "request_tokens": candidate.num_tokens,
            **self._worth(candidate).numbers(),
        }

    def _worth(self, candidate: Candidate) -> Worth:
        return weigh(
            candidate,
            self._source,
            self._head_wait,
            self._link,
            self._step_time_s,
            self._steps_below(candidate),
        )

    def _source_after(self, candidate: Candidate) -> float:
        staying = self._staying if candidate.queued else [candidate]
        after = without(self._source, staying, {candidate.request_id})
        return freeness(after, self._view.levels)

    def _destination_after(self, candidate: Candidate) -> float:
        like = candidate.rank, candidate.blocks_there(self._destination.block_size)
        if like not in self._destination_after_steps:
            after = with_arrivals(self._destination, [candidate])
            self._destination_after_steps[like] = freeness(after, self._view.levels)
        return self._destination_after_steps[like]

    def _has_headroom(self, rank: int) -> bool:
        return any(
            level.rank == rank and headroom_blocks(level, self._source) > 0
            for level in self._view.levels
        )


def next_move(
    view: ReliefView, rules: Callable[[ReliefView], ReliefRules] = ReliefRules
) -> Decision:
    """The next move from the source, or why there is none. Takes n log n for n candidates."""
    relief = rules(view)
    reason = relief.reason()
    if reason is None:
        return Decision()
    refused: list[NotMoved] = []
    for candidate in relief.in_turn():
        refusal = relief.refusal(candidate)
        if refusal is None:
            return Decision(candidate, reason, relief.figures(candidate), tuple(refused))
        refused.append(refusal)
    return Decision(reason=reason, refused=tuple(refused))
