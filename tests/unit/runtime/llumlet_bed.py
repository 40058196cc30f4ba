"""A llumlet with a deterministic engine on a real thread, its peers played by the test."""

import asyncio
from collections.abc import Callable

from controller.runtime.controller_link import ControllerLink
from controller.runtime.instance.llumlet import Llumlet
from controller.runtime.messages.members import Hello, StatusPull, StatusPushed, Welcome
from controller.runtime.messages.requests import AddRequest, OutputsEmitted
from tests.unit.runtime.fake_engine import (
    FakeAdapterFiles,
    FakeEngine,
    FakeOutput,
    Scripted,
    decode_outputs,
    request_frames,
)
from tests.unit.runtime.fake_transfer import FakeTransfer
from tests.unit.runtime.fakes import PATIENCE_S, FakeNetwork, FakePeer
from tests.unit.runtime.members import EndedByTestError

HERE = "mem://i-0"


class FakeNotice:
    why = "a file"
    within_s: float | None = None

    def leaves_in_s(self) -> float | None:
        return self.within_s


class Bed:
    """An instance `i-0`, a controller and two frontends."""

    def __init__(self, network: FakeNetwork, status_interval_s: float = 0.0) -> None:
        self.network = network
        self.controller = network.peer("mem://controller")
        self.f0 = network.peer("mem://f-0")
        self.f1 = network.peer("mem://f-1")
        self.engine = FakeEngine()
        self.adapter_files = FakeAdapterFiles()
        self.build = Scripted(self.engine)
        mailbox = network.mailbox(HERE)
        self.member = ControllerLink(
            "instance", "i-0", mailbox, "mem://controller", "n", lambda: self.llumlet.num_live_reqs
        )
        self.notice = FakeNotice()
        self.llumlet = Llumlet(
            self.member,
            mailbox,
            self.build,
            status_interval_s,
            FakeTransfer(),
            self.adapter_files,
            self.notice,
        )
        self.task: asyncio.Task[None]

    def run(self) -> None:
        self.task = asyncio.create_task(self.llumlet.run())

    async def welcome(self, incarnation: int = 1, *, fenced: bool = False) -> None:
        nonce = (await self.controller.receive(Hello)).nonce
        self.controller.send(HERE, Welcome(nonce, incarnation, fenced))
        await self.controller.receive(Hello, lambda h: h.incarnation == incarnation)

    async def start(self) -> None:
        self.run()
        await self.controller.receive(Hello, lambda h: h.phase == "active")
        await self.welcome()

    def add(
        self,
        request_id: str,
        *,
        seq: int = 0,
        num_prompt_tokens: int = 4,
        max_tokens: int = 5,
        incarnation: int = 1,
        frontend: FakePeer | None = None,
        attempt: int = 0,
        hop: int = 0,
        rank: int = 0,
        adapter: int = 0,
    ) -> None:
        frontend = frontend or self.f0
        add = AddRequest(
            request_id,
            frontend.address,
            incarnation,
            seq,
            attempt=attempt,
            hop=hop,
            rank=rank,
            adapter=adapter,
        )
        frames = request_frames(request_id, num_prompt_tokens, max_tokens)
        frontend.send(HERE, add, [bytes(frame) for frame in frames])

    async def taken_in(self, num_live_reqs: int) -> None:
        """As the event loop says, whatever the engine's thread does."""
        self.controller.inbox.clear()
        await self.controller.receive(Hello, lambda h: h.num_live_reqs == num_live_reqs)

    async def output(
        self, frontend: FakePeer | None = None
    ) -> tuple[OutputsEmitted, list[FakeOutput]]:
        emitted, payload = await (frontend or self.f0).receive_with_payload(
            OutputsEmitted, lambda told: bool(told.items)
        )
        return emitted, decode_outputs(payload)

    def num_outputs(self, frontend: FakePeer | None = None) -> int:
        """Messages with tokens that nobody has asked for."""
        told = (frontend or self.f0).received(OutputsEmitted)
        return sum(bool(each.items) for each in told)

    async def load(self, frontend: FakePeer) -> list[FakeOutput]:
        """What came with the scheduler's statistics and no request's tokens."""
        _, payload = await frontend.receive_with_payload(
            OutputsEmitted, lambda told: not told.items
        )
        return decode_outputs(payload)

    async def tokens(self, request_id: str, frontend: FakePeer | None = None) -> list[int]:
        """All its tokens, each message checked to start where the one before ended."""
        tokens: list[int] = []
        while True:
            emitted, outputs = await self.output(frontend)
            item = next(i for i in emitted.items if i.request_id == request_id)
            output = next(o for o in outputs if o.request_id == request_id)
            assert item.first_index == len(tokens)
            assert item.num_tokens == len(output.tokens)
            tokens += output.tokens
            if output.finished:
                return tokens

    async def status(
        self, where: Callable[[StatusPushed], bool] = lambda status: True
    ) -> StatusPushed:
        return await self.controller.receive(StatusPushed, where)

    async def pull(self) -> StatusPushed:
        """A status of after this call."""
        self.controller.inbox.clear()
        self.controller.send(HERE, StatusPull())
        return await self.status()

    async def end(self) -> None:
        self.engine.die(EndedByTestError())
        if self.llumlet.serving is not None:  # else its thread has ended, or never asks the engine
            await asyncio.wait({self.task}, timeout=PATIENCE_S)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
