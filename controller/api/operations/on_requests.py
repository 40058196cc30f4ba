"""Orders about a request: migrate, priority, abort."""

from controller.api.operations.order import OnRequest
from controller.api.wire.moves import MigrateRequest, MigrationReport
from controller.api.wire.operations import (
    AbortReport,
    AbortRequest,
    PriorityReport,
    PriorityRequest,
)


class Migrate(OnRequest[MigrateRequest, MigrationReport]):
    kind = "migrate"
    does = "Move a request"
    path = "/v1/requests/{request_id}/migrate"
    body = MigrateRequest
    report = MigrationReport
    undone_by = "migrate"

    @property
    def title(self) -> str:
        return f"migrate {self.request_id} to {self.wanted.to or 'the freest'}"


class SetPriority(OnRequest[PriorityRequest, PriorityReport]):
    kind = "priority"
    does = "Change a request's priority"
    path = "/v1/requests/{request_id}/priority"
    body = PriorityRequest
    report = PriorityReport
    wants_body = True
    undone_by = "priority"

    @property
    def title(self) -> str:
        return f"priority {self.request_id} {self.wanted.level}"


class Abort(OnRequest[AbortRequest, AbortReport]):
    kind = "abort"
    does = "End a request"
    path = "/v1/requests/{request_id}/abort"
    body = AbortRequest
    report = AbortReport
