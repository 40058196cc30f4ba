"""Wire models of operators' changes to a running cluster: drain, cordon, scale, priority, abort;
of what was done lately, and of what takes it back.

The compatibility rules are those of `base`. `deadline_s` in reports is in seconds since the
epoch; `revision` counts the changes of the cluster's spec.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from controller.api.settings.bounds import MAX_DEADLINE_S, MAX_INSTANCES
from controller.api.wire.base import (
    AnswerModel,
    OrderModel,
    Reason,
    Revision,
    SettingValue,
    WireModel,
)
from controller.api.wire.requests import RequestState

OnDeadline = Literal["keep", "abort"]
DrainState = Literal[
    "draining", "drained", "restarting", "restarted", "active", "removed", "failed"
]

InstanceIds = Annotated[
    tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_INSTANCES)
]


class DrainRequest(OrderModel):
    """Empties an instance. `on_deadline` is about the drain and never ends a request: `keep` goes
    on and reports what is left, `abort` ends the drain, and requests that are left stay where they
    run."""

    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Seconds from now. None: no deadline."""
    on_deadline: OnDeadline = "keep"
    dry_run: bool = False
    force: bool = False
    """Drains even if no other instance serves."""
    with_ids: InstanceIds = ()
    """Instances that the same command drains: none of them is a destination, and the command drains
    all or none."""
    reason: Reason = ""
    if_revision: Revision = None


class RestartRequest(OrderModel):
    """Empties an instance and replaces its process. At the deadline it is given up: what is left
    stays where it runs, and the process too. With `now`, the process is replaced at once: requests
    that run or wait there are replayed by other instances."""

    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Seconds from now. None: no deadline."""
    now: bool = False
    dry_run: bool = False
    force: bool = False
    """Even if no other instance serves: new requests are held meanwhile."""
    reason: Reason = ""
    if_revision: Revision = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "RestartRequest":
        if self.now and self.deadline_s is not None:
            raise ValueError("what happens now has no deadline")
        return self


class EvacuateRequest(OrderModel):
    """Empties an instance that will be ended. It goes for good once it is empty, and after
    `within_s` in any case: what could not be moved by then ends there."""

    within_s: float = Field(default=30.0, gt=0, le=MAX_DEADLINE_S)
    """Seconds from now."""
    dry_run: bool = False
    force: bool = False
    """Even if no other instance serves."""
    reason: Reason = ""
    if_revision: Revision = None


class UndrainRequest(OrderModel):
    reason: Reason = ""
    if_revision: Revision = None
    dry_run: bool = False


class CordonRequest(OrderModel):
    """No new requests for an instance, and no moves to it; what it has goes on there, and may leave
    by moves as any other does. A controller that starts again, and a restart of the instance, leave
    that as it is."""

    dry_run: bool = False
    force: bool = False
    """Even if no other instance serves: new requests are held meanwhile."""
    with_ids: InstanceIds = ()
    """Instances that the same command cordons: all or none."""
    reason: Reason = ""
    if_revision: Revision = None


class UncordonRequest(OrderModel):
    reason: Reason = ""
    if_revision: Revision = None
    dry_run: bool = False


class CordonReport(AnswerModel):
    """`closed_by`: why the instance gets no new requests now, or would get none after a dry run's
    order; empty if it gets them."""

    instance_id: str
    cordoned: bool
    closed_by: tuple[str, ...] = ()
    num_requests: int = 0
    """That it has, by its last status, with those that were dispatched since."""
    dry_run: bool = False
    revision: int = 0
    reason: str = ""
    actor: str = ""
    """Of the cordon."""
    changes: bool = False
    """The call changed something, or would in a dry run."""


class CordonList(AnswerModel):
    cordons: tuple[CordonReport, ...] = ()


class CannotMove(WireModel):
    """A request that stays for now; docs/metrics.md has the codes."""

    request_id: str
    client_id: str = ""
    code: str
    why: str = ""


REPLAYS = "replays"
"""The code of a planned departure that is no move: the request would be replayed elsewhere."""


class PlannedDeparture(WireModel):
    """Where a request would go, or why it cannot. A queued request has no blocks."""

    request_id: str
    client_id: str = ""
    num_tokens: int
    num_blocks: int
    to_instance_id: str | None = None
    code: str = ""
    why: str = ""


class DrainReport(AnswerModel):
    """The drain of one instance. `state`: draining; drained (it has no requests left); restarting
    (its process ended, the next one starts); active (it is not being drained); removed (it is gone
    for good). The end of a restart is called restarted or failed by those who follow it. With
    `dry_run`, `plan` says what would happen."""

    instance_id: str
    drain_id: str = ""
    state: DrainState
    safe_to_delete: bool = False
    """The instance has no requests and gets none: its process may be ended."""
    num_requests_left: int = 0
    num_moving: int = 0
    num_moved: int = 0
    cannot_move: tuple[CannotMove, ...] = ()
    silent: tuple[str, ...] = ()
    """Frontends that did not answer: their requests are not in this report."""
    estimate_s: float | None = None
    """Expected time until it is drained; null if nothing is known from which to estimate it."""
    deadline_s: float | None = None
    on_deadline: OnDeadline = "keep"
    plan: tuple[PlannedDeparture, ...] = ()
    dry_run: bool = False
    revision: int = 0
    reason: str = ""
    actor: str = ""
    removes_instance: bool = False
    """The instance is removed once it is drained (scale-in)."""
    evacuates_instance: bool = False
    """It goes at its deadline, whatever is left there."""
    restarts_instance: bool = False
    """Its process is replaced once it is drained, and the drain is over then."""
    incarnation: int | None = None
    pid: int | None = None
    """Both of the present process; a process that is restarted has others afterwards."""
    changes: bool = False
    """The call changed something, or would in a dry run."""


class DrainList(AnswerModel):
    drains: tuple[DrainReport, ...] = ()


class ScaleRequest(OrderModel):
    """A number of instances. A change of it can be planned (`dry_run`): the plan says which number
    to ask for, at which revision. `deadline_s` (seconds from now) and `on_deadline` are those of
    the drains of a scale-in."""

    target: int | None = Field(default=None, ge=0, le=MAX_INSTANCES)
    change: int | None = Field(default=None, ge=-MAX_INSTANCES, le=MAX_INSTANCES)
    if_revision: Revision = None
    dry_run: bool = False
    force: bool = False
    """Starts instances even if there seems to be no room for them, and drains those to be removed
    even if no other instance serves."""
    draining: InstanceIds | None = None
    """Removes just these instances, or none. None: those with the fewest running requests."""
    reason: Reason = ""
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    on_deadline: OnDeadline = "keep"

    @model_validator(mode="after")
    def _one_of_both(self) -> "ScaleRequest":
        if (self.target is None) == (self.change is None):
            raise ValueError("give either target or change")
        if self.change is not None and not self.dry_run:
            raise ValueError("a change can only be planned: ask for the target of the plan")
        return self


class ScaleReport(AnswerModel):
    """`previous` and `target` count planned instances: with those that start, without those to be
    removed. `undrained`: instances that were to be removed, and stay."""

    previous: int
    target: int
    revision: int = 0
    dry_run: bool = False
    added: tuple[str, ...] = ()
    undrained: tuple[str, ...] = ()
    draining: tuple[DrainReport, ...] = ()
    holds_autoscale: bool = False
    """Auto-scaling is on, or in a dry run, and leaves the number as it is until it is released."""


class PriorityRequest(OrderModel):
    """Another priority level for a live request."""

    level: str = Field(min_length=1, max_length=64)
    reason: Reason = ""
    dry_run: bool = False


class PriorityEffect(WireModel):
    """What another priority of a running request does to its instance: `headroom_blocks` are kept
    free there beside all running requests. Less freeness keeps new requests away, and lets others
    move away. `freeness_steps`: null of a draining instance."""

    headroom_blocks_before: int
    headroom_blocks_after: int
    freeness_steps_before: float | None
    freeness_steps_after: float | None


class PriorityReport(AnswerModel):
    """`previous` and `level` are the same if nothing changed. `instance_id`: where the request is;
    null while no instance has it. `effect`: by the instance's last status, in a dry run for a
    request that runs; a request that waits only has another place in the queue."""

    request_id: str
    client_id: str = ""
    previous: str
    level: str
    instance_id: str | None = None
    dry_run: bool = False
    effect: PriorityEffect | None = None


class AbortRequest(OrderModel):
    """Ends a live request: its client gets one error. The reason is not told to the client."""

    reason: Reason = ""
    dry_run: bool = False


class AbortReport(AnswerModel):
    """`state`, `instance_id` and `num_output_tokens` are how the request was when the order came;
    the tokens may have reached the client."""

    request_id: str
    client_id: str = ""
    request_ids: tuple[str, ...] = ()
    """All sequences that ended: the choices of one client's request (`n` > 1) end together."""
    level: str = ""
    state: RequestState
    instance_id: str | None = None
    num_output_tokens: int = 0
    dry_run: bool = False


class Undo(WireModel):
    """The order that takes an operation back, and the state that the operation made: if there is
    another by now, somebody else changed it since."""

    kind: Literal[
        "undrain",
        "drain",
        "uncordon",
        "cordon",
        "scale",
        "priority",
        "migrate",
        "set",
        "stop_rolling",
    ]
    target: str = ""
    """An instance, or a request."""
    previous: dict[str, SettingValue]
    """Values that come back, by key: those of settings, else of `instances`, `level` or
    `instance`."""
    made: dict[str, SettingValue]


class OperationEntry(WireModel):
    """One operation of the audit log. `why_not`: why it cannot be undone now; empty if it can."""

    id: str
    time_s: float
    actor: str
    actions: tuple[str, ...]
    reason: str = ""
    outcome: str
    undo: Undo | None = None
    why_not: str = ""

    @property
    def was_done(self) -> bool:
        return not self.outcome.startswith(("refused", "failed", "unknown"))


class OperationList(AnswerModel):
    """The last operations, the newest first. `revision`: the spec's, at which `why_not` holds."""

    operations: tuple[OperationEntry, ...]
    revision: int = 0
