"""An instance and a frontend on the fake network, with real engine threads."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from controller.core.scheduler_events import DispatchRequested
from controller.core.settings import ReplayConfig
from controller.runtime.controller_link import ControllerLink
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.frontend.router import Router, RouterEvents
from controller.runtime.instance.llumlet import Llumlet, Serving
from controller.runtime.messages.requests import OutputsEmitted
from tests.unit.runtime.fake_engine import (
    FakeAdapterFiles,
    FakeEngine,
    Scripted,
    decode_outputs,
    request_frames,
)
from tests.unit.runtime.fake_transfer import FakeTransfer
from tests.unit.runtime.fakes import PATIENCE_S, FakeNetwork

CONTROLLER = "mem://controller"
LEVELS = {0: "normal", 1: "high", -1: "low"}


def repeat_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What members do by the clock."""
    monkeypatch.setattr("controller.runtime.instance.engine_thread.HEARTBEAT_S", 0.02)
    monkeypatch.setattr("controller.runtime.controller_link.HELLO_INTERVAL_S", 0.02)
    monkeypatch.setattr("controller.runtime.controller.cluster.TICK_S", 0.01)


class EndedByTestError(Exception):
    pass


class Instance:
    def __init__(
        self,
        network: FakeNetwork,
        instance_id: str,
        process: int = 0,
        engine: FakeEngine | None = None,
    ) -> None:
        self.address = f"mem://{instance_id}.{process}" if process else f"mem://{instance_id}"
        self.engine = engine or FakeEngine()
        self.transfer = FakeTransfer()
        mailbox = network.mailbox(self.address)
        self.member = ControllerLink(
            "instance", instance_id, mailbox, CONTROLLER, "n", lambda: self.llumlet.num_live_reqs
        )
        build = Scripted(self.engine)
        self.llumlet = Llumlet(
            self.member, mailbox, build, 0.001, self.transfer, FakeAdapterFiles()
        )
        self.task = asyncio.create_task(self.llumlet.run())

    def hold_thread(self) -> threading.Event:
        """The engine's thread waits at its next boundary until the event is set."""
        event = threading.Event()
        self.serving.between_steps(lambda engine: event.wait(PATIENCE_S))
        return event

    @property
    def serving(self) -> Serving:
        """Of an instance that is active."""
        assert self.llumlet.serving is not None
        return self.llumlet.serving

    async def end(self) -> None:
        self.engine.die(EndedByTestError())
        await asyncio.gather(self.task, return_exceptions=True)


class Frontend:
    """A client per request, without vLLM's app in between."""

    def __init__(self, network: FakeNetwork, max_replays: int = 3) -> None:
        self._network, self.address = network, "mem://f-0"
        mailbox = network.mailbox(self.address)
        member = ControllerLink(
            "frontend", "f-0", mailbox, CONTROLLER, "n", lambda: self.router.num_live_reqs
        )
        self.known: list[str] = []
        self.ended: dict[str, asyncio.Future[str]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.max_tokens: dict[str, int] = {}
        self.book = RequestBook("f-0", LEVELS, on_event=member.tell)
        self.router = Router(
            member,
            mailbox,
            self.book,
            RouterEvents(
                on_failed=lambda r, why: self.ended[r].set_result("failed"),
                on_refused=lambda r, why: self.ended[r].set_result("refused"),
                on_aborted=lambda r, why: self.ended[r].set_result(why),
                on_directory=lambda entries: self.known.__setitem__(
                    slice(None), [e.instance_id for e in entries if e.snapshot]
                ),
                on_drain=lambda drain: None,
                on_limits=lambda limits: None,
                on_adapters=lambda told: None,
            ),
        )
        self.router.routes.machine.replays.config = ReplayConfig(max_replays)
        self.router.inbox.with_payload[OutputsEmitted] = self.on_outputs
        self.router.start()
        member.report("active")

    def on_outputs(self, emitted: OutputsEmitted, payload: Sequence[memoryview]) -> None:
        for output, num_skip in self.router.accept(emitted, decode_outputs(payload)):
            self.tokens[output.request_id] += output.tokens[num_skip:]
            if output.finished:
                self.ended[output.request_id].set_result("finished")

    def die(self) -> None:
        self._network.lose(self.address)
        live = self.router.routes.machine.live
        for request_id in list(live):
            live.pop(request_id)

    async def submit(self, request_id: str, num_prompt_tokens: int, max_tokens: int) -> None:
        self.tokens[request_id], self.max_tokens[request_id] = [], max_tokens
        self.ended[request_id] = asyncio.get_running_loop().create_future()
        frames = request_frames(request_id, num_prompt_tokens, max_tokens)
        request = DispatchRequested(request_id, "f-0", num_prompt_tokens, 0, 0.0)
        await self.router.submit(request, frames, request_id)
