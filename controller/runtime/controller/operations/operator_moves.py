"""Moves by hand: the controller chooses a destination, orders the move, tries again, and reports.

The instances carry the moves out, and go on if the controller dies. Its log of ended moves is lost
then, but for what the requests' frontends keep.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller.core.load.snapshot import Level
from controller.core.migration.limits import MoveLimits
from controller.core.migration.move_log import MoveLog
from controller.core.migration.order import MoveOrder
from controller.core.migration.queue import MoveByHand, QueuedMove
from controller.core.migration.record import DESTINATION_DIED, DESTINATION_FAILED, MoveRecord
from controller.core.migration.refusals import MoveRefusal
from controller.core.record.event_log import LoggedEvent
from controller.core.rescheduling.choose_destination import choose_destination
from controller.core.rescheduling.cooling import Cooling
from controller.core.scheduler import GlobalScheduler
from controller.runtime.controller.operations.move_turns import MoveTurns, NoTurnError
from controller.runtime.controller.queries import MemberDiedError, MemberQueries
from controller.runtime.controller.roster import Roster
from controller.runtime.messages.moves import MoveAnswered, MoveAsked

MAX_TRIES = 3
# How long the report of a move that is over waits for the request's next token, which tells the
# downtime: some steps, or, if the order has time left, the slowest step of an instance that does
# not count as stalled.
TIMED_PATIENCE_S = 2.0
MAX_TIMED_PATIENCE_S = 10.0
# Until an order is repeated that an instance refused though it seemed to have room.
PAUSE_S = 0.2

_REFUSED_THERE = frozenset(
    {
        MoveRefusal.FINGERPRINT,
        MoveRefusal.NO_BLOCKS,
        MoveRefusal.NO_SLOT,
        MoveRefusal.NO_ADAPTER,
        MoveRefusal.NOT_TAKEN,
        MoveRefusal.TOO_MANY_MOVES,
        MoveRefusal.DRAINING,
    }
)
"""Refusals by a destination after which another one may take the request."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """`outcome`: that of the move's record; `refused` if the move was not begun; `unknown` if the
    source did not say how it ended. `code`: why it is not `migrated`."""

    migration_id: str
    destination_id: str
    outcome: str = "unknown"
    code: str = ""
    record: MoveRecord | None = None
    downtime_s: float | None = None
    step_time_s: float | None = None
    excess_s: float | None = None
    queued_s: float = 0.0
    """How long the move waited for its turn."""

    @property
    def another_may_take_it(self) -> bool:
        """The request runs on at its source, and what failed was the destination."""
        return self.outcome in ("kept", "resumed") and (
            self.code in DESTINATION_FAILED or self.code in _REFUSED_THERE
        )


class OperatorMoves:
    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        levels: Sequence[Level],
        queries: MemberQueries,
        now_s: Callable[[], float],
        epoch: str,
        limits: MoveLimits,
        num_reported: Callable[[str], int],
    ) -> None:
        """`num_reported`: moves under way at an instance by its last status."""
        self._roster = roster
        self._scheduler = scheduler
        self.levels = levels
        """May be set at any time."""
        self._now_s = now_s
        self._epoch = epoch
        self._queries = queries
        self.cooling = Cooling()
        self.turns = MoveTurns(num_reported, limits.max_moves)
        self.log = MoveLog()
        self._migration_ids = itertools.count(1)
        self._timed: dict[str, asyncio.Future[LoggedEvent]] = {}

    # -- what is heard -------------------------------------------------------------------

    def answered(self, answer: MoveAnswered, reason: str) -> None:
        """Takes the answer of a source; one that nobody waits for any more counts too. `reason`:
        of the move, one of `leaving.MOVE_REASONS`."""
        record = answer.record
        if record is not None:
            self.log.ended(record, self._now_s(), reason)
            if record.code == DESTINATION_DIED:
                self.cooling.died(record.destination_id, self._now_s())
            elif record.code in DESTINATION_FAILED:
                self.cooling.failed(record.source_id, record.destination_id, self._now_s())
        self._queries.answered(answer)
        self.turns.look()

    def migrated(self, event: LoggedEvent) -> None:
        """A MIGRATED event of the journal tells the downtime."""
        downtime_s, excess_s = event.numbers.get("downtime_s"), event.numbers.get("excess_s")
        if downtime_s is not None and excess_s is not None:
            self.log.timed(event.cause_id, downtime_s, excess_s)
        timed = self._timed.get(event.cause_id)
        if timed is not None and not timed.done():
            timed.set_result(event)

    # -- where to ------------------------------------------------------------------------

    def choose(self, source_id: str, num_blocks: int, tried: Collection[str] = ()) -> str | None:
        """The freest instance that may take so many blocks and does not cool, if possible one that
        may begin another move; None if there is none."""
        now_s = self._now_s()
        snapshots = [
            snapshot
            for snapshot in self._scheduler.schedulable_snapshots(now_s)
            if snapshot.instance_id != source_id
            and snapshot.instance_id not in tried
            and not self.cooling.remaining_s(snapshot.instance_id, now_s, source_id)
        ]
        at_once = [each for each in snapshots if not self.turns.is_full(each.instance_id)]
        return choose_destination(at_once, self.levels, num_blocks) or choose_destination(
            snapshots, self.levels, num_blocks
        )

    # -- moves ---------------------------------------------------------------------------

    def next_migration_id(self) -> str:
        return f"m-{self._epoch}-{next(self._migration_ids)}"

    async def move(
        self, wanted: MoveByHand, destination_id: str | None, migration_id: str, patience_s: float
    ) -> list[Attempt]:
        """Returns all attempts, the last one last; none if there is no destination. `migration_id`
        is the first one's. With `destination_id` there is one attempt. Each waits for its turn."""
        deadline_s = self._now_s() + patience_s
        attempts: list[Attempt] = []
        target = destination_id or self.choose(wanted.source_id, wanted.num_blocks)
        while target is not None:
            move = QueuedMove(migration_id, wanted, target, self._now_s())
            attempt = await self._attempt(move, deadline_s)
            if _is_too_early(attempt, destination_id) and self._now_s() + PAUSE_S < deadline_s:
                await asyncio.sleep(PAUSE_S)
                migration_id = self.next_migration_id()
                continue
            attempts.append(attempt)
            if destination_id is not None or not attempt.another_may_take_it:
                break
            if len(attempts) == MAX_TRIES or self._now_s() >= deadline_s:
                break
            tried = [each.destination_id for each in attempts]
            target = self.choose(wanted.source_id, wanted.num_blocks, tried)
            migration_id = self.next_migration_id()
        return attempts

    async def _attempt(self, move: QueuedMove, deadline_s: float) -> Attempt:
        timed = asyncio.get_running_loop().create_future()
        self._timed[move.migration_id] = timed
        try:
            attempt = await self._ask_in_turn(move, deadline_s)
            may_have_moved = attempt.outcome == "migrated" or attempt.code == "source_died"
            if not may_have_moved or attempt.outcome == "refused":
                return attempt
            left_s = deadline_s - self._now_s()
            timed_patience_s = max(TIMED_PATIENCE_S, min(left_s, MAX_TIMED_PATIENCE_S))
            return await _with_downtime(attempt, timed, timed_patience_s)
        finally:
            del self._timed[move.migration_id]

    async def _ask_in_turn(self, move: QueuedMove, deadline_s: float) -> Attempt:
        """The turn ends with the source's answer: both instances may begin other moves then."""
        refused = Attempt(move.migration_id, move.destination_id, "refused")
        try:
            async with self.turns.turn(move, max(0.0, deadline_s - move.since_s)):
                began_s = self._now_s()
                queued_s = began_s - move.since_s
                if code := self._gone(*move.instance_ids):
                    return replace(refused, code=code, queued_s=queued_s)
                attempt = await self._ask(move, max(0.0, deadline_s - began_s))
                return replace(attempt, queued_s=queued_s)
        except NoTurnError as error:
            return replace(refused, code=error.code, queued_s=self._now_s() - move.since_s)

    def _gone(self, source_id: str, destination_id: str) -> str:
        """The code of the instance that died while the move waited; empty if both live."""
        members = self._roster.members
        if source_id not in members or not members[source_id].serving:
            return "source_died"
        gone = destination_id not in members or not members[destination_id].serving
        return DESTINATION_DIED if gone else ""

    async def ask_source(
        self,
        wanted: MoveByHand,
        destination_id: str,
        migration_id: str = "",
        *,
        dry_run: bool = False,
        patience_s: float | None = None,
    ) -> MoveAnswered:
        """Orders the move, or asks with `dry_run` what it would take. Raises TimeoutError (the move
        goes on) and MemberDiedError."""
        order = MoveOrder(
            migration_id,
            wanted.request_id,
            self._roster.members[destination_id].ref,
            wanted.reason,
            wanted.verify_kv,
            wanted.max_stages,
        )
        asked = partial(MoveAsked, order=order, dry_run=dry_run)
        answer: MoveAnswered = await self._queries.ask(wanted.source_id, asked, patience_s)
        return answer

    async def _ask(self, move: QueuedMove, patience_s: float) -> Attempt:
        attempt = Attempt(move.migration_id, move.destination_id)
        try:
            answer = await self.ask_source(
                move.wanted, move.destination_id, move.migration_id, patience_s=patience_s
            )
        except TimeoutError:
            return replace(attempt, code="timed_out")
        except MemberDiedError:
            return replace(attempt, code="source_died")
        record = answer.record
        outcome = "refused" if record is None else record.outcome
        return replace(attempt, outcome=outcome, code=answer.code, record=record)


def _is_too_early(attempt: Attempt, destination_id: str | None) -> bool:
    """Whether an instance refused because the rescheduler's moves took the places that its last
    status showed as free. If no destination was named, another one is tried instead of a full
    one."""
    by_source = attempt.outcome == "refused"
    by_destination = attempt.outcome == "kept" and destination_id is not None
    return attempt.code == MoveRefusal.TOO_MANY_MOVES and (by_source or by_destination)


async def _with_downtime(
    attempt: Attempt, timed: "asyncio.Future[LoggedEvent]", patience_s: float
) -> Attempt:
    """Adds the downtime that the request's frontend reports. A request with such a report has
    moved, even if the source has died since."""
    try:
        event = await asyncio.wait_for(timed, patience_s)
    except TimeoutError:
        return attempt
    numbers = event.numbers
    return replace(
        attempt,
        outcome="migrated",
        code="",
        downtime_s=numbers.get("downtime_s"),
        step_time_s=numbers.get("step_time_s"),
        excess_s=numbers.get("excess_s"),
    )
