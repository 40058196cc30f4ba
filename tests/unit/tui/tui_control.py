"""A control client that answers from a table and remembers what it was asked."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from controller.api.errors import LastInstanceError, NoSuchCallError, RefusedError
from controller.api.wire.models import ClusterStatus, RequestState
from controller.api.wire.moves import MigrateRequest, MigrationReport, MovePlanned
from controller.api.wire.operations import (
    AbortReport,
    AbortRequest,
    DrainReport,
    DrainRequest,
    PlannedDeparture,
    PriorityReport,
    PriorityRequest,
    RestartRequest,
    ScaleReport,
    ScaleRequest,
    UndrainRequest,
)
from controller.api.wire.settings import Setting, SettingList
from tests.unit.tui import tui_synthetic as synthetic

Report = TypeVar("Report")
Asked = tuple[str, str, Any]
"""(method, id, body)."""


@dataclass
class FakeControl:
    """`calls` are those that change something, `plans` dry runs. Errors in `failing` are raised by
    the method of that name, after the call was noted."""

    revision: int = 7
    last: tuple[str, ...] = ()
    """Instances that are the last to serve."""
    full: tuple[str, ...] = ()
    """Instances to which nothing can move."""
    departures: int = 2
    over: tuple[str, ...] = ()
    """Requests that have ended."""
    calls: list[Asked] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    plans: list[Asked] = field(default_factory=list)
    failing: dict[str, Exception] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    """By key: what `answer` tells."""
    uptime_s: float = 7200.0

    def _note(self, name: str, id_: str, wanted: Any, key: str = "") -> None:
        if wanted.dry_run:
            assert not key
            self.plans.append((name, id_, wanted))
        else:
            assert key
            self.calls.append((name, id_, wanted))
            self.keys.append(key)
        if name in self.failing and (not wanted.dry_run or f"{name}_plan" in self.failing):
            raise self.failing[name]

    def _done(self, key: str, report: Report) -> Report:
        self.answers[key] = report
        return report

    def status(self) -> ClusterStatus:
        found = synthetic.cluster((synthetic.instance("i-90"), synthetic.instance("i-91")))
        return found.model_copy(update={"revision": self.revision, "uptime_s": self.uptime_s})

    def settings(self) -> SettingList:
        return SettingList(settings=(Setting(key="migration.max_moves", value=4),))

    def answer(self, _: type[Any], key: str) -> Any:
        if key not in self.answers:
            raise NoSuchCallError("no such call")
        return self.answers[key]

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
                num_requests_left=self.departures,
                revision=self.revision,
                changes=True,
            ),
        )

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

    def undrain(self, instance_id: str, wanted: UndrainRequest, *, key: str = "") -> DrainReport:
        self._note("undrain", instance_id, wanted, key)
        self.revision += not wanted.dry_run
        report = DrainReport(
            instance_id=instance_id, state="active", revision=self.revision, changes=True
        )
        return self._done(key, report)
