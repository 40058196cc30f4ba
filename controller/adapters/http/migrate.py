"""A move by hand on the control API: checked, planned or done."""

from dataclasses import dataclass
from typing import Required, TypedDict, Unpack

from controller.adapters.http.errors import ApiError, no_such_instance
from controller.adapters.http.requests import find_for_order
from controller.adapters.http.views.moves import attempt_model
from controller.api.text.quantities import duration
from controller.api.wire.moves import MigrateRequest, MigrationReport, MoveAttempt, MovePlanned
from controller.core.load.snapshot import blocks_for
from controller.core.migration.queue import BY_MAX_MOVES, MoveByHand
from controller.core.migration.sentences import why
from controller.core.migration.stages import MAX_STAGES
from controller.core.record.request_record import ENDED, RequestRecord, RequestState
from controller.core.rescheduling.choose_destination import NO_DESTINATION, lacks
from controller.runtime.controller.controller import Controller
from controller.runtime.controller.operations.operator_moves import Attempt
from controller.runtime.controller.queries import MemberDiedError
from controller.runtime.messages.moves import MoveAnswered

BY_HAND = "by hand"
TOLD_WAIT_S = 0.1

_UNSCHEDULABLE = {
    "dead": "its process is gone",
    "no-status": "it has not reported yet",
    "draining": "it is draining",
    "stalled": "it is stalled",
}


class _Came(TypedDict, total=False):
    """The fields of a report that say how the move ended, or would end."""

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


@dataclass(frozen=True, slots=True)
class Migration:
    """A move of a request that is on `source_id`, to `wanted.to` or to any instance."""

    controller: Controller
    record: RequestRecord
    source_id: str
    wanted: MigrateRequest
    migration_id: str

    @property
    def action(self) -> str:
        """For the audit log."""
        target = self.wanted.to or "the freest"
        return f"migrate {self.record.request_id} to {target} ({self.migration_id})"

    async def run(self) -> MigrationReport:
        """Raises ApiError if the move is not over in time, or if the source or the destination was
        removed meanwhile."""
        wanted, operator_moves = self.wanted, self.controller.operator_moves
        self._check_still_there(wanted.to)
        note = self._note(wanted.to)
        began_s = self.controller.now_s()
        attempts = await operator_moves.move(
            self._by_hand(), wanted.to, self.migration_id, wanted.timeout_s
        )
        if not attempts:
            return self._report(None, outcome="refused", code=NO_DESTINATION, note=self._nobody())
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
        return self._report(
            last.destination_id,
            outcome=last.outcome,
            code=last.code,
            note="; ".join(filter(None, (note, self._waiting(last, began_s)))),
            hint=self._hint(last.code),
            num_blocks=record.num_blocks if record else 0,
            num_bytes=record.num_bytes if record else 0,
            copy_time_s=round(record.copy_time_s, 6) if record else 0.0,
            downtime_s=_rounded(last.downtime_s),
            excess_s=_rounded(last.excess_s),
            attempts=tuple(attempt_model(attempt) for attempt in attempts),
        )

    async def plan(self) -> MigrationReport:
        """What the move would take by the source's word, and whether the destination has room."""
        self._check_still_there(self.wanted.to)
        move, operator_moves = self._by_hand(), self.controller.operator_moves
        target = self.wanted.to or operator_moves.choose(move.source_id, move.num_blocks)
        if target is None:
            return self._report(None, outcome="refused", code=NO_DESTINATION, note=self._nobody())
        answer = await self._ask_plan(move, target)
        if answer.plan is None:
            return self._report(target, outcome="refused", code=answer.code)
        plan = answer.plan
        self._check_still_there(target)
        snapshot = self.controller.statuses[target].snapshot
        refusal = lacks(snapshot, plan.num_blocks)
        found = MovePlanned(
            num_tokens=plan.num_tokens,
            num_blocks=plan.num_blocks,
            num_bytes=plan.num_bytes,
            copy_time_s=_rounded(plan.expected_copy_time_s),
            downtime_s=_rounded(self._expected_downtime_s(target)) if plan.num_blocks else None,
        )
        return self._report(
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

    def _check_still_there(self, target: str | None) -> None:
        """Raises ApiError if a scale-in removed the source or the target since the call came."""
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
        """A request that waits holds no blocks."""
        record, snapshot = self.record, self.controller.statuses[self.source_id].snapshot
        return MoveByHand(
            record.request_id,
            self.source_id,
            held_blocks(record, snapshot.block_size),
            self.wanted.reason or BY_HAND,
            self.wanted.verify_kv,
            self.wanted.max_stages or MAX_STAGES,
        )

    def _expected_downtime_s(self, target: str) -> float | None:
        """The destination's step, which makes the next token, and what the last moves took beyond
        a step; None while the destination has made no step."""
        step_time_s = self.controller.statuses[target].step_time_s
        if step_time_s <= 0:
            return None
        return step_time_s + (self.controller.operator_moves.log.typical_excess_s() or 0.0)

    def _note(self, target: str | None) -> str:
        """Says that the target is cooling; only a target that the operator named can be."""
        controller = self.controller
        if target is None:
            return ""
        left_s = controller.operator_moves.cooling.remaining_s(
            target, controller.now_s(), self.source_id
        )
        return f"{target} failed lately and cools for another {duration(left_s)}" if left_s else ""

    def _waiting(self, last: Attempt, began_s: float) -> str:
        """How long the move waited for its turn, if that was noticeable, and the setting that
        limits it."""
        named = f"migration.max_moves is {self.controller.live.limits.max_moves}"
        if last.queued_s < TOLD_WAIT_S:
            return named if last.code in BY_MAX_MOVES else ""
        waited_s = self.controller.now_s() - began_s if last.outcome == "refused" else last.queued_s
        return f"waited {duration(waited_s)} for its turn: {named}"

    def _hint(self, code: str) -> str:
        """The command that lets more moves run at once, if that limit was the reason."""
        if code not in BY_MAX_MOVES:
            return ""
        more = max(1, 2 * self.controller.live.limits.max_moves)
        return f"llumctl set migration.max_moves={more}"

    def _nobody(self) -> str:
        """Why no instance can be the destination, instance by instance."""
        controller, num_blocks = self.controller, self._by_hand().num_blocks
        told = []
        for member in controller.roster.instances():
            if member.member_id == self.source_id:
                continue
            refusal = unschedulable(controller, member.member_id)
            if refusal is None:
                snapshot = controller.statuses[member.member_id].snapshot
                lacking = lacks(snapshot, num_blocks)
                refusal = why(lacking) if lacking else "it failed lately and cools"
            told.append(f"{member.member_id}: {refusal}")
        return "; ".join(told) or "there is no other instance"

    def _report(self, target: str | None, **came: Unpack[_Came]) -> MigrationReport:
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


def held_blocks(record: RequestRecord, block_size: int) -> int:
    """The blocks that the request holds; a request that waits holds none."""
    if record.state is not RequestState.RUNNING:
        return 0
    return blocks_for(record.num_prompt_tokens + record.num_output_tokens, block_size)


async def find_migration(
    controller: Controller, request_id: str, wanted: MigrateRequest
) -> Migration:
    """Raises ApiError for a request that is on no instance, and for a target that is no instance,
    has the request already, or may take no requests."""
    members = controller.roster.members
    if wanted.to is not None and (
        wanted.to not in members or members[wanted.to].kind != "instance"
    ):
        raise no_such_instance(wanted.to)
    record = await find_for_order(controller, request_id)
    source_id = record.instance_id
    if record.state in ENDED:
        raise ApiError(409, "ended", f"request {request_id} has {record.state}", "llumctl requests")
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
        refusal = None if instance_id is None else unschedulable(controller, instance_id)
        # Requests leave a draining instance by moves.
        if refusal is not None and (not role or refusal != _UNSCHEDULABLE["draining"]):
            code = "not_serving" if role else "unschedulable"
            where = f"instance {instance_id}, which {role}," if role else f"instance {instance_id}"
            raise ApiError(409, code, f"{where} cannot move it: {refusal}", "llumctl status")
    return Migration(
        controller, record, source_id, wanted, controller.operator_moves.next_migration_id()
    )


def unschedulable(controller: Controller, instance_id: str) -> str | None:
    """Why the instance may take no requests, in words; None if it may."""
    record = controller.scheduler.instances.get(instance_id)
    refusal = "dead" if record is None else record.refusal(controller.now_s())
    return None if refusal is None else _UNSCHEDULABLE[refusal]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
