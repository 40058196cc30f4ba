"""Orders about an instance: drain, undrain, cordon, uncordon, restart, evacuate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from controller.api.errors import LastInstanceError
from controller.api.operations.order import Danger, OnInstance, Order, Outcome, Plan, Wanted
from controller.api.operations.progress import awaited
from controller.api.text import drain_words as words
from controller.api.text.quantities import duration
from controller.api.wire.operations import (
    CordonReport,
    CordonRequest,
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    OnDeadline,
    PlannedDeparture,
    RestartRequest,
    UncordonRequest,
    UndrainRequest,
)
from controller.api.wire.status import ClusterStatus

if TYPE_CHECKING:
    from controller.api.client import ControlClient


Given = TypeVar("Given", bound=Order[Any, Any])


class _Emptying(OnInstance[Wanted, DrainReport]):
    """Moves the instance's requests to others."""

    report = DrainReport
    keyed = True
    undone_by = "undrain"
    under_way = "is being drained"

    def plan(self, client: "ControlClient") -> Plan[Order[Any, Any]]:
        """The last instance is emptied only by its name."""
        name, asked = "", self.dry()
        try:
            report = client.send(asked)
        except LastInstanceError:
            name = self.instance_id
            report = client.send(asked.but(force=True))
        if not report.changes:
            return Plan((f"{self.instance_id} {self.under_way} already",), None)
        order = (self.but(force=True) if name else self).at(report.revision)
        return Plan(self.lines(report, client.status()), order, name)

    def lines(self, report: DrainReport, status: ClusterStatus) -> tuple[str, ...]:
        """What it would take, and what would be left."""
        return emptying(report, status)

    def outcome(self, report: DrainReport) -> Outcome:
        """It is taken back by undrain while the instance's process is there."""
        text = words.progress(report).removeprefix(f"{self.instance_id}: ")
        return Outcome(text, can_undo=report.changes, awaits=awaited(report))


class Drain(_Emptying[DrainRequest]):
    kind, word = "drain", "Drain"
    key = "d"
    does = "Empty an instance"
    meaning = "empty the instance of this row"
    typed, usage = "drain ID...", "llumctl drain ID"
    path = "/v1/instances/{instance_id}/drain"
    body = DrainRequest

    @classmethod
    def of_each(cls, targets: Sequence[str], wanted: DrainRequest | None = None) -> list[Self]:
        """None of them is where the requests of another would go."""
        return _together(super().of_each(targets, wanted))

    @property
    def deed(self) -> str:
        return f"{self.title}{until(self.wanted.deadline_s, self.wanted.on_deadline)}"

    def lines(self, report: DrainReport, status: ClusterStatus) -> tuple[str, ...]:
        return emptying(report, status, self.wanted.with_ids)


class Undrain(OnInstance[UndrainRequest, DrainReport]):
    kind, word = "undrain", "Undrain"
    key = "u"
    does = "Take a drain back"
    meaning = "take its drain back, or an operator's event"
    typed, usage = "undrain ID...", "llumctl undrain ID"
    danger = Danger.NONE
    path = "/v1/instances/{instance_id}/undrain"
    body = UndrainRequest
    report = DrainReport
    undone_by = "drain"

    def plan(self, client: "ControlClient") -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        return Plan((f"{self.instance_id} would get requests again",), self.at(report.revision))

    def outcome(self, _: DrainReport) -> Outcome:
        return Outcome("it gets requests again", can_undo=True)


class _Cordoning(OnInstance[Wanted, CordonReport]):
    report = CordonReport

    def outcome(self, report: CordonReport) -> Outcome:
        text = cordoned(report).removeprefix(f"{self.instance_id}: ")
        return Outcome(text, can_undo=report.changes)


class Cordon(_Cordoning[CordonRequest]):
    kind, word = "cordon", "Cordon"
    key = "c"
    does = "Give an instance no new requests"
    meaning = "no new requests for the instance of this row; it keeps what it has"
    typed, usage = "cordon ID...", "llumctl cordon ID"
    path = "/v1/instances/{instance_id}/cordon"
    body = CordonRequest
    undone_by = "uncordon"

    @classmethod
    def of_each(cls, targets: Sequence[str], wanted: CordonRequest | None = None) -> list[Self]:
        """None of them is one that would serve beside another."""
        return _together(super().of_each(targets, wanted))

    def plan(self, client: "ControlClient") -> Plan[Order[Any, Any]]:
        """The last instance is cordoned only by its name."""
        name, asked = "", self.dry()
        try:
            report = client.send(asked)
        except LastInstanceError:
            name = self.instance_id
            report = client.send(asked.but(force=True))
        if not report.changes:
            return Plan((f"{self.instance_id} is cordoned already",), None)
        order = (self.but(force=True) if name else self).at(report.revision)
        closed = (self.instance_id, *self.wanted.with_ids)
        lines = (cordoned(report), words.capacity(client.status(), closed))
        return Plan(lines, order, name)


class Uncordon(_Cordoning[UncordonRequest]):
    kind, word = "uncordon", "Uncordon"
    key = "C"
    does = "Take a cordon back"
    meaning = "new requests for the instance of this row again"
    typed, usage = "uncordon ID...", "llumctl uncordon ID"
    danger = Danger.NONE
    path = "/v1/instances/{instance_id}/uncordon"
    body = UncordonRequest
    undone_by = "cordon"

    def plan(self, client: "ControlClient") -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        if not report.changes:
            return Plan((f"{self.instance_id} is not cordoned",), None)
        return Plan((cordoned(report),), self.at(report.revision))


class Restart(_Emptying[RestartRequest]):
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


class Evacuate(_Emptying[EvacuateRequest]):
    kind, word = "evacuate", "Evacuate"
    does = "Empty an instance within a time, and remove it"
    meaning = "move an instance's requests to others within 30 s, and remove it then"
    typed, usage = "evacuate ID", "llumctl evacuate ID"
    several = False
    path = "/v1/instances/{instance_id}/evacuate"
    body = EvacuateRequest
    wants_body = True

    @property
    def deed(self) -> str:
        return f"{self.title} within {duration(self.wanted.within_s)}"

    @property
    def question(self) -> str:
        return f"Evacuate {self.instance_id} within {self.wanted.within_s:g} s?"

    def lines(self, report: DrainReport, status: ClusterStatus) -> tuple[str, ...]:
        summary, *rest = emptying(report, status)
        within = duration(self.wanted.within_s)
        goes = f"after {within} at the latest it is removed, with what is left"
        return (summary, goes, *rest)


ORDERS: tuple[type[Order[Any, Any]], ...] = (
    *(Drain, Undrain, Cordon, Uncordon, Restart, Evacuate),
)


def _together(orders: list[Given]) -> list[Given]:
    """Each names the others of the same command, so that all of them are done or none."""
    targets = [each.target for each in orders]
    return [
        each.but(with_ids=tuple(other for other in targets if other != each.target))
        for each in orders
    ]


def emptying(
    report: DrainReport, status: ClusterStatus, others: Sequence[str] = ()
) -> tuple[str, ...]:
    """What emptying an instance would take, and what would be left; `others` are emptied too."""
    return (
        words.would_move(report),
        words.capacity(status, (report.instance_id, *others)),
        *(departure(each) for each in report.plan),
    )


def cordoned(report: CordonReport) -> str:
    """`i-7: cordoned, keeps its 12 requests`, or what is against new requests after all."""
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


def departure(item: PlannedDeparture) -> str:
    goes = f"to {item.to_instance_id}" if item.to_instance_id else f"stays: {item.why or item.code}"
    return f"  {item.request_id}  {item.num_blocks} blocks  {goes}"


def until(deadline_s: float | None, then: OnDeadline) -> str:
    """` within 60s, then keep`: how long a drain may take; empty if it has no deadline."""
    return "" if deadline_s is None else f" within {duration(deadline_s)}, then {then}"
