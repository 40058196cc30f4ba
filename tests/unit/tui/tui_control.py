"""A control client that answers from a table and remembers its calls."""

from dataclasses import dataclass, field
from typing import Any

from controller.api.errors import (
    LastInstanceError,
    NoSuchCallError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from controller.api.operations.on_cluster import (
    InstanceRole,
    Setting,
    SettingChange,
    SettingChanges,
    SettingList,
)
from controller.api.operations.on_instances import DrainReport, PlannedDeparture
from controller.api.operations.on_requests import MovePlanned
from controller.api.operations.order import Kind, Order
from controller.api.operations.table import OperationEntry, OperationList, Undo
from controller.api.settings.setting_values import SettingError, changed, live_settings
from controller.api.settings.settings import Settings
from controller.api.wire import AnswerModel
from controller.api.wire.requests import Event, EventPage, RequestState
from controller.api.wire.status import ClusterStatus, PlannedRestart
from tools import synthetic_cluster as synthetic

PREVIOUS: dict[str, dict[str, Any]] = {
    "scale": {"instances": 12},
    "priority": {"level": "normal"},
    "migrate": {"instance": "i-3"},
}
"""What undo brings back, by the kind of the order."""
DEPARTURES = tuple(
    PlannedDeparture(request_id=f"r{place}", num_tokens=100, num_blocks=7, to_instance_id="i-9")
    for place in range(20)
)
MOVE = MovePlanned(num_tokens=640, num_blocks=40, num_bytes=40 << 20, downtime_s=0.024)
ABORTED = {
    "client_id": "mine",
    "level": "high",
    "state": RequestState.RUNNING,
    "instance_id": "i-3",
    "num_output_tokens": 40,
}


@dataclass
class FakeControl:
    """`calls`: kind, target (or model) and body of each order that changes something, even if it
    fails; `plans`: those of the dry runs."""

    revision: int = 7
    last: tuple[str, ...] = ()
    """Instances that are the last to serve."""
    full: tuple[str, ...] = ()
    """Instances to which nothing can move."""
    departures: int = 2
    drain_id: str = ""
    over: tuple[str, ...] = ()
    """Requests that have ended."""
    whole_ids: dict[str, str] = field(default_factory=dict)
    """The ids of requests, by the words that name them."""
    named: list[tuple[str, bool]] = field(default_factory=list)
    """The words for which an id was asked, each with `any_choice`."""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    plans: list[tuple[str, str, Any]] = field(default_factory=list)
    failing: dict[str, Exception] = field(default_factory=dict)
    """The errors of orders, by their kinds, and of dry runs, by `drain_plan`."""
    answers: dict[str, Any] = field(default_factory=dict)
    """The results of `answer`, by key."""
    tuned: Settings = field(default_factory=Settings)
    done: list[OperationEntry] = field(default_factory=list)
    events: tuple[Event, ...] = ()
    """The events that a search finds, whatever words it is for."""
    num_events: int = 10_000
    searches: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    """The models about which something was asked."""
    roles: tuple[InstanceRole, ...] = ()
    """The instances in a dry run of settings."""

    def of_model(self, name: str) -> "FakeControl":
        self.models.append(name)
        return self

    def find_events(self, words: str) -> EventPage:
        self.searches.append(words)
        return EventPage(events=self.events, next_position="", num_searched=self.num_events)

    @property
    def sent(self) -> list[tuple[str, str]]:
        """The kind and the target of each order that changed something."""
        return [(kind, target) for kind, target, _ in self.calls]

    def send(self, order: Order[Any, Any], *, key: str = "") -> Any:
        kind, wanted = order.kind, order.wanted
        assert bool(key) is not wanted.dry_run
        target = order.target or order.model
        (self.plans if wanted.dry_run else self.calls).append((kind, target, wanted))
        if key:
            self.keys.append(key)
        step = f"{kind}_plan" if wanted.dry_run else kind
        if step in self.failing:
            raise self.failing[step]
        is_last = order.target in self.last or (bool(self.last) and order.about is Kind.CLUSTER)
        if is_last and not getattr(wanted, "force", True):
            raise LastInstanceError("no other instance serves")
        self.revision += order.changes_spec and not wanted.dry_run
        report = self._report(order)
        if key:
            self.answers[key] = report
            self._record(order, report)
        return report

    def _record(self, order: Order[Any, Any], report: AnswerModel) -> None:
        previous = PREVIOUS.get(order.kind, {})
        if isinstance(report, SettingChanges):
            previous = {each.key: each.previous for each in report.changes}
        undo = None
        if order.undone_by:
            undo = Undo(kind=order.undone_by, target=order.target, previous=previous, made={})
        self.note(f"{order.kind} {order.target}".strip(), undo, order.wanted.reason)

    def note(self, action: str, undo: Undo | None, reason: str = "") -> None:
        """Adds an operation to the audit log, in which the newest is first."""
        entry = OperationEntry(
            id=f"op-{len(self.done)}",
            time_s=synthetic.START_S + len(self.done),
            actor="ana@desk",
            actions=(action,),
            reason=reason,
            outcome="done",
            undo=undo,
            why_not="" if undo is not None else "no order takes it back",
        )
        self.done.insert(0, entry)

    def _report(self, order: Order[Any, Any]) -> AnswerModel:
        fields: dict[str, Any] = {
            "instance_id": order.target,
            "request_id": order.target,
            "dry_run": order.wanted.dry_run,
            "revision": self.revision,
            "changes": True,
            "num_requests": self.departures,
        }
        report: AnswerModel = order.report(**fields | self._told(order))
        return report

    def _told(self, order: Order[Any, Any]) -> dict[str, Any]:
        """What the report says of an order of this kind."""
        kind, wanted, plans = order.kind, order.wanted, order.wanted.dry_run
        match kind:
            case "drain" | "restart" | "evacuate":
                return {
                    "drain_id": "" if plans else self.drain_id,
                    "state": "active" if plans else "draining",
                    "num_requests_left": self.departures,
                    "plan": DEPARTURES[: self.departures] if plans else (),
                    "restarts_instance": kind == "restart",
                    "removes_instance": kind == "evacuate",
                    "evacuates_instance": kind == "evacuate",
                }
            case "rolling" | "stop_rolling":
                states = {"rolling": ("going", "none"), "stop_rolling": ("stopped", "going")}
                ids = ("i-0", "i-1") if kind == "rolling" else ("i-1",)
                plan = [PlannedRestart(instance_id=i, num_requests=2, num_blocks=7) for i in ids]
                state = states[kind][plans]
                id_ = "" if state == "none" else "op-roll"
                return {"rolling_id": id_, "state": state, "left": ids, "plan": plan}
            case "set" | "autoscale":
                return self._settings(wanted)
            case "scale":
                target = wanted.target if wanted.target is not None else 12 + wanted.change
                drained = [f"i-{place}" for place in range(target, 12)]
                return {
                    "previous": 12,
                    "target": target,
                    "added": tuple(f"i-{place}" for place in range(12, target)),
                    "draining": [DrainReport(instance_id=i, state="active") for i in drained],
                    "holds_autoscale": self.tuned.autoscale.mode != "off",
                }
            case "abort":
                if order.target in self.over:
                    raise RefusedError(f"request {order.target} is over")
                return {"request_ids": (order.target, f"{order.target}-b"), **ABORTED}
            case "migrate":
                moved = {"to_instance_id": wanted.to, "num_blocks": 40, "downtime_s": 0.031}
                found: dict[str, Any] = {"outcome": "migrated"}
                if plans and wanted.to in self.full:
                    found = {"outcome": "refused", "why": "it has not enough free blocks"}
                elif plans:
                    found = {"outcome": "would_move", "plan": MOVE}
                return {"client_id": "c", "from_instance_id": "i-3", **moved, **found}
            case "priority":
                return {"previous": "normal", "level": wanted.level}
            case "undrain":
                return {"state": "active"}
        return {"cordoned": kind == "cordon"}

    def _settings(self, wanted: Any) -> dict[str, Any]:
        before = live_settings(self.tuned)
        try:
            tuned = changed(self.tuned, wanted.changes)
        except SettingError as error:
            raise UsageError(str(error), error.hint) from error
        after = live_settings(tuned)
        changes = tuple(
            SettingChange(key=each, previous=before[each].value, value=after[each].value)
            for each in wanted.changes
            if before[each].value != after[each].value
        )
        if not wanted.dry_run:
            self.tuned = tuned
        return {"changes": changes, "roles": self.roles if wanted.dry_run else ()}

    def operations(self, limit: int = 20) -> OperationList:
        return OperationList(operations=tuple(self.done[:limit]), revision=self.revision)

    def status(self) -> ClusterStatus:
        found = synthetic.cluster((synthetic.instance("i-90"), synthetic.instance("i-91")))
        return found.model_copy(update={"revision": self.revision})

    def answer(self, _: type[Any], key: str) -> Any:
        if key not in self.answers:
            raise NoSuchCallError("no such call")
        return self.answers[key]

    def whole_id(self, reference: str, *, any_choice: bool = False) -> str:
        if reference not in self.whole_ids:
            raise NotFoundError(f"there is no request {reference!r}")
        self.named.append((reference, any_choice))
        return self.whole_ids[reference]

    def settings(self) -> SettingList:
        known = live_settings(self.tuned).values()
        listed = [Setting.model_validate(each, from_attributes=True) for each in known]
        origins = ("default" if each.value == each.default else "set" for each in listed)
        found = tuple(
            each.model_copy(update={"origin": origin})
            for each, origin in zip(listed, origins, strict=True)
        )
        return SettingList(settings=found, revision=self.revision)
