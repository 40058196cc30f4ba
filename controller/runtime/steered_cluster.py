"""What draining and scaling need of the controller."""

from collections.abc import Sequence
from typing import Protocol

from controller.core.events import Event
from controller.core.migration.limits import MoveLimits
from controller.core.scheduler import GlobalScheduler, SchedulerConfig
from controller.runtime.calls import Calls
from controller.runtime.directories import Directories
from controller.runtime.journal import Journal
from controller.runtime.message import Message
from controller.runtime.messages import StatusPushed
from controller.runtime.mover import Mover
from controller.runtime.rescheduler import Rescheduler
from controller.runtime.roster import Member, Roster
from controller.runtime.spec_keeper import SpecKeeper


class SteeredCluster(Protocol):
    config: SchedulerConfig
    limits: MoveLimits
    keeper: SpecKeeper
    scheduler: GlobalScheduler
    roster: Roster
    statuses: dict[str, StatusPushed]
    journal: Journal
    mover: Mover
    calls: Calls
    rescheduler: Rescheduler
    directories: Directories

    def now_s(self) -> float: ...

    def handle(self, event: Event) -> None:
        """Gives it to the scheduler, and does what that asks for."""

    def send(self, member: Member, message: Message, *, droppable: bool = False) -> None: ...

    def launch(self, instance_ids: Sequence[str]) -> None:
        """They are expected from now on."""

    def terminate(self, instance_id: str) -> None:
        """For good: its process ends, and everything about it is forgotten."""
