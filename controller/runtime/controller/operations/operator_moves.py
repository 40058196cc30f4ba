"""Carries out moves by hand as `core/emptying/by_hand.py` decides: it asks the sources, and keeps
the timers."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from controller.core.emptying.by_hand import (
    NOT_ASKED,
    AskSource,
    Attempt,
    Done,
    Event,
    GivenUp,
    Looked,
    MoveByHand,
    MoveEnded,
    MovesByHand,
    Ordered,
    SourceAnswered,
    SourceDied,
    SourceSilent,
    Timed,
    WakeAt,
    Woken,
)
from controller.core.emptying.openness import Cooling, Openness
from controller.core.load.snapshot import Level
from controller.core.migration.move_records import MoveOrder
from controller.core.record.event_log import LoggedEvent
from controller.runtime.controller.queries import MemberDiedError, MemberQueries
from controller.runtime.controller.roster import Roster
from controller.runtime.messages.move_messages import MoveAnswered, MoveAsked

log = logging.getLogger(__name__)


class OperatorMoves:
    def __init__(
        self,
        roster: Roster,
        openness: Openness,
        cooling: Cooling,
        levels: Sequence[Level],
        queries: MemberQueries,
        now_s: Callable[[], float],
        epoch: str,
        max_moves: int,
        num_reported: Callable[[str], int],
    ) -> None:
        """`num_reported`: how many moves are under way at an instance by its latest status."""
        self._roster = roster
        self._now_s = now_s
        self._queries = queries
        self.num_moves = num_reported
        self.destinations, self.closed_by = openness.destinations, openness.closed_by
        self.machine = MovesByHand(self, cooling, levels, max_moves, epoch)
        self.cooling, self.log = self.machine.cooling, self.machine.log
        self._done: dict[str, asyncio.Future[Sequence[Attempt]]] = {}
        """The futures for which callers wait, by order id."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    # -- what is heard -------------------------------------------------------------------

    def look(self) -> None:
        """Lets the machine check whether there is room for moves. Called from time to time, and
        after each change of the limit."""
        self._take(Looked())

    def answered(self, answer: MoveAnswered, reason: str) -> None:
        """Takes the answer of a source. The answer counts even if nobody waits for it any more.
        `reason`: the reason of the move, one of `cluster_spec.MOVE_REASONS`."""
        if answer.record is not None:
            self._take(MoveEnded(answer.record, reason))
        self._queries.answered(answer)
        self.look()

    def migrated(self, event: LoggedEvent) -> None:
        """Takes the downtime from a MIGRATED event of the journal."""
        downtime_s, excess_s, step_time_s = (
            event.numbers.get(name) for name in ("downtime_s", "excess_s", "step_time_s")
        )
        self._take(Timed(event.cause_id, downtime_s, excess_s, step_time_s))

    # -- moves ---------------------------------------------------------------------------

    def choose(self, source_id: str, num_blocks: int, tried: Collection[str] = ()) -> str | None:
        """The instance to which a request of this size would go now; None if no instance may take
        it."""
        return self.machine.choose(source_id, num_blocks, self._now_s(), tried)

    async def move(
        self, wanted: MoveByHand, destination_id: str | None, migration_id: str, patience_s: float
    ) -> Sequence[Attempt]:
        """Moves the request. Returns all attempts in order, or none if there is no destination.
        `migration_id`: the id of the first attempt. With `destination_id` there is only one
        attempt. Each attempt waits for its turn."""
        done: asyncio.Future[Sequence[Attempt]] = asyncio.get_running_loop().create_future()
        self._done[migration_id] = done
        deadline_s = self._now_s() + patience_s
        try:
            self._take(Ordered(migration_id, wanted, destination_id, deadline_s))
            return await done
        finally:
            del self._done[migration_id]
            self._stop(migration_id)
            self._take(GivenUp(migration_id))

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

    # -- inside --------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        for instruction in self.machine.handle(event, self._now_s()):
            match instruction:
                case AskSource(order_id):
                    self._asking[order_id] = loop.create_task(self._ask(instruction))
                case WakeAt(order_id, time_s):
                    self._stop_timer(order_id)
                    wake = partial(self._take, Woken(order_id, time_s))
                    self._timers[order_id] = loop.call_later(time_s - self._now_s(), wake)
                case Done(order_id, attempts):
                    self._stop(order_id)
                    if (done := self._done.get(order_id)) and not done.done():
                        done.set_result(attempts)

    async def _ask(self, asked: AskSource) -> None:
        move, migration_id = asked.move, asked.move.migration_id
        event: Event
        try:
            # A task had to start between the machine's look and this line, so the cluster may have
            # changed.
            if code := self.machine.barred(move, self._now_s()):
                event = SourceAnswered(migration_id, code)
            else:
                answer = await self.ask_source(
                    move.wanted, move.destination_id, migration_id, patience_s=asked.patience_s
                )
                event = SourceAnswered(migration_id, answer.code, answer.record)
        except TimeoutError:
            event = SourceSilent(migration_id)
        except MemberDiedError:
            event = SourceDied(migration_id)
        except Exception:  # the order must end, or it would keep its places for ever
            log.exception("move %s could not be asked for", migration_id)
            event = SourceAnswered(migration_id, NOT_ASKED)
        del self._asking[asked.order_id]
        self._take(event)

    def _stop(self, order_id: str) -> None:
        self._stop_timer(order_id)
        if asking := self._asking.pop(order_id, None):
            asking.cancel()

    def _stop_timer(self, order_id: str) -> None:
        if timer := self._timers.pop(order_id, None):
            timer.cancel()
