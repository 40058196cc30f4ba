"""Where the last events outlive the controller."""

from collections.abc import Sequence
from typing import Protocol

from controller.core.record.event_log import LoggedEvent


class EventStore(Protocol):
    def load(self, max_events: int) -> Sequence[tuple[str, LoggedEvent]]:
        """The last readable events of this run of the cluster, with their positions."""

    def keep(self, position: str, event: LoggedEvent) -> None:
        """Returns at once and never fails: the event is safe soon, or lost."""
