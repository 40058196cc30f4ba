"""The part of the controller that draining and scaling use."""

from collections.abc import Sequence
from typing import Protocol

from controller.core.emptying.openness import Openness
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import Event
from controller.runtime.controller.directories import Directories
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.member_mail import MemberMail
from controller.runtime.controller.operations.operator_moves import OperatorMoves
from controller.runtime.controller.operations.spec_keeper import SpecKeeper
from controller.runtime.controller.queries import MemberQueries
from controller.runtime.controller.rescheduler import Rescheduler
from controller.runtime.controller.roster import Roster
from controller.runtime.live_config import LiveConfig
from controller.runtime.messages.members import StatusPushed


class OperatedCluster(Protocol):
    live: LiveConfig
    keeper: SpecKeeper
    scheduler: GlobalScheduler
    openness: Openness
    roster: Roster
    mail: MemberMail
    statuses: dict[str, StatusPushed]
    journal: Journal
    operator_moves: OperatorMoves
    queries: MemberQueries
    rescheduler: Rescheduler
    directories: Directories

    def now_s(self) -> float: ...

    def handle(self, event: Event) -> None: ...

    def launch(self, instance_ids: Sequence[str]) -> None: ...

    def restart(self, instance_id: str) -> None: ...

    def terminate(self, instance_id: str) -> None: ...
