"""More rows than fit: the top of the order stays in view until somebody moves the cursor."""

import pytest

from controller.api.wire.status import InstanceState
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_support import NARROW, FakeSource, dashboard, drawn, settle
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.app import Dashboard
from tui.drawing import UNICODE
from tui.panes import instances
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import InstanceScreen
from tui.state import Arrived, DashboardState, reduce
from tui.widgets import TableView

NUM_INSTANCES = 64


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


def statuses(count: int) -> list[StatusFrame]:
    """Statuses of instances that all serve, so that they are ordered only by freeness."""
    found = []
    for frame in synthetic.frames(count, num_instances=NUM_INSTANCES, events_per_s=0):
        if isinstance(frame, StatusFrame):
            status = frame.status
            active = tuple(i for i in status.instances if i.state is InstanceState.ACTIVE)
            only = status.model_copy(update={"instances": active})
            found.append(frame.model_copy(update={"status": only}))
    return found


def table(app: Dashboard, pane: Pane = Pane.INSTANCES) -> TableView:
    assert isinstance(app.screen, DashboardScreen)
    return app.screen.table(pane)


async def test_an_untouched_table_shows_the_worst_whatever_becomes_of_the_rows(
    source: FakeSource,
) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        firsts = set()
        for frame in statuses(30):
            source.feed([frame])
            await settle(app, pilot)
            found = table(app)
            assert found.position.startswith("1-")
            assert found.cursor_id == found.items[0].id
            firsts.add(found.items[0].id)
        assert len(firsts) > 3, "the rows did not change places"


async def test_a_row_that_somebody_went_to_is_kept_until_the_first_is_gone_to(
    source: FakeSource,
) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        first, *others = statuses(30)
        source.feed([first])
        await settle(app, pilot)
        await pilot.press(*"jjjjjj")
        chosen, places = table(app).cursor_id, set()
        for frame in others:
            source.feed([frame])
            await settle(app, pilot)
            assert table(app).cursor_id == chosen
            assert f" {chosen} " in await drawn(pilot)
            places.add([item.id for item in table(app).items].index(str(chosen)))
        assert len(places) > 5
        await pilot.press("g")
        for frame in statuses(40)[30:]:
            source.feed([frame])
            await settle(app, pilot)
            assert table(app).cursor_id == table(app).items[0].id


async def test_a_row_that_was_opened_is_kept(source: FakeSource) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        first, *others = statuses(12)
        source.feed([first])
        await settle(app, pilot)
        chosen = table(app).cursor_id
        await pilot.press("enter")
        assert isinstance(app.screen, InstanceScreen)
        source.feed(others)
        await settle(app, pilot)
        await pilot.press("escape")
        assert table(app).cursor_id == chosen


async def test_moves_that_begin_are_seen_above_those_that_ended(source: FakeSource) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        (frame,) = statuses(1)
        status = frame.status
        many = tuple(
            status.ended_moves[0].model_copy(update={"migration_id": f"m-old-{place}"})
            for place in range(16)
        )
        quiet = status.model_copy(update={"moves": (), "ended_moves": many})
        source.feed([frame.model_copy(update={"status": quiet})])
        await pilot.press("1")
        await settle(app, pilot)
        assert "of 16" in table(app, Pane.MIGRATIONS).position
        busy = status.model_copy(update={"ended_moves": many})
        source.feed([frame.model_copy(update={"status": busy, "time_s": frame.time_s + 1})])
        await settle(app, pilot)
        shown = await drawn(pilot)
        assert all(f"{way.from_instance_id}>{way.to_instance_id}" in shown for way in status.moves)
        assert table(app, Pane.MIGRATIONS).cursor_id == status.moves[0].migration_id


async def test_the_history_of_an_instance_shows_the_newest(source: FakeSource) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        source.feed(synthetic.frames(60, num_instances=4, events_per_s=8))
        await settle(app, pilot)
        app.open(Target("i-1"))
        await settle(app, pilot)
        source.clock_s += 1
        more = synthetic.frames(120, num_instances=4, events_per_s=8)
        source.feed(frame for frame in more if frame.time_s > source.clock_s)
        await settle(app, pilot)
        history = app.screen.query_one("#history", TableView)
        assert history.position.startswith("1-")


def test_what_cannot_serve_comes_before_all_that_can() -> None:
    """A failed instance has no freeness. It used to come last, off the screen."""
    found = (
        synthetic.instance("i-0", freeness_steps=-400.0),
        synthetic.instance("i-1", InstanceState.DRAINING, freeness_steps=None),
        synthetic.instance("i-2", InstanceState.STARTING, freeness_steps=None),
        synthetic.instance("i-3", InstanceState.STALLED, freeness_steps=9000.0),
        synthetic.instance("i-4", InstanceState.FAILED, freeness_steps=None),
        synthetic.instance("i-5", InstanceState.RESTARTING, freeness_steps=None),
    )
    status = StatusFrame(time_s=synthetic.START_S, status=synthetic.cluster(found))
    state = reduce(DashboardState(), [Arrived(status, synthetic.START_S)])
    rows = instances.rows(state, UNICODE)
    shown = [row.id for row in instances.ordered(rows, "freeness", descending=False)]
    assert shown == ["i-4", "i-3", "i-5", "i-1", "i-0", "i-2"]
