"""Orders about an instance (drain, undrain, cordon, uncordon, restart, evacuate), each with its
body, its report and its words.

The compatibility rules are those of `controller.api.wire`. `deadline_s` in reports is in
seconds since the epoch; `revision` counts the changes of the cluster's spec.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from controller.api.operations.order import (
    Awaited,
    Controller,
    Danger,
    End,
    OnInstance,
    Order,
    Outcome,
    Plan,
    SpecOrderBody,
    Wanted,
)
from controller.api.settings import MAX_DEADLINE_S, MAX_INSTANCES, MAX_WARM_S
from controller.api.text.quantities import duration, printable
from controller.api.text.status_words import no_requests
from controller.api.wire import AnswerModel, WireModel
from controller.api.wire.status import ClusterStatus, InstanceState

Given = TypeVar("Given", bound=Order[Any, Any])
OnDeadline = Literal["keep", "abort"]
DrainState = Literal[
    "draining", "drained", "restarting", "restarted", "active", "removed", "failed"
]
InstanceIds = Annotated[
    tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_INSTANCES)
]


class CannotMove(WireModel):
    """A request that cannot move now; docs/metrics.md has the codes."""

    request_id: str
    client_id: str = ""
    code: str
    why: str = ""


_NO_ROOM = ("no_blocks", "no_slot", "too_busy")
"""The codes of requests that can move once another instance has room."""
REPLAYS = "replays"
"""The code for a request that would leave without a move: another instance would replay it."""


class PlannedDeparture(WireModel):
    """Where a request would go, or why it cannot go. A queued request has no blocks."""

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
    for good). Clients that follow a restart call its end restarted or failed. With `dry_run`,
    `plan` says what would happen."""

    instance_id: str
    drain_id: str = ""
    state: DrainState
    safe_to_delete: bool = False
    """Whether the instance has no requests and gets none, so that its process may be ended."""
    num_requests_left: int = 0
    num_moving: int = 0
    num_moved: int = 0
    cannot_move: tuple[CannotMove, ...] = ()
    silent: tuple[str, ...] = ()
    """Frontends that did not answer; their requests are missing in this report."""
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
    """Whether the instance is removed once it is drained, as in a scale-in."""
    evacuates_instance: bool = False
    """Whether the instance is removed at the deadline, whatever requests it still has."""
    restarts_instance: bool = False
    """Whether the instance's process is replaced once it is drained, which ends the drain."""
    incarnation: int | None = None
    pid: int | None = None
    """`incarnation` and `pid` belong to the present process; a restart changes both."""
    warm_s: float = 0.0
    """For how long at most the emptied process stays, so that other instances copy what it has
    cached."""
    num_cold_tokens: int = 0
    """Cached tokens of prompts and answers that no other instance has. What is not fetched or moved
    by the time that the process ends is computed again when it is needed."""
    changes: bool = False
    """Whether the call changed something or, in a dry run, would change something."""


class DrainList(AnswerModel):
    drains: tuple[DrainReport, ...] = ()


class EmptyingOrder(OnInstance[Wanted, DrainReport]):
    """An order that moves the instance's requests to other instances."""

    report = DrainReport
    keyed = True
    undone_by = "undrain"
    under_way = "is being drained"

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report, order, name = self.asked(client, self.instance_id)
        if not report.changes:
            return Plan((f"{self.instance_id} {self.under_way} already",), None)
        return Plan(self.lines(report, client.status()), order, name)

    def lines(self, report: DrainReport, status: ClusterStatus) -> tuple[str, ...]:
        """What emptying the instance would take, and what would be left."""
        return emptying(report, status)

    def outcome(self, report: DrainReport) -> Outcome:
        """What to show for the order. It can be undone by `undrain` as long as the instance's
        process runs."""
        text = drain_progress(report).removeprefix(f"{self.instance_id}: ")
        return Outcome(text, can_undo=report.changes, awaits=awaited(report))


class DrainRequest(SpecOrderBody):
    """Empties an instance. `on_deadline` never ends a request: with `keep` the drain goes on and
    reports which requests are left; with `abort` the drain ends, and the requests that are left
    stay where they run."""

    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Seconds from now. None: no deadline."""
    on_deadline: OnDeadline = "keep"
    force: bool = False
    """Drains even if no other instance serves."""
    with_ids: InstanceIds = ()
    """Other instances that the same command drains. None of them is a destination, and the command
    drains all or none."""


class Drain(EmptyingOrder[DrainRequest]):
    kind, word = "drain", "Drain"
    key = "d"
    does = "Empty an instance"
    meaning = "empty the instance of this row"
    typed, usage = "drain ID...", "llumctl drain ID"
    path = "/v1/instances/{instance_id}/drain"
    body = DrainRequest

    @classmethod
    def of_each(cls, targets: Sequence[str], wanted: DrainRequest | None = None) -> list[Self]:
        """Makes an order for each instance. Each order names the other instances of the command, so
        that none of them is a destination for requests."""
        return _together(super().of_each(targets, wanted))

    @property
    def deed(self) -> str:
        return f"{self.title}{until(self.wanted.deadline_s, self.wanted.on_deadline)}"

    def lines(self, report: DrainReport, status: ClusterStatus) -> tuple[str, ...]:
        return emptying(report, status, self.wanted.with_ids)


class UndrainRequest(SpecOrderBody):
    """Takes back the drain of an instance, or another claim to it."""


class Undrain(OnInstance[UndrainRequest, DrainReport]):
    kind, word = "undrain", "Undrain"
    key = "u"
    does = "Take a drain back"
    meaning = "take its drain back, or an operator's event"
    usage = "llumctl uncordon ID"
    danger = Danger.NONE
    path = "/v1/instances/{instance_id}/undrain"
    body = UndrainRequest
    report = DrainReport
    undone_by = "drain"

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        return Plan((f"{self.instance_id} would get requests again",), self.at(report.revision))

    def outcome(self, _: DrainReport) -> Outcome:
        return Outcome("it gets requests again", can_undo=True)


class MarkRequest(SpecOrderBody):
    """Marks an instance. The mark outlives a restart of the controller and of the instance."""

    force: bool = False
    """Makes the mark even if no other instance serves; meanwhile new requests are held."""
    with_ids: InstanceIds = ()
    """Other instances that the same command marks; it marks all or none."""


class MarkReport(AnswerModel):
    """The report of a mark. A field with the mark's name says whether the instance has the mark.
    `closed_by`: why the instance gets no new requests now, or would get none after a dry run's
    order; empty if it gets them."""

    instance_id: str
    closed_by: tuple[str, ...] = ()
    num_requests: int = 0
    """How many requests the instance has: the requests that its last status reported, plus the
    requests that were dispatched to it since."""
    dry_run: bool = False
    revision: int = 0
    reason: str = ""
    actor: str = ""
    """Who made the mark."""
    changes: bool = False
    """Whether the call changed something or, in a dry run, would change something."""


Marked = TypeVar("Marked", bound=MarkReport)


class Marking(OnInstance[Wanted, Marked]):
    """An order that makes or removes a mark. A mark is an operator's reason against an instance,
    which lasts until an operator takes it back. The controller carries out all orders of this class
    in the same way."""

    mark: str
    """The mark's reason in `controller/core/load/closed.py`, where a row says what the reason
    stops. It is a word that can follow `it is`, and also the name of a field of the reports."""
    marks: bool
    """Whether the order makes the mark (otherwise it takes the mark back)."""

    @classmethod
    def words(cls, report: Marked) -> str:
        """The report in one line that begins with the instance's id."""
        raise NotImplementedError

    @classmethod
    def listed(cls, reports: Sequence[Marked]) -> AnswerModel:
        """What `-o json` prints for the reports of one command."""
        raise NotImplementedError

    @classmethod
    def of_each(cls, targets: Sequence[str], wanted: Wanted | None = None) -> list[Self]:
        """Makes an order for each instance. Each order names the other instances of the command,
        which do not count as instances that would still serve."""
        orders = super().of_each(targets, wanted)
        return _together(orders) if cls.marks else orders

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report, order, name = self.asked(client, self.instance_id)
        if not report.changes:
            said = self.mark.replace("_", " ")
            is_so = f"is {said} already" if self.marks else f"is not {said}"
            return Plan((f"{self.instance_id} {is_so}",), None)
        return Plan((self.words(report), *self.consequences(client.status())), order, name)

    def consequences(self, status: ClusterStatus) -> tuple[str, ...]:  # noqa: ARG002
        """Further lines of the plan, after the first line."""
        return ()

    def outcome(self, report: Marked) -> Outcome:
        text = self.words(report).removeprefix(f"{self.instance_id}: ")
        return Outcome(text, can_undo=report.changes)


class CordonReport(MarkReport):
    cordoned: bool


class CordonList(AnswerModel):
    cordons: tuple[CordonReport, ...] = ()


class UncordonList(DrainList, CordonList):
    """What `uncordon -o json` prints: drains and cordons that it took back, or would take back."""


class _Cordoning(Marking[Wanted, CordonReport]):
    mark = "cordoned"
    report = CordonReport

    @classmethod
    def words(cls, report: CordonReport) -> str:
        return cordoned(report)

    @classmethod
    def listed(cls, reports: Sequence[CordonReport]) -> CordonList:
        return CordonList(cordons=tuple(reports))


class CordonRequest(MarkRequest):
    """Lets an instance get no new requests and no moves. Its requests go on there, and may move
    away as they may from any other instance. The cordon outlives a restart of the controller and of
    the instance."""


class Cordon(_Cordoning[CordonRequest]):
    kind, word = "cordon", "Cordon"
    marks = True
    key = "c"
    does = "Give an instance no new requests"
    meaning = "no new requests for the instance of this row; it keeps what it has"
    typed, usage = "cordon ID...", "llumctl cordon ID"
    path = "/v1/instances/{instance_id}/cordon"
    body = CordonRequest
    undone_by = "uncordon"

    def consequences(self, status: ClusterStatus) -> tuple[str, ...]:
        return (capacity(status, (self.instance_id, *self.wanted.with_ids)),)


class UncordonRequest(SpecOrderBody):
    """Gives an instance new requests again."""


class Uncordon(_Cordoning[UncordonRequest]):
    kind, word = "uncordon", "Uncordon"
    marks = False
    key = "C"
    does = "Take a cordon back"
    meaning = "new requests for the instance of this row again"
    typed, usage = "uncordon ID...", "llumctl uncordon ID"
    danger = Danger.NONE
    path = "/v1/instances/{instance_id}/uncordon"
    body = UncordonRequest
    undone_by = "cordon"


class RestartRequest(SpecOrderBody):
    """Empties an instance and replaces its process. At the deadline the restart is given up:
    requests that are left stay where they run, and the process stays too. With `now`, the process
    is replaced at once, and other instances replay the requests that run or wait there."""

    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Seconds from now. None: no deadline."""
    now: bool = False
    warm_s: float = Field(default=0.0, ge=0, le=MAX_WARM_S)
    """For how long at most the emptied process stays, so that other instances copy what it has
    cached."""
    force: bool = False
    """Restarts the instance even if no other instance serves; meanwhile new requests are held."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "RestartRequest":
        if self.now and self.deadline_s is not None:
            raise ValueError("a restart at once has no deadline")
        if self.now and self.warm_s:
            raise ValueError("a restart at once leaves no time to fetch what is cached")
        return self


class Restart(EmptyingOrder[RestartRequest]):
    kind, word = "restart", "Restart"
    key = "r"
    does = "Restart an instance"
    meaning = "empty the instance of this row, then replace its process"
    typed, usage = "restart ID", "llumctl restart ID"
    several = False
    path = "/v1/instances/{instance_id}/restart"
    body = RestartRequest
    under_way = "is being restarted"

    @property
    def deed(self) -> str:
        how = " at once" if self.wanted.now else until(self.wanted.deadline_s, "abort")
        return f"{self.title}{how}"

    @property
    def command(self) -> str:
        return f"{super().command}{' --now' if self.wanted.now else ''}"

    @property
    def question(self) -> str:
        return f"Restart {self.instance_id}{' at once' if self.wanted.now else ''}?"

    def lines(self, report: DrainReport, status: ClusterStatus) -> tuple[str, ...]:
        summary, *rest = emptying(report, status)
        return (f"{summary}, then its process is replaced", *rest)


class EvacuateRequest(SpecOrderBody):
    """Empties an instance that will be ended. The instance is removed for good once it is empty,
    and after `within_s` in any case. Requests that could not move by then end there."""

    within_s: float = Field(default=30.0, gt=0, le=MAX_DEADLINE_S)
    """Seconds from now."""
    warm_s: float = Field(default=0.0, ge=0, le=MAX_WARM_S)
    """For how long at most the emptied instance stays, within `within_s`, so that others copy
    what it has cached."""
    force: bool = False
    """Evacuates the instance even if no other instance serves."""


class Evacuate(EmptyingOrder[EvacuateRequest]):
    kind, word = "evacuate", "Evacuate"
    does = "Empty an instance within a time, and remove it"
    meaning = "move an instance's requests to others within 30 s, and remove it then"
    typed, usage = "drain --remove ID", "llumctl drain ID --remove"
    several = False
    path = "/v1/instances/{instance_id}/evacuate"
    body = EvacuateRequest
    wants_body = True

    @property
    def deed(self) -> str:
        return f"{self.title} within {duration(self.wanted.within_s)}"

    @property
    def command(self) -> str:
        warm = f" --warm {duration(self.wanted.warm_s)}" if self.wanted.warm_s else ""
        return f"{super().command} --remove --within {duration(self.wanted.within_s)}{warm}"

    @property
    def question(self) -> str:
        return f"Evacuate {self.instance_id} within {self.wanted.within_s:g} s?"

    def lines(self, report: DrainReport, status: ClusterStatus) -> tuple[str, ...]:
        summary, *rest = emptying(report, status)
        within = duration(self.wanted.within_s)
        goes = f"after {within} at the latest it is removed, with the requests that are left"
        return (summary, goes, *rest)


MARKS: tuple[type[Marking[Any, Any]], ...] = (Cordon, Uncordon)
ORDERS: tuple[type[Order[Any, Any]], ...] = (Drain, Undrain, *MARKS, Restart, Evacuate)


def _together(orders: list[Given]) -> list[Given]:
    """The orders of one command, each with the ids of the others, so that either all of them are
    carried out or none."""
    targets = [each.target for each in orders]
    return [
        each.but(with_ids=tuple(other for other in targets if other != each.target))
        for each in orders
    ]


def emptying(
    report: DrainReport, status: ClusterStatus, others: Sequence[str] = ()
) -> tuple[str, ...]:
    """What emptying an instance would take, and what would be left. `others`: other instances that
    are emptied at the same time."""
    return (
        would_move(report),
        capacity(status, (report.instance_id, *others)),
        *cold(report),
        *departures(report.plan),
    )


def cold(report: DrainReport) -> tuple[str, ...]:
    """What is lost with the process's cache; nothing if the process stays."""
    ends = report.removes_instance or report.restarts_instance
    if not ends or not report.num_cold_tokens:
        return ()
    tokens = f"{report.num_cold_tokens:,} cached tokens are on no other instance"
    if report.warm_s:
        return (f"{tokens}: others may copy them for {duration(report.warm_s)} after it is empty",)
    return (f"{tokens}, and are lost; --warm 10s lets others fetch them",)


def cordoned(report: CordonReport) -> str:
    """`i-7: cordoned, keeps its 12 requests`; after an uncordon, whether the instance gets new
    requests again or which other reasons against new requests remain."""
    name = report.instance_id
    if report.cordoned:
        keeps = "would keep" if report.dry_run else "keeps"
        what = "would be cordoned" if report.dry_run else "cordoned"
        one = report.num_requests == 1
        return f"{name}: {what}, {keeps} its {report.num_requests} request{'' if one else 's'}"
    if report.closed_by:
        why = report.closed_by[0].replace("_", " ")
        if report.dry_run:
            return f"{name}: would not be cordoned any more, but still {why}"
        return f"{name}: not cordoned any more; it is {why}"
    return f"{name}: {'would get' if report.dry_run else 'gets'} new requests again"


def departures(plan: Sequence[PlannedDeparture]) -> tuple[str, ...]:
    """Why requests stay for now, each reason once; then the requests, and where they go."""
    staying: dict[str, list[str]] = {}
    for item in plan:
        if not item.to_instance_id:
            staying.setdefault(item.code, []).append(item.why or item.code)
    lines = [f"  {_staying(code, whys)}" for code, whys in staying.items()]
    return (*lines, *(_departure(each) for each in plan))


def _staying(code: str, whys: Sequence[str]) -> str:
    """`6 stay for now: no instance has so many free blocks`. Reasons that differ only in figures
    count as one."""
    why = whys[0] if len(set(whys)) == 1 else re.sub(r"\d+", "so many", whys[0])
    if code == REPLAYS:
        return f"{len(whys)}: {why}"
    return f"{len(whys)} {'stays' if len(whys) == 1 else 'stay'} for now: {why}"


def _departure(item: PlannedDeparture) -> str:
    held = f"{item.num_blocks} blocks" if item.num_blocks else "queued"
    goes = f"to {item.to_instance_id}" if item.to_instance_id else "stays"
    return f"  {item.request_id}  {held}  {'replayed' if item.code == REPLAYS else goes}"


def until(deadline_s: float | None, then: OnDeadline) -> str:
    """` within 60s, then keep`: how long a drain may take; empty without a deadline."""
    return "" if deadline_s is None else f" within {duration(deadline_s)}, then {then}"


def awaited(report: DrainReport) -> tuple[Awaited, ...]:
    """What a drain or a restart that has begun still waits for."""
    end = End.RESTARTED if report.restarts_instance else End.DRAINED
    if report.removes_instance:
        end = End.REMOVED
    if not report.drain_id or (report.safe_to_delete and end is End.DRAINED):
        return ()
    return (Awaited(report.instance_id, end, report.drain_id, report.incarnation),)


def would_move(report: DrainReport) -> str:
    """`i-7: 8 requests: 2 move now, 6 wait for room`, or `i-7: 8 requests would move`."""
    count = max(len(report.plan), report.num_requests_left)
    affected = f"{report.instance_id}: {_requests(count)}"
    if any(item.code == REPLAYS for item in report.plan):
        return f"{affected} would be replayed elsewhere"
    codes = [item.code for item in report.plan if item.code not in ("", "moving")]
    if not codes:
        return f"{affected} would move"
    waiting = sum(code in _NO_ROOM for code in codes)
    facts = {"move now": count - len(codes), "wait for room": waiting}
    facts["cannot move now"] = len(codes) - waiting
    return f"{affected}: {', '.join(f'{num} {what}' for what, num in facts.items() if num)}"


def capacity(status: ClusterStatus, leaving: Iterable[str]) -> str:
    """What serves the models of these instances after they have left."""
    gone = set(leaving)
    models = {each.model for each in status.instances if each.id in gone}
    of_models = (each for each in status.instances if not models or each.model in models)
    active = (each for each in of_models if each.state is InstanceState.ACTIVE)
    serving = [each for each in active if not no_requests(each)]
    left = [item for item in serving if item.id not in gone]
    num_free = sum(item.num_free_blocks or 0 for item in left)
    num_total = sum(item.num_total_blocks or 0 for item in left)
    return (
        f"left: {len(left)} of {len(serving)} serving instances,"
        f" {num_free} of their {num_total} blocks free"
    )


def drain_progress(report: DrainReport) -> str:
    """One line that says how far the drain is, and when it may be over."""
    name = report.instance_id
    if report.state in ("removed", "restarting"):
        return f"{name}: {report.state}"
    if report.state == "restarted":
        return f"{name}: restarted ({report.num_moved} moved)"
    if report.state == "failed":
        return f"{name}: its new process could not start"
    if report.safe_to_delete:
        stays = f", ends within {duration(report.warm_s)}" if report.warm_s else ""
        return f"{name}: safe to delete ({report.num_moved} moved){stays}"
    if report.state == "active":
        return f"{name}: not draining"
    facts = [f"{report.num_requests_left} left", f"{report.num_moving} moving"]
    facts.append(f"{report.num_moved} moved")
    if report.estimate_s:
        facts.append(f"~{duration(report.estimate_s)}")
    if report.silent:
        facts.append(f"no answer from {' '.join(report.silent)}")
    line = f"{name}: {', '.join(facts)}"
    return printable(f"{line}; {cannot_move(report)}" if report.cannot_move else line)


def cannot_move(report: DrainReport) -> str:
    """`2 requests cannot move (no instance has 118 free blocks)`; if all can move, how many are
    left."""
    if not report.cannot_move:
        return f"{_requests(report.num_requests_left)} left"
    whys = dict.fromkeys(item.why or item.code for item in report.cannot_move)
    return f"{_requests(len(report.cannot_move))} cannot move ({'; '.join(whys)})"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
