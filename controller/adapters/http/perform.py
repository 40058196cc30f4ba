"""How the controller carries out any order of an operator.

A row of `controller.api.operations` describes an order. The `Handler` of the same kind carries it
out, and `Orders` does what all orders share. One lock is held during the checks of an order and its
change of the spec: if two operators act on the same revision, the second one gets a conflict.
`OperatorLog` records each order in the audit log, before and after it, and in the cluster's events.
Writing the audit log takes time, so the checks are repeated after that. `operations_done` reads the
audit log again, and says which operations could be undone now."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from controller.adapters.http.calls import ApiError, Endpoint, by_method, json_answer
from controller.adapters.http.cluster_view import RESTART
from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.requests import find_by_ids
from controller.api.errors import LlumctlError, UsageError
from controller.api.operations.order import CLUSTER, Kind, Order, Report, Wanted
from controller.api.operations.table import ORDERS, OperationEntry, OperationList, Undo
from controller.api.state.audit import AuditLog, one_short_line
from controller.api.wire import SettingValue
from controller.core.fleet.adapters import AdapterFacts
from controller.core.fleet.attached import AttachedServer, ServerAsked
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.operations.operated_cluster import (
    OperationRefusedError,
    RevisionConflictError,
)
from controller.runtime.controller.queries import Found

log = logging.getLogger(__name__)

# A holder of the view token may send any number of calls that are refused. Each entry takes time
# and room on the disk, and pushes an event out of the log.
REFUSALS_EVERY_S = 600.0

Deed = tuple[str, str]
"""An action of the audit log, and its target."""
Args = Mapping[str, Any]
EngineCheck = Callable[[Args, Args, Args], None]
"""Checks engine arguments. It gets the arguments that an operator gives, all arguments that differ
from the cluster's start now, and all that will differ after the restart. Raises UsageError. It may
be called on any thread."""
PythonCheck = Callable[[object], None]
"""Checks the Python interpreter that an operator gives, and its environment. Raises UsageError. It
may take a minute, on any thread."""
AdapterCheck = Callable[[str, str], AdapterFacts]
"""Checks a LoRA adapter, by the name that it is to have and the path of its folder. Raises
UsageError. It reads all of the files, on any thread."""
ServerCheck = Callable[[ServerAsked, int], AttachedServer]
"""Asks a server that is to be attached what it is. The number is how many tokens a request of the
cluster may have. Raises UsageError. It may take seconds, on any thread."""
Values = Mapping[str, SettingValue]


def allow_all(*_: object) -> None:
    """A check that refuses nothing."""


def no_adapters(name: str, _path: str) -> AdapterFacts:
    """A check that refuses every LoRA adapter."""
    raise UsageError(f"{name}: the engines take no LoRA adapters")


def no_servers(asked: ServerAsked, _max_model_len: int) -> AttachedServer:
    """A check that refuses every server."""
    raise UsageError(f"{asked.url}: no server can be attached")


@dataclass(frozen=True, slots=True)
class Operated:
    """The parts of the controller on which orders act. `check_engine` says which engine arguments
    may change, `check_python` in which Python environments instances may run, `check_adapter` which
    LoRA adapters may be loaded, and `check_server` which servers may be attached."""

    controller: ControllerProcess
    settings: LiveSettings
    check_engine: EngineCheck = allow_all
    check_python: PythonCheck = allow_all
    check_adapter: AdapterCheck = no_adapters
    check_server: ServerCheck = no_servers

    def check_running(self) -> None:
        if self.controller.stopping:
            raise ApiError(409, "stopping", "the cluster is being stopped", "llumctl up")

    def check_launcher(self) -> None:
        """Raises ApiError if no process could be started now because the launcher is lost."""
        if (loss := self.controller.launcher_loss) is not None:
            what = f"{loss.what}: no other process could be started"
            raise ApiError(503, "ray_lost", what, f"when clients can wait: {RESTART}")

    def check_revision(self, if_revision: int | None) -> None:
        """Raises RevisionConflictError if the spec has a different revision."""
        self.check_running()
        self.controller.keeper.check_revision(if_revision)


@dataclass(slots=True)
class Operation:
    """An operation under way. `outcome` and `undo` may be set until it has ended."""

    cause_id: str
    actor: str
    outcome: str = "done"
    undo: Undo | None = None


class Handler(Generic[Wanted, Report]):
    """Carries out one kind of order; a handler is made for each call. A dry run is `prepare`,
    `look`, then `plan`. An order is `prepare`, `look`, then, if there are `deeds`, `check` and
    `carry_out`, and in any case `report`. All methods except `deeds` raise ApiError,
    RevisionConflictError and LlumctlError; nothing has changed then, unless the error says
    otherwise."""

    row: type[Order[Wanted, Report]]
    lasts: ClassVar[bool] = False
    """Whether the order takes so long that its beginning is recorded as an event of its own."""

    def __init__(self, operated: Operated, order: Order[Wanted, Report]) -> None:
        self.operated = operated
        self.controller = operated.controller
        self.order, self.wanted = order, order.wanted

    async def prepare(self) -> None:
        """Checks what takes long. The spec may change meanwhile, because other orders do not wait
        for it."""

    async def look(self) -> None:
        """Checks whether the order can be carried out, and keeps what the later steps need."""
        self.check()

    def check(self) -> None:
        """Checks again whether the order can still be carried out."""

    async def plan(self) -> Report:
        """A report on what the order would do now."""
        raise NotImplementedError

    def deeds(self) -> Sequence[Deed]:
        """The actions for the audit log; empty if the order would change nothing."""
        return ((self.order.deed, self.order.target or self.whole),)

    def named_deeds(self) -> Sequence[Deed]:
        """`deeds`; those about a whole model name it, if the cluster serves several."""
        if not (model := self.controller.model) or self.row.about is not Kind.CLUSTER:
            return self.deeds()
        return [(f"{model}: {action}", target) for action, target in self.deeds()]

    @property
    def whole(self) -> str:
        """What the audit log names as the target of an order about the whole cluster, or about one
        of several models."""
        return f"model {self.controller.model}" if self.controller.model else CLUSTER

    async def carry_out(self, operation: Operation) -> None:
        """Carries the order out. It must not await anything before it has changed the spec, so that
        the result of `check` still holds."""
        raise NotImplementedError

    async def report(self) -> Report:
        raise NotImplementedError

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        """Why an operation cannot be taken back now by an order of this kind; empty if it can.
        `known`: what frontends know of the requests of such operations."""
        raise NotImplementedError

    def undone_by(self, previous: Values | None = None, made: Values | None = None) -> Undo:
        """The order that takes this one back, for the audit log. `made`: the values that the
        undoing order will find, unless they are changed meanwhile."""
        return Undo.model_validate(
            {
                "kind": self.row.undone_by,
                "target": self.order.target,
                "model": self.controller.model,
                "previous": previous or {},
                "made": made or {},
            }
        )


class OperatorLog:
    def __init__(self, audit: AuditLog, journal: Journal) -> None:
        self._audit = audit
        self._journal = journal
        self._last_refused = ("", "", "")
        """The action, the actor and the code of the last refused call."""
        self._num_refused = 0
        """How many refused calls are not in the log yet."""
        self._next_refusals: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def operation(
        self, scope: Scope, *deeds: Deed, reason: str = "", lasts: bool = False
    ) -> AsyncIterator[Operation]:
        """Records the `with` block: first that it has begun, and afterwards its outcome, which is a
        failure if the block raises. `lasts`: whether the beginning is also recorded as an event.

        Raises ApiError if the beginning cannot be recorded; the block does not run then."""
        operation = Operation(f"op-{secrets.token_hex(4)}", actor_of(scope))
        await self._write(operation, deeds, "begun", reason)
        if lasts:
            self._tell(operation, deeds, "begun", reason)
        try:
            yield operation
        except BaseException as error:
            operation.outcome = _failure(error)
            raise
        finally:
            self._tell(operation, deeds, operation.outcome, reason)
            await self._write_end(operation, deeds, reason)

    async def note(
        self, scope: Scope, action: str, target: str, outcome: str, reason: str = ""
    ) -> None:
        """Records an operation that is over at once. Raises ApiError if it cannot be recorded."""
        operation = Operation(f"op-{secrets.token_hex(4)}", actor_of(scope))
        deeds = ((action, target),)
        await self._write(operation, deeds, outcome, reason)
        self._tell(operation, deeds, outcome, reason)

    async def refused(self, scope: Scope, code: str) -> None:
        """Records a call that its token does not allow. The first such call is recorded at once.
        Calls in the next ten minutes are recorded in one entry at the end of that time. Does not
        raise, because the call is refused in any case, even if the disk is full."""
        action = one_short_line(f"{scope['method']} {scope['path']}")
        self._last_refused = action, actor_of(scope), code
        self._num_refused += 1
        if self._next_refusals is None:
            self._wait_for_refusals()
            await self._tell_refusals()

    async def close(self) -> None:
        """Records the refused calls that are not in the log yet."""
        if self._next_refusals is not None:
            self._next_refusals.cancel()
        if self._num_refused:
            await self._tell_refusals()

    def _wait_for_refusals(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_refusals = loop.call_later(REFUSALS_EVERY_S, self._sum_refusals_up)

    def _sum_refusals_up(self) -> None:
        self._next_refusals = None
        if self._num_refused:
            self._wait_for_refusals()
            self._telling = asyncio.get_running_loop().create_task(self._tell_refusals())

    async def _tell_refusals(self) -> None:
        num, self._num_refused = self._num_refused, 0
        action, actor, code = self._last_refused
        if num > 1:
            action = f"{num} calls, the latest of them {action}"
        operation = Operation(f"op-{secrets.token_hex(4)}", actor)
        deeds = ((action, ""),)
        self._tell(operation, deeds, f"refused: {code}", "")
        try:
            await self._write(operation, deeds, f"refused: {code}", "")
        except ApiError as error:
            log.error("%s: a refused call is not in the audit log: %s", operation.cause_id, error)

    async def _write(
        self,
        operation: Operation,
        deeds: tuple[Deed, ...],
        outcome: str,
        reason: str,
        undo: Undo | None = None,
    ) -> None:
        known = {} if undo is None else {"undo": undo.model_dump(mode="json")}
        try:
            await asyncio.to_thread(
                self._audit.write_all,
                deeds,
                actor=operation.actor,
                outcome=outcome,
                cause_id=operation.cause_id,
                reason=reason,
                **known,
            )
        except LlumctlError as error:
            raise ApiError(500, "not_audited", f"{error.message}; nothing was done") from error

    async def _write_end(self, operation: Operation, deeds: tuple[Deed, ...], reason: str) -> None:
        """Records the end of an operation. Does not raise: the operation has happened, and its
        caller gets the answer even if the disk is full."""
        try:
            failed = operation.outcome.startswith(("failed", "unknown"))
            undo = None if failed else operation.undo
            await self._write(operation, deeds, operation.outcome, reason, undo)
        except ApiError as error:
            log.error("%s: its outcome is not in the audit log: %s", operation.cause_id, error)

    def _tell(
        self, operation: Operation, deeds: tuple[Deed, ...], outcome: str, reason: str
    ) -> None:
        because = f": {one_short_line(reason)}" if reason else ""
        for action, _ in deeds:
            self._journal.operator(
                operation.cause_id, operation.actor, f"{action} ({outcome}){because}"
            )


def actor_of(scope: Scope) -> str:
    """The caller's name, which nobody checks, and its address."""
    claimed = dict(scope["headers"]).get(b"x-llumctl-actor", b"someone").decode("latin-1")
    client = scope.get("client")
    return one_short_line(f"{claimed} from {client[0] if client else 'here'}")


def _failure(error: BaseException) -> str:
    if isinstance(error, ApiError):
        # An operation that did not end in time may still go on.
        return f"{'unknown' if error.status == 504 else 'failed'}: {error.body.code}"
    if isinstance(error, RevisionConflictError):
        return "failed: revision_conflict"
    if isinstance(error, LlumctlError):
        return f"failed: {error.message}"
    if isinstance(error, asyncio.CancelledError):
        return "unknown: the controller stopped"
    return "failed: internal"


class Orders:
    """Makes the routes of orders. `once` makes an endpoint idempotent."""

    def __init__(
        self,
        operated: Operated,
        log: OperatorLog,
        once: Callable[[Endpoint], Endpoint],
        changing: asyncio.Lock,
    ) -> None:
        """`changing`: held from the check of the cluster's revision until a spec is changed."""
        self._operated, self._log, self._once = operated, log, once
        self._changing = changing

    def routes(
        self, handlers: Sequence[type[Handler[Any, Any]]], looks: Mapping[str, Endpoint]
    ) -> list[Route]:
        """The routes of all orders. `looks`: for each path, the endpoint that answers a GET."""
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
        await work.prepare()
        if wanted.dry_run:
            await work.look()
            return await work.plan()
        async with self._changing if work.row.changes_spec else nullcontext():
            await work.look()
            if deeds := work.named_deeds():
                async with self._log.operation(
                    scope, *deeds, reason=wanted.reason, lasts=work.lasts
                ) as operation:
                    work.check()  # again, because writing the audit log took time
                    await work.carry_out(operation)
        return await work.report()


@contextmanager
def as_api_errors() -> Iterator[None]:
    try:
        yield
    except OperationRefusedError as error:
        # An order for more than max_instances is wrong in any state of the cluster.
        status = 400 if error.code == "max_instances" else 409
        raise ApiError(status, error.code, error.message, error.hint) from error


NOT_UNDOABLE = "no order takes it back"


class OperationsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=20, ge=1, le=200)


async def operations_done(
    operated_of: Callable[[Undo | None], Operated | None],
    handlers: Mapping[str, type[Handler[Any, Any]]],
    audit: AuditLog,
    *,
    since_s: float,
    limit: int,
) -> OperationList:
    """The operations that operators made in this cluster, the newest first. `operated_of`: on what
    an operation was made, by the order that takes it back; None leaves the operation out.
    `handlers`: the handler of each kind of order. `since_s`: when the cluster was started; the
    audit log may have earlier entries."""
    found = [
        (each, operated)
        for each in _entries(audit.tail())
        # A refused call is not an operation, and there may be very many of them.
        if each.time_s >= since_s and not each.outcome.startswith("refused: ")
        if (operated := operated_of(each.undo)) is not None
    ][:limit]
    undos = [each.undo for each, _ in found if each.undo is not None]
    ids = [each.target for each in undos if ORDERS[each.kind].about is Kind.REQUEST]
    first = operated_of(None)
    assert first is not None
    controllers = first.controller.all
    known = found_together([await find_by_ids(each, ids) for each in controllers])
    judged = [
        each.model_copy(update={"why_not": _why_not(each, operated, handlers, known)})
        for each, operated in found
    ]
    return OperationList(operations=tuple(judged), revision=first.controller.keeper.revision)


def found_together(found: Sequence[Found]) -> Found:
    return Found(
        tuple(chain(*(each.requests for each in found))),
        sum(each.num_matching for each in found),
        tuple(sorted({frontend for each in found for frontend in each.silent})),
    )


def _entries(lines: Iterable[Mapping[str, Any]]) -> list[OperationEntry]:
    """One entry for each operation, made of its last lines. An operation with several actions has a
    line for each."""
    found: dict[str, OperationEntry] = {}
    for line in lines:
        try:
            entry = OperationEntry(
                id=line["cause_id"],
                time_s=line["time_s"],
                actor=line["actor"],
                actions=(line["action"],),
                reason=line["reason"],
                outcome=line["outcome"],
                undo=line.get("undo"),
            )
        except (KeyError, ValidationError):
            continue  # cut by a full disk, or written by another version of llumctl
        before = found.pop(entry.id, None)
        if before is not None and before.outcome == entry.outcome:
            entry = entry.model_copy(update={"actions": before.actions + entry.actions})
        found[entry.id] = entry
    return list(reversed(found.values()))


def _why_not(
    entry: OperationEntry,
    operated: Operated,
    handlers: Mapping[str, type[Handler[Any, Any]]],
    known: Found,
) -> str:
    if entry.outcome == "begun":
        return "it is not over"
    if not entry.was_done:
        return "it was not done"
    if entry.undo is None:
        return NOT_UNDOABLE
    return handlers[entry.undo.kind].why_not(operated, entry.id, entry.undo, known)
