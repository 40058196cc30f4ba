"""Wire models of requests (as a list, one request with its history, and its explanation) and of
events.

The compatibility rules are those of `controller.api.wire`. `GET /v1/requests/{REQ}/explain` tells
step by step why a request is where it is. A decision names the instances that it considered, each
with the figure that counted: for a dispatch the policy's score, for a move the freeness in decode
steps.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from controller.api.wire import AnswerModel, WireModel
from controller.api.wire.status import HeldPlaceStatus


class Event(WireModel):
    """Something that happened. docs/metrics.md has the kinds and causes.

    `position` is the event's place in the controller's log. It is empty in a request's history,
    which travels with the request and outlives the controller.
    """

    position: str = ""
    kind: str
    time_s: float
    cause_id: str
    reason: str = ""
    instance_id: str | None = None
    incarnation: int | None = None
    frontend_id: str | None = None
    request_id: str | None = None
    level: str | None = None
    actor: str | None = None
    numbers: dict[str, float | int | None] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    """Further names, by what they name: `from` and `to` of a move, the `policy` of a dispatch."""


class EventPage(AnswerModel):
    """`missed`: how many events the controller has forgotten between the wanted position and the
    first event here; null if it cannot tell, because it has restarted since. `num_searched`: in how
    many events the controller looked for words; 0 if none were given."""

    events: tuple[Event, ...]
    next_position: str
    missed: int | None = 0
    num_searched: int = 0


class RequestState(StrEnum):
    """An `evicted` request ran before and waits to run again. The last three states are final."""

    DISPATCHING = "dispatching"
    WAITING = "waiting"
    RUNNING = "running"
    EVICTED = "evicted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


LIVE_STATES = (
    RequestState.RUNNING,
    RequestState.EVICTED,
    RequestState.WAITING,
    RequestState.DISPATCHING,
)
"""The order in which requests are listed. Ended requests follow, the last one first."""
ENDED_STATES = (RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED)


class RequestStatus(WireModel):
    """One sequence. `id` is llumctl's id, `client_id` the client's. `parent_id` is set if one
    client's request became several sequences (`n` > 1)."""

    id: str
    client_id: str
    parent_id: str | None = None
    state: RequestState
    level: str
    frontend_id: str
    instance_id: str | None = None
    arrival_time_s: float
    age_s: float
    """The time since the request arrived; for an ended request, from its arrival to its end."""
    ttft_s: float | None = None
    last_token_age_s: float | None = None
    """The time since the request's newest token; null before its first token and after its end."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_blocks: int | None = None
    """How many KV blocks the request holds, by its tokens; null if it is on no instance, or its
    instance has not reported."""
    num_evictions: int = 0
    num_continued: int = 0
    """How often its state was computed again after an eviction or a replay, by a model with states
    (Mamba, Gated DeltaNet): from then on its tokens may differ from those it would have got."""
    num_moves: int = 0
    num_replays: int = 0
    """How often the request was lost with its instance and went on elsewhere."""
    not_replayable: str = ""
    """The code of the reason why the request cannot go on elsewhere, or cannot once it has tokens
    (docs/reliability.md); empty if it can."""
    adapter: str = ""
    """The name of the request's LoRA adapter; empty without one."""
    model: str = ""
    """The name of its model, if the cluster serves several."""
    movable: bool | None = None
    """Whether the request could move now; null if the request is on no instance, or if its instance
    was not asked or did not answer."""
    why_not_movable: str | None = None
    """The code of the reason why the request cannot move now (docs/metrics.md)."""
    finish_reason: str | None = None
    held: HeldPlaceStatus | None = None
    """The place at the controller of a request that the controller holds."""


class RequestList(AnswerModel):
    """`num_matching` counts all matches. Requests of `silent_frontends`, which did not answer, are
    missing."""

    requests: tuple[RequestStatus, ...]
    num_matching: int
    silent_frontends: tuple[str, ...] = ()


class RequestDetail(RequestStatus, AnswerModel):
    """`num_forgotten`: how many events are missing in the middle of the history."""

    history: tuple[Event, ...] = ()
    num_forgotten: int = 0


class RequestName(AnswerModel):
    """The whole id of the request that a reference names. Orders need the whole id."""

    request_id: str
    client_id: str = ""


class MoveStage(WireModel):
    num_blocks: int
    num_bytes: int
    copy_time_s: float


Figures = dict[str, float | int | None]
"""Figures by name; the name ends with the unit."""


class Considered(WireModel):
    """`figure`: null if the instance had none; a draining instance, for example, has no
    freeness."""

    instance_id: str
    figure: float | None = None


class _Step(WireModel):
    time_s: float
    cause_id: str = ""


class DispatchStep(_Step):
    """`by`: the controller, or the frontend alone while the controller was silent. `candidates`:
    the best of `num_considered` instances, the best first; empty if the frontend chose."""

    kind: Literal["dispatched"] = "dispatched"
    instance_id: str
    by: Literal["controller", "frontend"]
    policy: str = ""
    candidates: tuple[Considered, ...] = ()
    num_considered: int = 0
    again: bool = False
    """Whether the request was dispatched before, and is replayed."""


class _MoveDecision(_Step):
    """`freeness_steps`: the source's freeness when it decided; null if it was draining.
    `candidates`: the freest instances when the round began, the freest first. `figures`: all other
    figures."""

    from_instance_id: str
    to_instance_id: str
    freeness_steps: float | None = None
    candidates: tuple[Considered, ...] = ()
    figures: Figures = Field(default_factory=dict)


class MoveStep(_MoveDecision):
    """A move that is over. `reason`: why it began. `code` and `why` say why a move failed. The
    request then stayed at its source, or ended."""

    kind: Literal["migrated", "migration_failed"]
    reason: str = ""
    code: str = ""
    why: str = ""
    stages: tuple[MoveStage, ...] = ()
    num_bytes: int = 0
    downtime_s: float | None = None
    """Null for a failed move, and if the request had no token before the move."""


class NotMovedStep(_MoveDecision):
    """Relief of the request's instance considered a move of the request, and did not begin it."""

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
    """Any other event. `what` is the event's kind."""

    kind: Literal["other"] = "other"
    what: str
    instance_id: str | None = None
    reason: str = ""
    figures: Figures = Field(default_factory=dict)


class ForgottenStep(_Step):
    """`num_events` events are missing here: a frontend keeps only a request's first and last
    events."""

    kind: Literal["forgotten"] = "forgotten"
    num_events: int


Step = Annotated[
    DispatchStep | MoveStep | NotMovedStep | PriorityStep | OtherStep | ForgottenStep,
    Field(discriminator="kind"),
]


class Waiting(WireModel):
    """Why the request does not run. `code`: held (no instance has it), behind (other requests are
    before it in its instance's queue), or the reason of a queue head (docs/metrics.md)."""

    code: str
    why: str
    figures: Figures = Field(default_factory=dict)


class Explanation(AnswerModel):
    """`request` says whether the request could move now. If it could not, `why_not_movable` says
    why in words. If it could, `could_move_to` is the freest instance that could take it, if there
    is one."""

    request: RequestStatus
    steps: tuple[Step, ...]
    waiting: Waiting | None = None
    why_not_movable: str = ""
    could_move_to: str | None = None


class RequestLife(RequestDetail):
    """What `llumctl requests REQUEST -o json` prints: both answers of the controller about the
    request."""

    explanation: Explanation
