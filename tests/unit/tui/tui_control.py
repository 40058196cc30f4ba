"""A control client that answers from a table and remembers what it was asked."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from controller.api.errors import LastInstanceError, NoSuchCallError
from controller.api.wire.models import ClusterStatus
from controller.api.wire.operations import (
    DrainReport,
    DrainRequest,
    PlannedDeparture,
    UndrainRequest,
)
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
    departures: int = 2
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

    def undrain(self, instance_id: str, wanted: UndrainRequest, *, key: str = "") -> DrainReport:
        self._note("undrain", instance_id, wanted, key)
        self.revision += 1
        report = DrainReport(
            instance_id=instance_id, state="active", revision=self.revision, changes=True
        )
        return self._done(key, report)
