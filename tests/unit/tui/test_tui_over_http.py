"""The dashboard on the real control API: instances, events and requests as they come."""

import time

from textual.pilot import Pilot

from controller.api.client import ControlClient
from tests.unit.control_support import TOKEN, listening
from tests.unit.tui.tui_support import dashboard, settle, shown
from tui.app import Dashboard
from tui.feed.source import LiveSource
from tui.screens.instance import InstanceScreen

LIMIT_S = 20.0


async def shows(app: Dashboard, pilot: Pilot[None], *texts: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while missing := [text for text in texts if text not in shown(app)]:
        assert time.monotonic() < deadline_s, f"{missing} not in\n{shown(app)}"
        await settle(app, pilot)


async def test_what_happens_in_the_controller_is_on_the_screen() -> None:
    async with listening() as (listener, _):
        source = LiveSource(
            "c1", lambda: ControlClient(listener.url, TOKEN, 5.0), status_every_s=0.1
        )
        async with dashboard(source) as (app, pilot):
            await shows(
                app, pilot, "c1  ready", "live 0.", "i-0     active", "controller", "started"
            )
            listener.cluster.report(num_free_blocks=10, num_running=3, num_queued=2)
            await shows(app, pilot, "run 3 wait 2", "90|90%")
            await pilot.press("enter")
            assert isinstance(app.screen, InstanceScreen)
            await shows(app, pilot, "90 of 100 (16 tokens)", "Requests (0)", "running     3")
