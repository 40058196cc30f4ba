"""How the controller carries out migrate, priority and abort, which are orders about a live
request."""

from collections.abc import Callable, Sequence
from typing import Any, Required, TypedDict, Unpack

from controller.adapters.http.calls import ApiError, no_such_instance, shown
from controller.adapters.http.cluster_view import rounded
from controller.adapters.http.perform import Deed, Handler, Operated, Operation
from controller.adapters.http.requests import find_for_order, held_blocks, place_of
from controller.api.operations.on_requests import (
    Abort,
    AbortReport,
    AbortRequest,
    Migrate,
    MigrateRequest,
    MigrationReport,
    MoveAttempt,
    MovePlanned,
    PriorityEffect,
    PriorityReport,
    PriorityRequest,
    SetPriority,
)
from controller.api.operations.order import Report, Wanted
from controller.api.operations.table import Undo
from controller.api.state.audit import one_short_line
from controller.api.text.quantities import duration
from controller.api.wire.requests import MoveStage
from controller.api.wire.requests import RequestState as WireState
from controller.core.emptying.by_hand import BY_MAX_MOVES, Attempt, MoveByHand
from controller.core.emptying.relief import NO_DESTINATION, lacks
from controller.core.load.closed import Closed
from controller.core.load.freeness import finite, freeness, total_headroom_blocks, with_another_rank
from controller.core.load.snapshot import Level
from controller.core.migration.protocol import MAX_STAGES
from controller.core.migration.refusals import why
from controller.core.record.request_record import ENDED, RequestRecord, RequestState
from controller.runtime.controller.queries import Found, MemberDiedError
from controller.runtime.messages.members import Message
from controller.runtime.messages.move_messages import MoveAnswered
from controller.runtime.messages.requests import (
    AbortAnswered,
    AbortAsked,
    RankChangeAnswered,
    RankChangeAsked,
)

BY_HAND = "by hand"
TOLD_WAIT_S = 0.1


class _Came(TypedDict, total=False):
    """The fields of a report that say how the move ended, or how it would end."""

    outcome: Required[str]
    code: str
    note: str
    hint: str
    num_blocks: int
    num_bytes: int
    copy_time_s: float
    downtime_s: float | None
    excess_s: float | None
    plan: MovePlanned
    attempts: tuple[MoveAttempt, ...]


class MigrateHandler(Handler[MigrateRequest, MigrationReport]):
    """Moves a request that is on `source_id` to `wanted.to`, or to any instance."""

    row = Migrate
    lasts = True

    async def look(self) -> None:
        """Finds the request. Raises ApiError if it is on no instance, or if the target is not an
        instance, already has the request, or may take no requests."""
        controller, wanted, request_id = self.controller, self.wanted, self.order.target
        members = controller.roster.members
        if wanted.to is not None and (
            wanted.to not in members or members[wanted.to].kind != "instance"
        ):
            raise self._not_of_the_model(wanted.to)
        self.record = record = await find_for_order(controller, request_id)
        source_id = record.instance_id
        if record.state in ENDED:
            raise ApiError(
                409, "ended", f"request {request_id} has {record.state}", "llumctl requests"
            )
        if record.state is RequestState.DISPATCHING or source_id is None:
            raise ApiError(
                409,
                "not_dispatched",
                f"no instance has request {request_id} yet",
                f"llumctl requests {request_id}",
            )
        if wanted.to == source_id:
            other = controller.operator_moves.choose(source_id, num_blocks=0)
            raise ApiError(
                400,
                "same_instance",
                f"request {request_id} is on {source_id} already",
                f"llumctl migrate {request_id} --to {other}" if other else "llumctl status",
            )
        for instance_id, role in ((source_id, "the request is on"), (wanted.to, "")):
            closed_by = () if instance_id is None else self._closed_by(instance_id, source_id)
            refusals = [
                r for r in closed_by if (r.stops_sending if role else r.stops_named_arrivals)
            ]
            if refusals:
                code = "not_serving" if role else "unschedulable"
                named = f"instance {instance_id}"
                where = f"{named}, which {role}," if role else named
                raise ApiError(
                    409, code, f"{where} cannot move it: {refusals[0].words}", "llumctl status"
                )
        self.source_id = source_id
        self.migration_id = controller.operator_moves.machine.next_migration_id()

    def check(self) -> None:
        self._check_still_there(self.wanted.to)

    def deeds(self) -> Sequence[Deed]:
        return ((f"{self.order.deed} ({self.migration_id})", self.order.target),)

    async def carry_out(self, operation: Operation) -> None:
        """Moves the request, and waits for the end of the move. Raises ApiError if the move does
        not end in time, or if the source or the destination was removed meanwhile."""
        self.moved = report = await self._move()
        operation.outcome = f"{report.outcome}: {report.why}" if report.why else report.outcome
        if report.outcome == "migrated":
            operation.undo = self.undone_by(
                {"instance": report.from_instance_id}, {"instance": report.to_instance_id}
            )

    async def report(self) -> MigrationReport:
        return self.moved

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        record = _live(undo, known)
        if isinstance(record, str):
            return record
        same = record.instance_id == undo.made["instance"]
        return "" if same else f"it is on {record.instance_id or 'no instance'} by now"

    async def _move(self) -> MigrationReport:
        wanted, operator_moves = self.wanted, self.controller.operator_moves
        note = self._note(wanted.to)
        began_s = self.controller.now_s()
        attempts = await operator_moves.move(
            self._by_hand(), wanted.to, self.migration_id, wanted.timeout_s
        )
        if not attempts:
            return self._told(None, outcome="refused", code=NO_DESTINATION, note=self._nobody())
        last = attempts[-1]
        if last.code == "timed_out":
            raise ApiError(
                504,
                "timed_out",
                f"the move {last.migration_id} of {self.record.request_id} to"
                f" {last.destination_id} is not over after {wanted.timeout_s:g} s; it goes on",
                f"llumctl requests {self.record.request_id}",
            )
        record = last.record
        return self._told(
            last.destination_id,
            outcome=last.outcome,
            code=last.code,
            note="; ".join(filter(None, (note, self._waiting(last, began_s)))),
            hint=self._hint(last.code),
            num_blocks=record.num_blocks if record else 0,
            num_bytes=record.num_bytes if record else 0,
            copy_time_s=round(record.copy_time_s, 6) if record else 0.0,
            downtime_s=rounded(last.downtime_s, 6),
            excess_s=rounded(last.excess_s, 6),
            attempts=tuple(_attempt(attempt) for attempt in attempts),
        )

    async def plan(self) -> MigrationReport:
        """The cost of the move according to the source, and whether the destination has room."""
        self._check_still_there(self.wanted.to)
        move, operator_moves = self._by_hand(), self.controller.operator_moves
        target = self.wanted.to or operator_moves.choose(move.source_id, move.num_blocks)
        if target is None:
            return self._told(None, outcome="refused", code=NO_DESTINATION, note=self._nobody())
        answer = await self._ask_plan(move, target)
        if answer.plan is None:
            return self._told(target, outcome="refused", code=answer.code)
        plan = answer.plan
        self._check_still_there(target)
        snapshot = self.controller.statuses[target].snapshot
        refusal = lacks(snapshot, plan.num_blocks)
        found = MovePlanned(
            num_tokens=plan.num_tokens,
            num_blocks=plan.num_blocks,
            num_bytes=plan.num_bytes,
            copy_time_s=rounded(plan.expected_copy_time_s, 6),
            downtime_s=rounded(self._expected_downtime_s(target), 6) if plan.num_blocks else None,
        )
        return self._told(
            target,
            outcome="refused" if refusal else "would_move",
            code=refusal or "",
            note=self._note(target),
            plan=found,
        )

    async def _ask_plan(self, move: MoveByHand, target: str) -> MoveAnswered:
        try:
            return await self.controller.operator_moves.ask_source(move, target, dry_run=True)
        except TimeoutError as error:
            raise ApiError(
                504,
                "no_answer",
                f"instance {move.source_id}, which runs the request, did not answer in time",
                "llumctl status",
            ) from error
        except MemberDiedError as error:
            raise ApiError(
                409,
                "not_serving",
                f"instance {move.source_id}, which ran the request, died",
                f"llumctl requests {move.request_id}",
            ) from error

    def _not_of_the_model(self, instance_id: str) -> ApiError:
        """The error for a destination that this controller does not have."""
        own = self.controller.model
        for each in self.controller.all:
            member = each.roster.members.get(instance_id)
            if each is not self.controller and member is not None and member.kind == "instance":
                why = f"it serves {each.model}, and the request is for {own}"
                message = f"instance {instance_id} cannot take the request: {why}"
                return ApiError(409, "unschedulable", message, "llumctl status")
        return no_such_instance(instance_id)

    def _check_still_there(self, target: str | None) -> None:
        """Raises ApiError if a scale-in has removed the source or the target since the call
        came."""
        statuses = self.controller.statuses
        if self.source_id not in statuses:
            raise ApiError(
                409,
                "not_serving",
                f"instance {self.source_id}, which the request was on, was removed",
                f"llumctl requests {self.record.request_id}",
            )
        if target is not None and target not in statuses:
            raise no_such_instance(target)

    def _by_hand(self) -> MoveByHand:
        """The move as the source is asked for it. The number of blocks is 0 if the request
        waits."""
        record, snapshot = self.record, self.controller.statuses[self.source_id].snapshot
        return MoveByHand(
            record.request_id,
            self.source_id,
            held_blocks(record, snapshot),
            self.wanted.reason or BY_HAND,
            self.wanted.verify_kv,
            self.wanted.max_stages or MAX_STAGES,
        )

    def _expected_downtime_s(self, target: str) -> float | None:
        """The time of one step of the destination, which makes the next token, plus the time that
        the last moves took beyond the step. None while the destination has made no step."""
        step_time_s = self.controller.statuses[target].step_time_s
        if step_time_s <= 0:
            return None
        return step_time_s + (self.controller.operator_moves.log.typical_excess_s() or 0.0)

    def _note(self, target: str | None) -> str:
        """Says that the target is cooling, if it is. Only a target that the operator named can be
        cooling."""
        controller = self.controller
        if target is None:
            return ""
        left_s = controller.operator_moves.cooling.remaining_s(
            target, controller.now_s(), self.source_id
        )
        return f"{target} failed lately and cools for another {duration(left_s)}" if left_s else ""

    def _waiting(self, last: Attempt, began_s: float) -> str:
        """How long the move waited for its turn, if it was long enough to matter, and the setting
        that limits the number of moves."""
        named = f"migration.max_moves is {self.controller.live.rescheduling.max_moves}"
        if last.queued_s < TOLD_WAIT_S:
            return named if last.code in BY_MAX_MOVES else ""
        waited_s = self.controller.now_s() - began_s if last.outcome == "refused" else last.queued_s
        return f"waited {duration(waited_s)} for its turn: {named}"

    def _hint(self, code: str) -> str:
        """The command that lets more moves run at once, if that limit was the reason."""
        if code not in BY_MAX_MOVES:
            return ""
        more = max(1, 2 * self.controller.live.rescheduling.max_moves)
        hint = f"llumctl set migration.max_moves={more}"
        return f"{hint} --model {model}" if (model := self.controller.model) else hint

    def _nobody(self) -> str:
        """The reason why each instance cannot be the destination."""
        controller, num_blocks = self.controller, self._by_hand().num_blocks
        told = []
        for member in controller.roster.instances():
            if member.member_id == self.source_id:
                continue
            closed_by = self._closed_by(member.member_id, self.source_id)
            reason = closed_by[0].words if closed_by else ""
            if not any(each.stops_named_arrivals for each in closed_by):
                snapshot = controller.statuses[member.member_id].snapshot
                reason = why(lacks(snapshot, num_blocks) or "") or reason
            told.append(f"{member.member_id}: {reason}")
        return "; ".join(told) or "there is no other instance"

    def _closed_by(self, instance_id: str, source_id: str) -> Sequence[Closed]:
        """All reasons against moves to or from that instance, including the reasons that apply only
        to moves from `source_id`."""
        controller = self.controller
        return controller.openness.closed_by(instance_id, controller.now_s(), source_id)

    def _told(self, target: str | None, **came: Unpack[_Came]) -> MigrationReport:
        record = self.record
        return MigrationReport(
            request_id=record.request_id,
            client_id=record.client_request_id,
            from_instance_id=self.source_id,
            to_instance_id=target,
            dry_run=self.wanted.dry_run,
            why=why(str(came.get("code", ""))),
            **came,
        )


class _OnLive(Handler[Wanted, Report]):
    """Changes a request that has not ended; the request's frontend makes the change. `cannot`: the
    words before the reason for a failure. `may_still`: what a frontend that does not answer may
    still do."""

    record: RequestRecord
    may_still: str

    @property
    def cannot(self) -> str:
        raise NotImplementedError

    async def look(self) -> None:
        """Finds the request. Raises ApiError if it has ended or is unknown."""
        self.record = record = await find_for_order(self.controller, self.order.target)
        if record.state in ENDED:
            has = "was" if record.state is RequestState.ABORTED else "has"
            raise self._ended(f"it {has} {record.state}")

    async def ask(self, asked: Callable[[str], Message]) -> Any:
        """Calls `asked` with a query id, sends the message that it returns to the request's
        frontend, and returns the answer if its `code` is empty. Raises ApiError otherwise."""
        frontend_id = self.record.frontend_id
        frontend = self.controller.roster.members.get(frontend_id)
        if frontend is None or not frontend.alive:  # it died since the order came
            raise self._ended(f"its frontend {frontend_id} died")
        try:
            answer = await self.controller.queries.ask(frontend_id, asked)
        except TimeoutError as error:
            raise ApiError(
                504,
                "no_answer",
                f"frontend {frontend_id}, which has the request, did not answer in time;"
                f" it may still {self.may_still}",
                f"llumctl requests {self.record.request_id}",
            ) from error
        except MemberDiedError as error:
            raise self._ended(f"its frontend {frontend_id} died") from error
        if answer.code:
            raise self._ended("it ended meanwhile")
        return answer

    def _ended(self, why: str) -> ApiError:
        return ApiError(409, "ended", f"{self.cannot}: {why}", "llumctl requests")


class PriorityHandler(_OnLive[PriorityRequest, PriorityReport]):
    row = SetPriority
    may_still = "change the priority"

    @property
    def cannot(self) -> str:
        return f"the priority of request {self.record.request_id} cannot change"

    async def look(self) -> None:
        """Finds the request and the level. Raises ApiError if one of them is unknown, or if the
        request has ended."""
        levels = {level.name: level for level in self.controller.live.scheduler.levels}
        level = levels.get(self.wanted.level)
        if level is None:
            raise ApiError(
                400,
                "no_such_level",
                f"there is no priority level {self.wanted.level!r}; there are {', '.join(levels)}",
                f"llumctl priority REQUEST {next(iter(levels))}",
            )
        self.level: Level = level
        await super().look()
        self.found = self._told(self.record.level, self.record.instance_id)

    async def plan(self) -> PriorityReport:
        if self.deeds():
            await self._change(Operation("", ""))
        return self.found

    def deeds(self) -> Sequence[Deed]:
        was = self.record.level
        if was == self.level.name:
            return ()
        return ((f"{self.order.deed}, was {was}", self.order.target),)

    async def carry_out(self, operation: Operation) -> None:
        await self._change(operation)
        operation.undo = self.undone_by({"level": self.found.previous}, {"level": self.found.level})

    async def report(self) -> PriorityReport:
        return self.found

    async def _change(self, operation: Operation) -> None:
        """Returns when the request's frontend has recorded the new level. From then on that level
        counts, wherever the request is."""
        answer: RankChangeAnswered = await self.ask(
            lambda query_id: RankChangeAsked(
                query_id,
                self.record.request_id,
                self.level.rank,
                cause_id=operation.cause_id,
                actor=operation.actor,
                reason=one_short_line(self.wanted.reason),
                dry_run=self.wanted.dry_run,
            )
        )
        self.found = self._told(answer.previous_level, answer.instance_id)

    def _told(self, previous: str, instance_id: str | None) -> PriorityReport:
        return PriorityReport(
            request_id=self.record.request_id,
            client_id=self.record.client_request_id,
            previous=previous,
            level=self.level.name,
            instance_id=instance_id,
            dry_run=self.wanted.dry_run,
            effect=self._effect(instance_id) if self.wanted.dry_run else None,
        )

    def _effect(self, instance_id: str | None) -> PriorityEffect | None:
        controller, record = self.controller, self.record
        status = controller.statuses.get(instance_id or "")
        if status is None or record.state is not RequestState.RUNNING:
            return None
        levels = controller.live.scheduler.levels
        before = status.snapshot
        after = with_another_rank(before, record.rank, self.level.rank)
        return PriorityEffect(
            headroom_blocks_before=total_headroom_blocks(before, levels),
            headroom_blocks_after=total_headroom_blocks(after, levels),
            freeness_steps_before=finite(freeness(before, levels)),
            freeness_steps_after=finite(freeness(after, levels)),
        )

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        record = _live(undo, known)
        if isinstance(record, str):
            return record
        same = record.level == undo.made["level"]
        return "" if same else f"its priority is {record.level} by now"


class AbortHandler(_OnLive[AbortRequest, AbortReport]):
    row = Abort
    may_still = "end it"

    @property
    def cannot(self) -> str:
        return f"request {self.record.request_id} cannot be aborted"

    async def plan(self) -> AbortReport:
        await self._end(Operation("", ""))
        return self.found

    def deeds(self) -> Sequence[Deed]:
        return ((f"{self.order.deed}, was {self._state()}", self.order.target),)

    async def carry_out(self, operation: Operation) -> None:
        await self._end(operation)

    async def report(self) -> AbortReport:
        return self.found

    def _state(self) -> WireState:
        """The request's state. A request that the controller holds counts as waiting; its frontend
        does not know that the controller holds it."""
        scheduler = self.controller.scheduler
        if place_of(scheduler.waiting_view(), self.record) is None:
            return WireState(self.record.state)
        return WireState.WAITING

    async def _end(self, operation: Operation) -> None:
        """Returns when the request's frontend has ended the request. By then the client's error has
        been sent, and so has the message to the instances that have blocks of the request."""
        record, before = self.record, self._state()
        answer: AbortAnswered = await self.ask(
            lambda query_id: AbortAsked(
                query_id,
                record.request_id,
                cause_id=operation.cause_id,
                actor=operation.actor,
                reason=one_short_line(self.wanted.reason),
                dry_run=self.wanted.dry_run,
            )
        )
        self.found = AbortReport(
            request_id=record.request_id,
            client_id=record.client_request_id,
            request_ids=answer.request_ids,
            level=record.level,
            state=WireState(answer.state or before) if answer.state != record.state else before,
            instance_id=answer.instance_id,
            num_output_tokens=answer.num_output_tokens,
            dry_run=self.wanted.dry_run,
        )


HANDLERS = (MigrateHandler, PriorityHandler, AbortHandler)


def _live(undo: Undo, known: Found) -> RequestRecord | str:
    """The request of an operation; a text if nothing can be done to the request, which says why."""
    record = next((each for each in known.requests if each.request_id == undo.target), None)
    if record is None:
        silent = f": {', '.join(known.silent)} may know it and did not answer"
        return f"request {undo.target} is not known any more{silent if known.silent else ''}"
    if record.state in ENDED:
        return f"request {undo.target} has ended"
    return record


def _attempt(attempt: Attempt) -> MoveAttempt:
    record = attempt.record
    return MoveAttempt(
        migration_id=attempt.migration_id,
        to_instance_id=attempt.destination_id,
        outcome=attempt.outcome,
        code=attempt.code,
        why=why(attempt.code),
        duration_s=round(record.duration_s, 6) if record else None,
        num_tokens=record.num_tokens if record else None,
        num_cached_blocks=record.num_cached_blocks if record else None,
        inexact=record.differing if record else (),
        stages=tuple(
            shown(
                MoveStage,
                stage,
                copy_time_s=round(stage.copy_time_s, 6),
            )
            for stage in (record.stages if record else ())
        ),
    )
