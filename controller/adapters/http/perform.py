"""How the controller carries out an order of operators, whichever it is.

A row of `controller.api.operations` says what an order is; the `Handler` of the same kind is the
controller's half of it; `Orders` does for each of them what all have in common. One lock covers the
checks of an order and its change of the spec, so that of two operators who act on the same revision
the second gets a conflict. What was checked is checked again once the audit log has the order, as
writing it takes time.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from controller.adapters.http.answers import Endpoint, by_method, json_answer
from controller.adapters.http.errors import ApiError
from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.operator_log import Deed, Operation, OperatorLog
from controller.api.operations.order import CLUSTER, Order, Report, Wanted
from controller.api.wire.operations import Undo
from controller.api.wire.settings import SettingValue
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import OperationRefusedError
from controller.runtime.controller.queries import Found

Args = Mapping[str, Any]
EngineCheck = Callable[[Args, Args, Args], None]
"""Gets the engine arguments that an operator gives, all that differ from those of the cluster's
start, and all that will differ. Raises UsageError. It may take a while, on any thread."""
Values = Mapping[str, SettingValue]


def allow_all(given: Args, before: Args, after: Args) -> None:
    """A check that refuses nothing."""


@dataclass(frozen=True, slots=True)
class Operated:
    """What orders are carried out on. `check_engine` says which engine arguments may change."""

    controller: ControllerProcess
    settings: LiveSettings
    check_engine: EngineCheck = allow_all

    def check_running(self) -> None:
        if self.controller.stopping:
            raise ApiError(409, "stopping", "the cluster is being stopped", "llumctl up")

    def check_revision(self, if_revision: int | None) -> None:
        """Raises RevisionConflictError."""
        self.check_running()
        self.controller.keeper.check_revision(if_revision)


class Handler(Generic[Wanted, Report]):
    """The controller's half of an order, made for each call. A dry run is `look`, then `plan`. An
    order is `look`, then, if there are `deeds`, `check` and `carry_out`, and `report` in any case.
    All but `deeds` raise ApiError, RevisionConflictError and LlumctlError; nothing has changed
    then, unless the error says otherwise."""

    row: type[Order[Wanted, Report]]
    lasts: ClassVar[bool] = False
    """Whether it takes so long that its beginning is an event, too."""

    def __init__(self, operated: Operated, order: Order[Wanted, Report]) -> None:
        self.operated = operated
        self.controller = operated.controller
        self.order, self.wanted = order, order.wanted

    async def look(self) -> None:
        """Checks whether the order can be carried out, and keeps what the other steps need."""
        self.check()

    def check(self) -> None:
        """Again: whether it can still be carried out."""

    async def plan(self) -> Report:
        """What the order would do now."""
        raise NotImplementedError

    def deeds(self) -> Sequence[Deed]:
        """For the audit log; none if the order would change nothing."""
        return ((self.order.deed, self.order.target or CLUSTER),)

    async def carry_out(self, operation: Operation) -> None:
        """Nothing is awaited between `check` and the change of the spec."""
        raise NotImplementedError

    async def report(self) -> Report:
        raise NotImplementedError

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        """Why an order of this kind cannot take an operation back now; empty if it can. `known`:
        what frontends know of the requests that such operations were about."""
        raise NotImplementedError

    def undone_by(self, previous: Values | None = None, made: Values | None = None) -> Undo:
        """The order that takes this one back, for the audit log; `made`: the values that it finds
        then, unless somebody changed them meanwhile."""
        return Undo.model_validate(
            {
                "kind": self.row.undone_by,
                "target": self.order.target,
                "previous": previous or {},
                "made": made or {},
            }
        )


class Orders:
    """`once` makes an endpoint idempotent (`idempotency`)."""

    def __init__(
        self, operated: Operated, log: OperatorLog, once: Callable[[Endpoint], Endpoint]
    ) -> None:
        self._operated, self._log, self._once = operated, log, once
        self._changing = asyncio.Lock()
        """Held from the check of the spec's revision until the spec is changed."""

    def routes(
        self, handlers: Sequence[type[Handler[Any, Any]]], looks: Mapping[str, Endpoint]
    ) -> list[Route]:
        """`looks`: by path, what a GET answers."""
        found: dict[str, dict[str, Endpoint]] = {}
        for each in handlers:
            endpoint = self._once(self._endpoint(each))
            found.setdefault(each.row.path, {})[each.row.method] = endpoint
        for path, look in looks.items():
            found.setdefault(path, {})["GET"] = look
        return [by_method(path, **endpoints) for path, endpoints in found.items()]

    def _endpoint(self, handler: type[Handler[Any, Any]]) -> Endpoint:
        row = handler.row

        async def answer(request: Request) -> Response:
            wanted = row.body.model_validate_json(await request.body() or b"{}")
            target = next(iter(request.path_params.values()), "")
            work = handler(self._operated, row.of(target, wanted))
            return json_answer(await self._perform(work, request.scope))

        return answer

    async def _perform(self, work: Handler[Wanted, Report], scope: Scope) -> Report:
        wanted: Any = work.wanted
        if wanted.dry_run:
            await work.look()
            return await work.plan()
        async with self._changing if work.row.changes_spec else nullcontext():
            await work.look()
            if deeds := work.deeds():
                async with self._log.operation(
                    scope, *deeds, reason=wanted.reason, lasts=work.lasts
                ) as operation:
                    work.check()  # again: writing the audit log took time
                    await work.carry_out(operation)
        return await work.report()


@contextmanager
def as_api_errors() -> Iterator[None]:
    try:
        yield
    except OperationRefusedError as error:
        # More than max_instances is wrong in any state of the cluster.
        status = 400 if error.code == "max_instances" else 409
        raise ApiError(status, error.code, error.message, error.hint) from error
