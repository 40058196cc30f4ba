"""A router between a controller and two instances that the test plays, on virtual time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.core.load.snapshot import InstanceRef
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig
from controller.runtime.controller_link import ControllerLink
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.frontend.router import Router, RouterEvents
from controller.runtime.messages.members import Directory, FrontendLimits
from controller.runtime.messages.requests import (
    AddRequest,
    DispatchAsked,
    Dispatched,
    OutputItem,
    OutputsEmitted,
)
from tests.unit.runtime.fake_engine import FakeOutput
from tests.unit.runtime.fakes import FakeNetwork, FakePeer, directory, idle_snapshot, settle

HERE = "mem://f-0"
I0 = InstanceRef("i-0", 1, "mem://i-0")
I1 = InstanceRef("i-1", 1, "mem://i-1")
BOTH = directory(idle_snapshot("i-0"), idle_snapshot("i-1"))


@dataclass
class Told:
    """What the OpenAI app heard."""

    failed: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    aborted: list[tuple[str, str]] = field(default_factory=list)
    drains: list[float] = field(default_factory=list)
    limits: list[FrontendLimits] = field(default_factory=list)


class Bed:
    """Without replays, unless a test wants them, so that lost requests show as failed."""

    def __init__(self, network: FakeNetwork, max_replays: int = 0) -> None:
        self.network = network
        self.controller = network.peer("mem://controller")
        self.instances = {i: network.peer(f"mem://{i}") for i in ("i-0", "i-1")}
        self.mailbox = network.mailbox(HERE)
        self.told = Told()
        member = ControllerLink("frontend", "f-0", self.mailbox, "mem://controller", "n", lambda: 0)
        events = RouterEvents(
            on_failed=lambda *what: self.told.failed.append(what),
            on_refused=lambda *what: self.told.refused.append(what),
            on_aborted=lambda *what: self.told.aborted.append(what),
            on_directory=lambda instances: None,
            on_drain=lambda drain: self.told.drains.append(drain.grace_s),
            on_limits=self.told.limits.append,
            on_adapters=lambda told: None,
        )
        self.book = RequestBook("f-0", {0: "normal"}, on_event=member.tell)
        self.router = Router(member, self.mailbox, self.book, events)
        self.router.routes.machine.replays.config = ReplayConfig(max_replays)
        self.router.start()

    def say(self, message: Any, of: FakePeer | None = None) -> None:
        (of or self.controller).send(HERE, message)

    def submit(
        self, request_id: str = "r", payload: Sequence[bytes] = (b"x",)
    ) -> asyncio.Task[None]:
        request = DispatchRequested(request_id, "f-0", 10, 0, 5.0)
        return asyncio.create_task(self.router.submit(request, payload, f"client-{request_id}"))

    async def know(self, known: Directory = BOTH) -> None:
        self.say(known)
        await settle()

    async def runs_on(self, instance_id: str, request_id: str = "r", seq: int = 1) -> AddRequest:
        """Dispatch there and see it arrive."""
        submitted = self.submit(request_id)
        await self.controller.receive(DispatchAsked, lambda a: a.asked.request_id == request_id)
        self.say(Dispatched(Dispatch(request_id, "f-0", instance_id, 1, seq)))
        await submitted
        return await self.instances[instance_id].receive(AddRequest)

    def accept(
        self,
        first_index: int,
        tokens: list[int],
        *,
        last: bool = False,
        epoch: tuple[int, int] = (0, 0),
        r: str = "r",
        sender: InstanceRef = I0,
    ) -> list[tuple[FakeOutput, int]]:
        finish_reason = "length" if last else None
        item = OutputItem(r, *epoch, first_index, len(tokens), finish_reason)
        output = FakeOutput(r, tokens, last)
        return self.router.accept(OutputsEmitted(sender, (item,)), [output])


def new_tokens(deliveries: list[tuple[FakeOutput, int]]) -> list[int]:
    return [token for item, num_skip in deliveries for token in item.tokens[num_skip:]]
