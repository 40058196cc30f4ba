"""Wire models of `GET /v1/requests/{REQ}/explain`: why a request is where it is, step by step.

The compatibility rules are those of `base`. A decision names the instances that it considered,
each with the figure that counted: for a dispatch the policy's score, for a move freeness in decode
steps.
"""

from typing import Annotated, Literal

from pydantic import Field

from controller.api.wire.base import AnswerModel, WireModel
from controller.api.wire.models import RequestStatus
from controller.api.wire.moves import MoveStage

Figures = dict[str, float | int | None]
"""Figures by name; the name has the unit."""


class Considered(WireModel):
    """`figure`: null if the instance had none, as a draining instance has no freeness."""

    instance_id: str
    figure: float | None = None


class _Step(WireModel):
    time_s: float
    cause_id: str = ""


class DispatchStep(_Step):
    """`by`: the controller, or the frontend alone while the controller was silent. `candidates`:
    the best of `num_considered`, the best first; empty if the frontend chose."""

    kind: Literal["dispatched"] = "dispatched"
    instance_id: str
    by: Literal["controller", "frontend"]
    policy: str = ""
    candidates: tuple[Considered, ...] = ()
    num_considered: int = 0
    again: bool = False
    """True for a request that was dispatched before, and is replayed."""


class _MoveDecision(_Step):
    """`freeness_steps`: the source's when it decided; null while it drained. `candidates`: the
    freest instances when the round began, the freest first. `figures`: all other figures."""

    from_instance_id: str
    to_instance_id: str
    freeness_steps: float | None = None
    candidates: tuple[Considered, ...] = ()
    figures: Figures = Field(default_factory=dict)


class MoveStep(_MoveDecision):
    """A move that is over. `reason`: why it began. `code` and `why` say why a move failed; then
    the request stayed at its source, or ended."""

    kind: Literal["migrated", "migration_failed"]
    reason: str = ""
    code: str = ""
    why: str = ""
    stages: tuple[MoveStage, ...] = ()
    num_bytes: int = 0
    downtime_s: float | None = None
    """Null also if the request had no token before the move."""


class NotMovedStep(_MoveDecision):
    """Relief of the request's instance tried to move the request, and did not."""

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
    """Any other event. `what` is its kind."""

    kind: Literal["other"] = "other"
    what: str
    instance_id: str | None = None
    reason: str = ""
    figures: Figures = Field(default_factory=dict)


class ForgottenStep(_Step):
    """`num_events` are missing here: a frontend keeps a request's first and last events."""

    kind: Literal["forgotten"] = "forgotten"
    num_events: int


Step = Annotated[
    DispatchStep | MoveStep | NotMovedStep | PriorityStep | OtherStep | ForgottenStep,
    Field(discriminator="kind"),
]


class Waiting(WireModel):
    """Why the request does not run. `code`: held (no instance has it), behind (others are before it
    in its instance's queue), or the reason of a queue head (docs/metrics.md)."""

    code: str
    why: str
    figures: Figures = Field(default_factory=dict)


class Explanation(AnswerModel):
    """`request` says whether it could move now. If not, `why_not_movable` says why in words; if so,
    `could_move_to` is the freest instance that could take it, if there is one."""

    request: RequestStatus
    steps: tuple[Step, ...]
    waiting: Waiting | None = None
    why_not_movable: str = ""
    could_move_to: str | None = None
