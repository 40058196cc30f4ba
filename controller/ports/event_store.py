"""Where the last events outlive the controller."""

from collections.abc import Sequence
from typing import Protocol

from controller.core.record.event_log import LoggedEvent


class EventStore(Protocol):
    def load(self, max_events: int) -> Sequence[tuple[str, LoggedEvent]]:
        """The last ones of this run of the cluster that can be read, with their positions."""

    def keep(self, position: str, event: LoggedEvent) -> None:
        """Returns at once and never fails: it is safe soon, or lost."""
