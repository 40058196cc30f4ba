"""A cluster behind the control API that carries out all orders, and a test that gives them.

r-1 runs on i-0 with 153 tokens, and is level `normal` at the frontend f-0; i-1 and i-2 are idle
with 100 blocks each. Orders are given by their row of the table, to i-0 or r-1 unless another
target is named.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import httpx
import pytest

from controller.api.operations.order import Kind, Order
from controller.api.operations.table import OperationEntry, OperationList
from controller.api.wire import AnswerModel
from controller.api.wire.requests import Event, EventPage, RequestDetail
from controller.api.wire.status import ClusterStatus
from controller.core.fleet.adapters import AdapterFacts
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.runtime.frontend.router import Router, RouterEvents
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import Message
from controller.runtime.messages.requests import AbortAsked, RankChangeAsked
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control.control_support import TOKEN, VIEW_TOKEN, Listener, listening
from tests.unit.control.move_support import Source, serve_running_request

Model = TypeVar("Model", bound=AnswerModel)
AnyOrder = type[Order[Any, Any]]
TARGETS = {Kind.INSTANCE: "i-0", Kind.REQUEST: "r-1", Kind.CLUSTER: ""}
VIEWER = {"Authorization": f"Bearer {VIEW_TOKEN}"}


class Bed:
    def __init__(self, listener: Listener, client: httpx.AsyncClient, num_choices: int = 1) -> None:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        self.listener, self.client = listener, client
        self.cluster, self.mailbox = listener.cluster, listener.cluster.mailbox
        self.controller = listener.cluster.controller
        self.book = serve_running_request(listener, num_choices=num_choices)
        self.source = Source(listener, self.book)
        self.told: list[tuple[str, str]] = []
        """The requests whose clients heard that they were aborted, and the words."""
        self.mailbox.answers["mem://f-0"] = self._frontend()
        self.cluster.report("i-0", num_running=1, num_free_blocks=90)

    def _frontend(self) -> Callable[[Message], None]:
        """A real router, for what it does with orders about its requests."""
        nobody = cast("Any", lambda *_: None)
        events = RouterEvents(
            nobody, nobody, lambda *what: self.told.append(what), nobody, nobody, nobody, nobody
        )
        link = SimpleNamespace(
            member_id="f-0", controller_address=self.mailbox.address, welcomed=nobody, incarnation=1
        )
        mailbox = SimpleNamespace(send=self._say_soon)
        router = Router(cast("Any", link), cast("Any", mailbox), self.book, events)

        def hear(message: Message) -> None:
            if isinstance(message, AbortAsked | RankChangeAsked):
                router.inbox.take(encode(message), [])

        return hear

    def _say_soon(self, _address: str, frame: bytes, *_: Any, **__: Any) -> None:
        asyncio.get_running_loop().call_soon(self.mailbox.say, frame, [])

    # -- orders --------------------------------------------------------------------------

    async def gives(
        self,
        row: AnyOrder,
        target: str | None = None,
        /,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        **body: Any,
    ) -> httpx.Response:
        """`content`: sent in place of the body."""
        name = TARGETS[row.about] if target is None else target
        path = row.path.format(instance_id=name, request_id=name)
        sent = json.dumps(body).encode() if content is None else content
        return await self.client.request(row.method, path, headers=headers, content=sent)

    async def does(
        self, row: type[Order[Any, Model]], target: str | None = None, /, **body: Any
    ) -> Model:
        answer = await self.gives(row, target, **body)
        assert answer.status_code == 200, answer.text
        return row.report.model_validate_json(answer.content)

    async def refusal(
        self, row: AnyOrder, target: str | None = None, /, **body: Any
    ) -> tuple[int, str, str]:
        """The status, the code and the message."""
        answer = await self.gives(row, target, **body)
        error = answer.json()
        return answer.status_code, error.get("code", ""), error.get("message", "")

    async def refused(
        self, row: AnyOrder, target: str | None = None, /, **body: Any
    ) -> tuple[int, str]:
        return (await self.refusal(row, target, **body))[:2]

    async def answered(self, key: str) -> httpx.Response:
        """What the call with that key got."""
        return await self.client.get(f"/v1/answers/{key}")

    # -- what is there -------------------------------------------------------------------

    async def get(self, path: str, model: type[Model]) -> Model:
        answer = await self.client.get(f"/v1/{path}")
        assert answer.status_code == 200, answer.text
        return model.model_validate_json(answer.content)

    async def status(self) -> ClusterStatus:
        return await self.get("status", ClusterStatus)

    async def done(self, limit: int = 20) -> tuple[OperationEntry, ...]:
        return (await self.get(f"operations?limit={limit}", OperationList)).operations

    async def request(self, reference: str = "r-1") -> RequestDetail:
        return await self.get(f"requests/{reference}", RequestDetail)

    async def events(self, *kinds: str) -> list[Event]:
        page = await self.get("events", EventPage)
        return [event for event in page.events if not kinds or event.kind in kinds]

    @property
    def revision(self) -> int:
        return self.controller.keeper.spec.revision

    def audited(self) -> list[dict[str, Any]]:
        return self.listener.audit.tail()

    def outcomes(self) -> list[tuple[str, str]]:
        return [(entry["action"], entry["outcome"]) for entry in self.audited()]

    # -- what happens ---------------------------------------------------------------------

    def evict(self) -> None:
        self.book.happened(LoggedEvent(EventKind.EVICTED, 6.0, "s", "", "i-0", 1, request_id="r-1"))

    def while_recording(self, happen: Callable[[], Awaitable[None] | None]) -> None:
        """Lets this happen in the controller while the next order is written to the audit log."""
        write, loop = self.listener.audit.write_all, asyncio.get_running_loop()

        async def come() -> None:
            if (coming := happen()) is not None:
                await coming

        def slow(*deeds: Any, outcome: str, **what: Any) -> None:
            write(*deeds, outcome=outcome, **what)
            if outcome == "begun":
                self.listener.audit.write_all = write  # type: ignore[method-assign]
                asyncio.run_coroutine_threadsafe(come(), loop).result(10)

        self.listener.audit.write_all = slow  # type: ignore[method-assign]


def facts_of_name(name: str, _path: str) -> AdapterFacts:
    """An adapter's files say the same as long as its name is the same."""
    return AdapterFacts(sha256(name.encode()).hexdigest(), 8)


@asynccontextmanager
async def bed_of(num_instances: int = 3, num_choices: int = 1, **more: Any) -> AsyncIterator[Bed]:
    """Nobody waits long for members that do not answer."""
    with pytest.MonkeyPatch.context() as patch:
        for name, patience_s in (
            ("runtime.controller.queries.PATIENCE_S", 0.2),
            ("runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05),
            ("core.emptying.by_hand.TIMED_PATIENCE_S", 0.2),
            ("core.emptying.by_hand.MAX_TIMED_PATIENCE_S", 0.2),
        ):
            patch.setattr(f"controller.{name}", patience_s)
        more = {"check_adapter": facts_of_name} | more
        async with listening(num_instances, **more) as (listener, client):
            remember(listener.url, token=TOKEN)
            yield Bed(listener, client, num_choices)


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))
