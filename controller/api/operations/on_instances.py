"""Orders about an instance: drain, undrain, restart, evacuate."""

from controller.api.operations.order import OnInstance
from controller.api.text.quantities import duration
from controller.api.wire.operations import (
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    OnDeadline,
    RestartRequest,
    UndrainRequest,
)


class Drain(OnInstance[DrainRequest, DrainReport]):
    kind = "drain"
    does = "Empty an instance"
    path = "/v1/instances/{instance_id}/drain"
    body = DrainRequest
    report = DrainReport
    undone_by = "undrain"

    @property
    def deed(self) -> str:
        return f"{self.title}{until(self.wanted.deadline_s, self.wanted.on_deadline)}"


class Undrain(OnInstance[UndrainRequest, DrainReport]):
    kind = "undrain"
    does = "Take a drain back"
    path = "/v1/instances/{instance_id}/undrain"
    body = UndrainRequest
    report = DrainReport
    undone_by = "drain"


class Restart(OnInstance[RestartRequest, DrainReport]):
    kind = "restart"
    does = "Restart an instance"
    path = "/v1/instances/{instance_id}/restart"
    body = RestartRequest
    report = DrainReport
    undone_by = "undrain"

    @property
    def deed(self) -> str:
        how = " at once" if self.wanted.now else until(self.wanted.deadline_s, "abort")
        return f"{self.title}{how}"


class Evacuate(OnInstance[EvacuateRequest, DrainReport]):
    kind = "evacuate"
    does = "Empty an instance within a time, and remove it"
    path = "/v1/instances/{instance_id}/evacuate"
    body = EvacuateRequest
    report = DrainReport
    wants_body = True
    undone_by = "undrain"

    @property
    def deed(self) -> str:
        return f"{self.title} within {duration(self.wanted.within_s)}"


def until(deadline_s: float | None, then: OnDeadline) -> str:
    """` within 60s, then keep`: how long a drain may take; empty if it has no deadline."""
    return "" if deadline_s is None else f" within {duration(deadline_s)}, then {then}"
