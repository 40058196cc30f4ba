"""A control client that answers from a table and remembers its calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from controller.api.errors import (
    LastInstanceError,
    NoSuchCallError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from controller.api.operations.on_cluster import (
    InstanceRole,
    RollingRequest,
    RollingStopRequest,
    ScaleReport,
    ScaleRequest,
    Setting,
    SettingChange,
    SettingChanges,
    SettingList,
    SettingsPatch,
)
from controller.api.operations.on_instances import (
    CordonReport,
    CordonRequest,
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    PlannedDeparture,
    RestartRequest,
    UncordonRequest,
    UndrainRequest,
)
from controller.api.operations.on_requests import (
    AbortReport,
    AbortRequest,
    MigrateRequest,
    MigrationReport,
    MovePlanned,
    PriorityReport,
    PriorityRequest,
)
from controller.api.operations.order import Order
from controller.api.operations.table import OperationEntry, OperationList, Undo
from controller.api.settings.setting_values import SettingError, changed, live_settings
from controller.api.settings.settings import Settings
from controller.api.wire.requests import RequestState
from controller.api.wire.status import ClusterStatus, PlannedRestart, RollingReport
from tools import synthetic_cluster as synthetic

Report = TypeVar("Report")
Asked = tuple[str, str, Any]
"""The method, the id and the body of a call."""


@dataclass
class FakeControl:
    """`calls`: the calls that change something; `plans`: the dry runs. A method raises the error
    that `failing` has under its name, after the call was noted."""

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
    calls: list[Asked] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    plans: list[Asked] = field(default_factory=list)
    failing: dict[str, Exception] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    """The results of `answer`, by key."""
    uptime_s: float = 7200.0
    tuned: Settings = field(default_factory=Settings)
    done: list[OperationEntry] = field(default_factory=list)
    roles: tuple[InstanceRole, ...] = ()
    """The instances in a dry run of settings."""

    def _note(self, name: str, id_: str, wanted: Any, key: str = "") -> None:
        if wanted.dry_run:
            assert not key
            self.plans.append((name, id_, wanted))
        else:
            assert key
            self.calls.append((name, id_, wanted))
            self.keys.append(key)
            if name not in self.failing:
                self._record(name, id_, wanted)
        if name in self.failing and (not wanted.dry_run or f"{name}_plan" in self.failing):
            raise self.failing[name]

    def _record(self, name: str, id_: str, wanted: Any) -> None:
        """Notes an operation as the audit log does, with the old values of the reports below."""
        undos = {
            "drain": Undo(kind="undrain", target=id_, previous={}, made={}),
            "evacuate": Undo(kind="undrain", target=id_, previous={}, made={}),
            "restart": Undo(kind="undrain", target=id_, previous={}, made={}),
            "rolling": Undo(kind="stop_rolling", previous={}, made={}),
            "undrain": Undo(kind="drain", target=id_, previous={}, made={}),
            "cordon": Undo(kind="uncordon", target=id_, previous={}, made={}),
            "uncordon": Undo(kind="cordon", target=id_, previous={}, made={}),
            "scale": Undo(kind="scale", previous={"instances": 12}, made={}),
            "priority": Undo(kind="priority", target=id_, previous={"level": "normal"}, made={}),
            "migrate": Undo(kind="migrate", target=id_, previous={"instance": "i-3"}, made={}),
        }
        if name == "set":
            before = live_settings(self.tuned)
            values = {key: before[key].value for key in wanted.changes}
            undos["set"] = Undo(kind="set", previous=values, made=wanted.changes)
        self.note(f"{name} {id_}".strip(), undos.get(name), wanted.reason)

    def note(self, action: str, undo: Undo | None, reason: str = "", why_not: str = "") -> None:
        """Adds an operation to the audit log, in which the newest is first."""
        entry = OperationEntry(
            id=f"op-{len(self.done)}",
            time_s=synthetic.START_S + len(self.done),
            actor="ana@desk",
            actions=(action,),
            reason=reason,
            outcome="done",
            undo=undo,
            why_not=why_not if undo is not None else "it cannot be undone",
        )
        self.done.insert(0, entry)

    def operations(self, limit: int = 20) -> OperationList:
        return OperationList(operations=tuple(self.done[:limit]), revision=self.revision)

    def _done(self, key: str, report: Report) -> Report:
        self.answers[key] = report
        return report

    def status(self) -> ClusterStatus:
        found = synthetic.cluster((synthetic.instance("i-90"), synthetic.instance("i-91")))
        return found.model_copy(update={"revision": self.revision, "uptime_s": self.uptime_s})

    def answer(self, _: type[Any], key: str) -> Any:
        if key not in self.answers:
            raise NoSuchCallError("no such call")
        return self.answers[key]

    def send(self, order: Order[Any, Any], *, key: str = "") -> Any:
        does: dict[str, Callable[..., Any]] = {
            "drain": self.drain,
            "undrain": self.undrain,
            "cordon": self.cordon,
            "uncordon": self.uncordon,
            "restart": self.restart,
            "evacuate": self.evacuate,
            "rolling": self.begin_rolling,
            "stop_rolling": self.stop_rolling,
            "abort": self.abort,
            "scale": self.scale,
            "priority": self.set_priority,
            "migrate": self.migrate,
            "set": self.change_settings,
            "autoscale": self.change_settings,
        }
        target = (order.target,) if order.target else ()
        return does[order.kind](*target, order.wanted, key=key)

    def drain(self, instance_id: str, wanted: DrainRequest, *, key: str = "") -> DrainReport:
        self._note("drain", instance_id, wanted, key)
        if instance_id in self.last and not wanted.force:
            raise LastInstanceError(f"{instance_id} is the last one")
        if wanted.dry_run:
            plan = tuple(
                PlannedDeparture(
                    request_id=f"r{place}", num_tokens=100, num_blocks=7, to_instance_id="i-9"
                )
                for place in range(self.departures)
            )
            return DrainReport(
                instance_id=instance_id,
                state="active",
                plan=plan,
                dry_run=True,
                revision=self.revision,
                changes=True,
            )
        self.revision += 1
        return self._done(
            key,
            DrainReport(
                instance_id=instance_id,
                state="draining",
                drain_id=self.drain_id,
                num_requests_left=self.departures,
                revision=self.revision,
                changes=True,
            ),
        )

    def cordon(self, instance_id: str, wanted: CordonRequest, *, key: str = "") -> CordonReport:
        self._note("cordon", instance_id, wanted, key)
        if instance_id in self.last and not wanted.force:
            raise LastInstanceError(f"{instance_id} is the last one")
        return self._cordoned(instance_id, wanted, key, cordoned=True)

    def uncordon(self, instance_id: str, wanted: UncordonRequest, *, key: str = "") -> CordonReport:
        self._note("uncordon", instance_id, wanted, key)
        return self._cordoned(instance_id, wanted, key, cordoned=False)

    def _cordoned(
        self,
        instance_id: str,
        wanted: CordonRequest | UncordonRequest,
        key: str,
        *,
        cordoned: bool,
    ) -> CordonReport:
        self.revision += not wanted.dry_run
        report = CordonReport(
            instance_id=instance_id,
            cordoned=cordoned,
            num_requests=self.departures,
            dry_run=wanted.dry_run,
            revision=self.revision,
            changes=True,
        )
        return report if wanted.dry_run else self._done(key, report)

    def restart(self, instance_id: str, wanted: RestartRequest, *, key: str = "") -> DrainReport:
        self._note("restart", instance_id, wanted, key)
        if instance_id in self.last and not wanted.force:
            raise LastInstanceError(f"{instance_id} is the last one")
        self.revision += not wanted.dry_run
        report = DrainReport(
            instance_id=instance_id,
            state="active" if wanted.dry_run else "draining",
            num_requests_left=self.departures,
            dry_run=wanted.dry_run,
            restarts_instance=True,
            revision=self.revision,
            changes=True,
        )
        return self._done(key, report)

    def evacuate(self, instance_id: str, wanted: EvacuateRequest, *, key: str = "") -> DrainReport:
        self._note("evacuate", instance_id, wanted, key)
        if instance_id in self.last and not wanted.force:
            raise LastInstanceError(f"{instance_id} is the last one")
        self.revision += not wanted.dry_run
        report = DrainReport(
            instance_id=instance_id,
            drain_id="" if wanted.dry_run else self.drain_id,
            state="active" if wanted.dry_run else "draining",
            num_requests_left=self.departures,
            dry_run=wanted.dry_run,
            removes_instance=True,
            evacuates_instance=True,
            revision=self.revision,
            changes=True,
        )
        return self._done(key, report)

    def begin_rolling(self, wanted: RollingRequest, *, key: str = "") -> RollingReport:
        self._note("rolling", "", wanted, key)
        if self.last and not wanted.force:
            raise LastInstanceError("no other instance serves")
        self.revision += not wanted.dry_run
        ids = ("i-0", "i-1")
        report = RollingReport(
            rolling_id="" if wanted.dry_run else "op-roll",
            state="none" if wanted.dry_run else "going",
            left=ids,
            plan=tuple(PlannedRestart(instance_id=i, num_requests=2, num_blocks=7) for i in ids),
            dry_run=wanted.dry_run,
            changes=True,
            revision=self.revision,
        )
        return self._done(key, report)

    def stop_rolling(self, wanted: RollingStopRequest, *, key: str = "") -> RollingReport:
        self._note("stop_rolling", "", wanted, key)
        self.revision += not wanted.dry_run
        report = RollingReport(
            rolling_id="op-roll",
            state="going" if wanted.dry_run else "stopped",
            why="stopped by an operator",
            left=("i-1",),
            revision=self.revision,
        )
        return self._done(key, report)

    def whole_id(self, reference: str, *, any_choice: bool = False) -> str:
        if reference not in self.whole_ids:
            raise NotFoundError(f"there is no request {reference!r}")
        self.named.append((reference, any_choice))
        return self.whole_ids[reference]

    def abort(self, reference: str, wanted: AbortRequest, *, key: str = "") -> AbortReport:
        self._note("abort", reference, wanted, key)
        if reference in self.over:
            raise RefusedError(f"request {reference} is over")
        report = AbortReport(
            request_id=reference,
            client_id="mine",
            request_ids=(reference, f"{reference}-b"),
            level="high",
            state=RequestState.RUNNING,
            instance_id="i-3",
            num_output_tokens=40,
            dry_run=wanted.dry_run,
        )
        return self._done(key, report)

    def scale(self, wanted: ScaleRequest, *, key: str = "") -> ScaleReport:
        self._note("scale", "", wanted, key)
        target = wanted.target if wanted.target is not None else 12 + (wanted.change or 0)
        drained = [f"i-{place}" for place in range(target, 12)]
        self.revision += not wanted.dry_run
        report = ScaleReport(
            previous=12,
            target=target,
            revision=self.revision,
            dry_run=wanted.dry_run,
            added=tuple(f"i-{place}" for place in range(12, target)),
            draining=tuple(DrainReport(instance_id=each, state="active") for each in drained),
            holds_autoscale=self.tuned.autoscale.mode != "off",
        )
        return self._done(key, report)

    def set_priority(
        self, reference: str, wanted: PriorityRequest, *, key: str = ""
    ) -> PriorityReport:
        self._note("priority", reference, wanted, key)
        report = PriorityReport(request_id=reference, previous="normal", level=wanted.level)
        return self._done(key, report)

    def migrate(self, reference: str, wanted: MigrateRequest, *, key: str = "") -> MigrationReport:
        self._note("migrate", reference, wanted, key)
        planned = MovePlanned(num_tokens=640, num_blocks=40, num_bytes=40 << 20, downtime_s=0.024)
        refused = wanted.dry_run and wanted.to in self.full
        report = MigrationReport(
            request_id=reference,
            client_id="c",
            from_instance_id="i-3",
            to_instance_id=wanted.to,
            outcome="refused" if refused else "would_move" if wanted.dry_run else "migrated",
            why="it has not enough free blocks" if refused else "",
            plan=planned if wanted.dry_run and not refused else None,
            num_blocks=40,
            downtime_s=0.031,
        )
        return self._done(key, report)

    def settings(self) -> SettingList:
        found = live_settings(self.tuned).values()
        listed = tuple(
            Setting(
                key=each.key,
                value=each.value,
                default=each.default,
                meaning=each.meaning,
                origin="default" if each.value == each.default else "set",
                allowed=each.allowed,
            )
            for each in found
        )
        return SettingList(settings=listed, revision=self.revision)

    def change_settings(self, wanted: SettingsPatch, *, key: str = "") -> SettingChanges:
        self._note("set", "", wanted, key)
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
        if not wanted.dry_run and changes:
            self.tuned = tuned
            self.revision += 1
        report = SettingChanges(
            dry_run=wanted.dry_run,
            changes=changes,
            roles=self.roles if wanted.dry_run else (),
            revision=self.revision,
        )
        return self._done(key, report)

    def undrain(self, instance_id: str, wanted: UndrainRequest, *, key: str = "") -> DrainReport:
        self._note("undrain", instance_id, wanted, key)
        self.revision += not wanted.dry_run
        report = DrainReport(
            instance_id=instance_id, state="active", revision=self.revision, changes=True
        )
        return self._done(key, report)
