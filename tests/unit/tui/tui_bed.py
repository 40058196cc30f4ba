"""A dashboard with a controller that remembers its orders, for tests of orders."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Input

from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_control import FakeControl
from tests.unit.tui.tui_support import FakeCaller, FakeSource, dashboard, drawn, settle
from tools import synthetic_cluster as synthetic
from tui.app import Dashboard
from tui.screens.dashboard import DashboardScreen, Pane


@dataclass
class Bed:
    app: Dashboard
    pilot: Pilot[None]
    source: FakeSource
    control: FakeControl
    caller: FakeCaller
    second: int = 0

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await settle(self.app, self.pilot)

    async def type(self, key: str, text: str) -> None:
        """Types a text at once into the line that the key opens."""
        await self.pilot.press(key)
        self.app.screen.query_one(Input).value = text
        await self.press("enter")

    async def tick(self, **changed: Any) -> None:
        """Feeds the next status, with changed fields of instances: `i_3={...}`."""
        await self._tick(changed, {})

    async def tick_with(self, **update: Any) -> None:
        """Feeds the next status, with these fields changed."""
        await self._tick({}, update)

    async def _tick(self, changed: dict[str, Any], more: dict[str, Any]) -> None:
        self.second += 1
        frame = list(synthetic.frames(1, num_instances=12, seed=self.second))[-1]
        assert isinstance(frame, StatusFrame)
        status = frame.status
        found = tuple(
            item.model_copy(update=changed.get(item.id.replace("-", "_"), {}))
            for item in status.instances
        )
        now_s = synthetic.START_S + self.second
        update = {"instances": found, "revision": self.control.revision, "time_s": now_s}
        update |= more
        self.source.feed([StatusFrame(time_s=now_s, status=status.model_copy(update=update))])
        await settle(self.app, self.pilot)

    @property
    def cursor(self) -> str:
        assert isinstance(self.app.screen, DashboardScreen)
        found = self.app.screen.table(Pane.INSTANCES).cursor_id
        assert found is not None
        return found

    @property
    def request(self) -> str:
        """The request under the cursor of the queue heads."""
        assert isinstance(self.app.screen, DashboardScreen)
        return self.app.screen.table(Pane.QUEUE).target.request_id

    @property
    def head_instance(self) -> str:
        assert isinstance(self.app.screen, DashboardScreen)
        return self.app.screen.table(Pane.QUEUE).target.instance_id

    async def bottom(self) -> str:
        return (await drawn(self.pilot)).splitlines()[-1]


@asynccontextmanager
async def acting(size: tuple[int, int] = (120, 36), **options: Any) -> AsyncIterator[Bed]:
    source, control = FakeSource(), FakeControl()
    caller = FakeCaller(control)
    async with dashboard(source, size, caller=caller, **options) as (app, pilot):
        bed = Bed(app, pilot, source, control, caller)
        await bed.tick()
        yield bed
