"""Wire models of `GET /v1/requests/{REQ}/explain`: why a request is where it is, step by step.

Compatible as `models` says. Of a decision the instances are named that it looked at, each with the
figure it was judged by: a dispatch by the policy's score, a move by freeness in decode steps.
"""

from typing import Annotated, Literal

from pydantic import Field

from controller.api.wire.models import SCHEMA_VERSION, RequestStatus, WireModel
from controller.api.wire.moves import MoveStage

Figures = dict[str, float | int | None]
"""By name, with the unit in it."""


class Considered(WireModel):
    """`figure`: null if it had none, as a draining instance has no freeness."""

    instance_id: str
    figure: float | None = None


class _Step(WireModel):
    time_s: float
    cause_id: str = ""


class DispatchStep(_Step):
    """`by`: the controller, or the frontend alone while the controller was silent. `candidates`:
    the best of `num_considered`, the best first; none are known where the frontend chose."""

    kind: Literal["dispatched"] = "dispatched"
    instance_id: str
    by: Literal["controller", "frontend"]
    policy: str = ""
    candidates: tuple[Considered, ...] = ()
    num_considered: int = 0
    again: bool = False
    """Not the first one: it was replayed."""


class _MoveDecision(_Step):
    """`freeness_steps`: of the source when it decided; null while it drained. `candidates`: the
    freest instances when the round began, the freest first. `figures`: all else that is known."""

    from_instance_id: str
    to_instance_id: str
    freeness_steps: float | None = None
    candidates: tuple[Considered, ...] = ()
    figures: Figures = Field(default_factory=dict)


class MoveStep(_MoveDecision):
    """A move that is over. `reason`: why it was to be moved. Of one that failed, `code` and `why`
    it did; the request stayed at its source, or ended."""

    kind: Literal["migrated", "migration_failed"]
    reason: str = ""
    code: str = ""
    why: str = ""
    stages: tuple[MoveStage, ...] = ()
    num_bytes: int = 0
    downtime_s: float | None = None
    """Null too if the request had no token before."""


class NotMovedStep(_MoveDecision):
    """It was tried when its instance was to be relieved, and not moved."""

    kind: Literal["not_moved"] = "not_moved"
    code: str
    why: str


class PriorityStep(_Step):
    kind: Literal["priority_changed"] = "priority_changed"
    previous: str = ""
    level: str
    actor: str = ""
    reason: str = ""


class OtherStep(_Step):
    """All else that happened to it. `what` is the event's kind."""

    kind: Literal["other"] = "other"
    what: str
    instance_id: str | None = None
    reason: str = ""
    figures: Figures = Field(default_factory=dict)


class ForgottenStep(_Step):
    """Here `num_events` are missing: a frontend keeps the first and the last ones of a request."""

    kind: Literal["forgotten"] = "forgotten"
    num_events: int


Step = Annotated[
    DispatchStep | MoveStep | NotMovedStep | PriorityStep | OtherStep | ForgottenStep,
    Field(discriminator="kind"),
]


class Waiting(WireModel):
    """Why it does not run. `code`: held (no instance has it), behind (others of its instance's
    queue are first), or as of a queue head (docs/metrics.md)."""

    code: str
    why: str
    figures: Figures = Field(default_factory=dict)


class Explanation(WireModel):
    """`request` says whether it could move now; if not, `why_not_movable` in words, if so, the
    freest instance that could take it, if there is one."""

    schema_version: int = SCHEMA_VERSION
    request: RequestStatus
    steps: tuple[Step, ...]
    """In their order."""
    waiting: Waiting | None = None
    why_not_movable: str = ""
    could_move_to: str | None = None
