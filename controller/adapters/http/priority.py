"""Another priority for a live request, on the control API: checked, planned or done."""

from dataclasses import dataclass

from controller.adapters.http.errors import ApiError
from controller.adapters.http.requests import find_record
from controller.api.state.audit import one_short_line
from controller.api.wire.operations import PriorityReport, PriorityRequest
from controller.core.load.snapshot import Level
from controller.core.record.request_record import ENDED, RequestRecord
from controller.runtime.controller.controller import Controller
from controller.runtime.controller.queries import MemberDiedError
from controller.runtime.messages.operations import RankChangeAnswered, RankChangeAsked


@dataclass(frozen=True, slots=True)
class PriorityChange:
    """A change of a live request's priority to `level`."""

    controller: Controller
    record: RequestRecord
    level: Level
    wanted: PriorityRequest

    @property
    def action(self) -> str:
        """For the audit log."""
        return f"priority {self.record.request_id} {self.level.name}, was {self.record.level}"

    @property
    def is_so(self) -> bool:
        """The request has that level already."""
        return self.record.level == self.level.name

    def present(self) -> PriorityReport:
        return self._report(self.record.level, self.record.instance_id)

    async def run(self, cause_id: str = "", actor: str = "") -> PriorityReport:
        """Returns when the request's frontend has noted the new level, which counts from then on
        wherever the request is. Raises ApiError."""
        record, wanted = self.record, self.wanted
        frontend = self.controller.roster.members.get(record.frontend_id)
        if frontend is None or not frontend.alive:  # it died while the audit log was written
            raise ended(record, f"its frontend {record.frontend_id} died")
        try:
            answer: RankChangeAnswered = await self.controller.queries.ask(
                record.frontend_id,
                lambda query_id: RankChangeAsked(
                    query_id,
                    record.request_id,
                    self.level.rank,
                    cause_id=cause_id,
                    actor=actor,
                    reason=one_short_line(wanted.reason),
                    dry_run=wanted.dry_run,
                ),
            )
        except TimeoutError as error:
            raise ApiError(
                504,
                "no_answer",
                f"frontend {record.frontend_id}, which has the request, did not answer in time;"
                " it may still change the priority",
                f"llumctl requests {record.request_id}",
            ) from error
        except MemberDiedError as error:
            raise ended(record, f"its frontend {record.frontend_id} died") from error
        if answer.code:
            raise ended(record, "it ended meanwhile")
        return self._report(answer.previous_level, answer.instance_id)

    def _report(self, previous: str, instance_id: str | None) -> PriorityReport:
        return PriorityReport(
            request_id=self.record.request_id,
            client_id=self.record.client_request_id,
            previous=previous,
            level=self.level.name,
            instance_id=instance_id,
            dry_run=self.wanted.dry_run,
        )


async def find_priority_change(
    controller: Controller, reference: str, wanted: PriorityRequest
) -> PriorityChange:
    """Raises ApiError for an unknown level, and for a request that has ended or is unknown."""
    levels = {level.name: level for level in controller.live.scheduler.levels}
    level = levels.get(wanted.level)
    if level is None:
        raise ApiError(
            400,
            "no_such_level",
            f"there is no priority level {wanted.level!r}; there are {', '.join(levels)}",
            f"llumctl priority REQ {next(iter(levels))}",
        )
    record = await find_record(controller, reference)
    if record.state in ENDED:
        raise ended(record, f"it has {record.state}")
    return PriorityChange(controller, record, level, wanted)


def ended(record: RequestRecord, why: str) -> ApiError:
    return ApiError(
        409,
        "ended",
        f"the priority of request {record.request_id} cannot change: {why}",
        "llumctl requests",
    )
