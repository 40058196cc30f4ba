"""What all calls share that change what operators want of the cluster."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from controller.adapters.http.answers import Endpoint
from controller.adapters.http.errors import ApiError
from controller.adapters.http.operator_log import OperatorLog
from controller.runtime.controller.controller import Controller


@dataclass(frozen=True, slots=True)
class Steering:
    """`changing` is held from the check of a revision until the spec is changed. `once` makes an
    endpoint idempotent (`idempotency`); a scale is so by itself: it names the number of instances.
    """

    controller: Controller
    log: OperatorLog
    changing: asyncio.Lock
    once: Callable[[Endpoint], Endpoint]

    def check_running(self) -> None:
        if self.controller.stopping:
            raise ApiError(409, "stopping", "the cluster is being stopped", "llumctl up")

    def check_revision(self, if_revision: int | None) -> None:
        """Raises RevisionConflictError."""
        self.check_running()
        self.controller.keeper.check_revision(if_revision)
