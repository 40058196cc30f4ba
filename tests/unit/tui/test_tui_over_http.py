"""The dashboard on the real control API: instances, events and requests as they come."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controller.api.client import ControlClient
from tests.unit.control.control_support import TOKEN, listening
from tests.unit.tui.tui_support import Driven, dashboard, shown
from tui.live import LiveCaller, LiveSource
from tui.screens.dialogs import ConfirmScreen

LIMIT_S = 20.0


class Watched(Driven):
    async def shows(self, *texts: str) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while missing := [text for text in texts if text not in shown(self.app)]:
            assert time.monotonic() < deadline_s, f"{missing} not in\n{shown(self.app)}"
            await self.settle()


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[Watched]:
    def connect() -> ControlClient:
        return ControlClient(url, TOKEN, 5.0)

    source = LiveSource("c1", connect, status_every_s=0.1)
    async with dashboard(source, caller=LiveCaller(connect)) as (app, pilot):
        yield Watched(app, pilot)


async def test_what_happens_is_on_the_screen_and_an_order_is_given_and_taken_back() -> None:
    async with listening() as (listener, _), watched(listener.url) as screen:
        await screen.shows("c1  ready", "live 0.", "i-0     active", "controller", "started")
        listener.cluster.report(num_free_blocks=10, num_running=3, num_queued=2)
        await screen.shows("run 3 wait 2", " 90% ")
        await screen.press("enter")
        await screen.shows("90 of 100 (16 tokens)", "Requests (0)", "running     3")
        await screen.press("escape", "d")
        await screen.shows("Type i-0 and Enter")
        await screen.press(*"i-0")
        while isinstance(screen.app.screen, ConfirmScreen):  # it may be stale for a moment
            await screen.press("enter")
        await screen.shows("drain i-0: ", "(U takes it back)")
        await screen.press("U")
        await screen.shows("It is taken back by: uncordon i-0")
        await screen.press("y")
        await screen.shows("undrain i-0: it gets requests again")
        assert listener.cluster.controller.keeper.spec.revision == 2
