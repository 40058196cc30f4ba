"""The next request that a source sends to the destination it is paired with, if any.

It is asked again after each move that begins. A move under way counts as gone from the source and
as arrived at the destination, so a source stops by itself as soon as it is none any more.

    drain         all requests leave: the queue in its order, then the running ones
    evacuate      all leave that arrive before the instance goes (`evacuation`)
    headroom      only a headroom makes this a source: other requests leave, never its owner
    queue head    the first in the queue does not fit: others make room, or it leaves itself
    balance       the batch has too little room to grow

A request of the lowest rank is tried first, then the one with the fewest tokens: those that run and
the head of the queue, as those behind it weigh nothing (virtual_usage) until it has left. A refused
request leaves its turn to the next one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from operator import attrgetter

from controller.core.load.freeness import finite, freeness
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.load.virtual_usage import headroom_blocks
from controller.core.migration.refusals import ReliefRefusal, reason_of
from controller.core.record.event_log import Number
from controller.core.rescheduling.candidate import Candidate, departing_in_turn
from controller.core.rescheduling.choose_destination import lacks
from controller.core.rescheduling.evacuation import Evacuation, evacuation
from controller.core.rescheduling.move_reasons import MoveReason
from controller.core.rescheduling.projection import with_arrivals, without
from controller.core.rescheduling.worth import HeadWait, Link, Worth, head_wait, weigh
from controller.core.settings import ReschedulingConfig
from controller.core.value import value

MINUTE_S = 60.0


@value
class ReliefView:
    """What one decision looks at. `source` and `candidates` are of the same moment, between two
    steps, and every request that `source` counts as its own is a candidate.

    `sent` are the requests on their way to `destination` that its snapshot does not count yet.
    `bytes_per_s` of the link and `step_time_s` of the source are the last measured, None if never.
    `leaves_in_s`: how long until the source goes, whatever it has then; None: no such moment.
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
    """`reason`: why requests are to leave; empty if the source is none any more. `numbers` are
    about the chosen one; `refused` were tried before it, all of them if none was chosen."""

    chosen: Candidate | None = None
    reason: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    refused: tuple[NotMoved, ...] = ()


class ReliefRules:
    """Of one decision: both instances as they will be, and what each candidate is judged by.

    The simulator compares others (`sim.relief_baselines`) that override what is under "the rules".
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
        """By rank and blocks of the arriving request: a batch has many alike."""

    # More than half of all decisions end with what is above, as no source is left.

    @cached_property
    def _destination(self) -> InstanceSnapshot:
        # From a draining instance's queue a request takes no room over there, but waits again.
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
        """The lowest rank that may go, now or soon: a request that never may holds up none."""
        return min((c.rank for c in self._tried if not reason_of(c.refusal or "").lasts), default=0)

    @cached_property
    def _head_wait(self) -> HeadWait:
        return head_wait(self._source, self._staying, self._step_time_s)

    def reason(self) -> MoveReason | None:
        """Why requests are to leave; None if this is no source any more."""
        if self._evacuation is not None:
            return MoveReason.EVACUATE
        if self._draining:
            return MoveReason.DRAIN
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
        """Those that may be chosen, in no order."""
        head = self._source.queue_head
        head_id = head.request_id if head is not None else None
        return [c for c in self._staying if not c.queued or c.request_id == head_id]

    def _in_victim_order(self) -> list[Candidate]:
        return sorted(self._tried, key=attrgetter("victim_order"))

    @cached_property
    def _enough_steps(self) -> float:
        """With such a freeness the source is none any more."""
        return self._config.source_below_steps

    def _least_steps_there(self, _candidate: Candidate) -> float:
        """The freeness that the destination must keep once the request runs there."""
        return self._config.source_below_steps

    def _steps_below(self, candidate: Candidate) -> float:
        """How far the destination is below its threshold then; negative is above."""
        return self._config.destination_above_steps - self._destination_after(candidate)

    # -- what speaks against it ------------------------------------------------------------

    def refusal(self, candidate: Candidate) -> NotMoved | None:
        """Why this request may not go now; a draining instance asks only whether it can."""
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
        """A request with a headroom would take it along. So it leaves only when no movable one of a
        lower rank is left, and only if the instance is a source even without any headroom."""
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
        """From a draining instance's queue a request needs no room: it waits there as here."""
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
        """The request left this destination lately. All that it left count, not only the last one:
        three instances that pass one request round do no better than two."""
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

    # -- what it comes to --------------------------------------------------------------------

    def figures(self, candidate: Candidate) -> Mapping[str, Number]:
        """Freeness of source and destination before and after, and what the move is worth."""
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
    """Takes n log n for n candidates."""
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
