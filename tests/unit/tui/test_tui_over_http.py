"""The dashboard on the real control API: instances, events and requests as they come."""

import time
from collections.abc import Iterator

from textual.pilot import Pilot

from controller.api.client import ControlClient
from tests.unit import cli_support
from tests.unit.control_support import TOKEN, listening
from tests.unit.fake_controller import FakeController, event
from tests.unit.tui.tui_support import dashboard, settle, shown
from tools import synthetic_cluster as synthetic
from tui.app import Dashboard
from tui.live import LiveCaller, LiveSource
from tui.screens.details import InstanceScreen
from tui.screens.dialogs import ConfirmScreen

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
            await shows(app, pilot, "run 3 wait 2", " 90% ")
            await pilot.press("enter")
            assert isinstance(app.screen, InstanceScreen)
            await shows(app, pilot, "90 of 100 (16 tokens)", "Requests (0)", "running     3")


class Absurd(FakeController):
    """A controller whose log has an event about r-bad with an impossible figure."""

    def _lines(self, query: dict[str, list[str]]) -> Iterator[bytes]:
        for line in super()._lines(query):
            is_bad = b'"r-bad"' in line
            yield line.replace(b'"time_s":1700000000.25', b'"time_s":1e30') if is_bad else line


async def test_an_absurd_event_is_left_out_once_and_those_behind_it_are_shown() -> None:
    status = synthetic.cluster((synthetic.instance("i-0"),))
    with Absurd(status=status) as fake:

        def connect() -> ControlClient:
            return ControlClient(fake.url, cli_support.TOKEN)

        source = LiveSource("c1", connect, status_every_s=0.1)
        async with dashboard(source) as (app, pilot):
            await shows(app, pilot, "i-0     active")
            fake.events += [event("evicted", request_id="r-bad"), event("drained")]
            await shows(app, pilot, "an event was left out: 1e30 is no figure", "drained")
            fake.restart(*fake.events, epoch="a")
            fake.until_asked("/v1/watch", 2)
            fake.events.append(event("member_died", reason="SIGKILL"))
            await shows(app, pilot, "SIGKILL", "live")
            assert shown(app).count("an event was left out") == 1
            assert len([path for path in fake.asked if path.startswith("/v1/watch")]) == 2


async def test_the_last_instance_is_drained_and_that_is_taken_back_by_keys() -> None:
    async with listening() as (listener, _):

        def connect() -> ControlClient:
            return ControlClient(listener.url, TOKEN, 5.0)

        source = LiveSource("c1", connect, status_every_s=0.1)
        async with dashboard(source, caller=LiveCaller(connect)) as (app, pilot):
            await shows(app, pilot, "i-0     active")
            await pilot.press("d")
            await shows(app, pilot, "Type i-0 and Enter")
            await pilot.press(*"i-0")
            while isinstance(app.screen, ConfirmScreen):  # it may be stale for a moment
                await pilot.press("enter")
                await settle(app, pilot)
            await shows(app, pilot, "drain i-0: ", "(U takes it back)")
            await pilot.press("U")
            await shows(app, pilot, "It is taken back by: uncordon i-0")
            await pilot.press("y")
            await shows(app, pilot, "undrain i-0: it gets requests again")
            assert listener.cluster.controller.keeper.spec.revision == 2
