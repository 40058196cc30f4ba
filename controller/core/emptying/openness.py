"""What is against each instance now (`core.load.closed`): the look that rounds, moves by hand,
forecasts, statuses and refusals share."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from controller.core.admission.waiting_requests import Key
from controller.core.dispatch.instance_record import InstanceRecord
from controller.core.load.closed import Closed, Reasons, stop_arrivals
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.rescheduling.avoided import Cooling


class Instances(Protocol):
    """What the scheduler knows of them."""

    @property
    def instances(self) -> Mapping[str, InstanceRecord]:
        """By id."""

    @property
    def ordered(self) -> Mapping[str, Reasons]:
        """What the spec has against instances, by id; others are not named."""

    @property
    def reserved(self) -> Mapping[str, Key]:
        """The held requests for which instances are kept, by instance."""


class Openness:
    """`cooling` is told of failed moves by whoever hears of them."""

    def __init__(self, scheduler: Instances, cooling: Cooling) -> None:
        self._scheduler = scheduler
        self._cooling = cooling

    def closed_by(
        self, instance_id: str, now_s: float, source_id: str | None = None
    ) -> tuple[Closed, ...]:
        """All that is against the instance, the first reason first; against moves from `source_id`
        (None: from any)."""
        record = self._scheduler.instances.get(instance_id)
        if record is None:
            return (Closed.NOT_SERVING,)
        reasons = record.closed_by(now_s)
        if instance_id in self._scheduler.reserved:
            reasons = (*reasons, Closed.RESERVED)
        if self._cooling.remaining_s(instance_id, now_s, source_id):
            reasons = (*reasons, Closed.COOLING)
        return reasons

    def sources(self, now_s: float) -> Iterator[InstanceSnapshot]:
        """The last statuses of the instances where moves may begin. One that hangs would neither
        send nor receive."""
        for record in self._scheduler.instances.values():
            if record.snapshot is not None and record.may_send(now_s):
                yield record.snapshot

    def destinations(self, now_s: float, source_id: str) -> list[InstanceSnapshot]:
        """The last statuses of the instances to which moves from there may go."""
        return [
            record.snapshot
            for instance_id, record in self._scheduler.instances.items()
            if record.snapshot is not None
            and not stop_arrivals(self.closed_by(instance_id, now_s, source_id))
        ]

    def closed_to_moves(self, now_s: float) -> set[str]:
        """The instances to which no move goes, wherever from, though they report."""
        scheduler = self._scheduler
        ordered = (i for i, reasons in scheduler.ordered.items() if stop_arrivals(reasons))
        reserved = scheduler.reserved if Closed.RESERVED.stops_arrivals else ()
        cooling = self._cooling.destinations(now_s) if Closed.COOLING.stops_arrivals else ()
        return {*reserved, *ordered, *cooling}
