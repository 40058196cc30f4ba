"""Instances on several machines: a line for each node, and where the cursor goes between them."""

from controller.api.wire.status import InstanceState, InstanceStatus
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_support import NARROW, FakeSource, dashboard, drawn, settle
from tools import synthetic_cluster as synthetic
from tui.app import Dashboard
from tui.drawing import UNICODE
from tui.panes import instances
from tui.screens.dashboard import DashboardScreen, Pane
from tui.state import Arrived, DashboardState, reduce
from tui.widgets import TableView


def gone(id_: str, node: str) -> InstanceStatus:
    return InstanceStatus(id=id_, state=InstanceState.RESTARTING, incarnation=1, node=node)


def state_of(*found: InstanceStatus) -> DashboardState:
    frame = StatusFrame(time_s=synthetic.START_S, status=synthetic.cluster(found))
    return reduce(DashboardState(), [Arrived(frame, synthetic.START_S)])


def lines(*found: InstanceStatus, filtered: bool = False) -> list[str]:
    state = state_of(*found)
    rows = instances.ordered(instances.rows(state, UNICODE), "freeness", descending=False)
    shown = instances.grouped(rows, state.status, filtered=filtered)
    assert filtered or len(shown) == instances.num_lines(state.status)
    return [
        instances.node_line(row) if isinstance(row, instances.NodeRow) else row.id for row in shown
    ]


def test_on_one_node_nothing_is_grouped() -> None:
    starting = InstanceStatus(id="i-2", state=InstanceState.STARTING, incarnation=0)
    there = (synthetic.instance("i-0"), synthetic.instance("i-1"), starting)
    assert lines(*there) == ["i-0", "i-1", "i-2"]
    assert lines() == []


def test_groups_stand_in_the_order_of_their_first_instance() -> None:
    found = lines(
        synthetic.instance("i-0", node="a", freeness_steps=500.0),
        synthetic.instance("i-1", node="b", freeness_steps=7.0, num_waiting_reqs=3),
        synthetic.instance("i-2", node="a", freeness_steps=90.0),
        synthetic.instance("i-3", InstanceState.STALLED, node="b", freeness_steps=800.0),
        InstanceStatus(id="i-4", state=InstanceState.STARTING, incarnation=0),
    )
    assert found == [
        "b: 2 instances, 1 stalled  freeness 7  run 24 wait 3  kv 55%",
        "i-3",
        "i-1",
        "a: 2 instances  freeness 590  run 24 wait 0  kv 55%",
        "i-2",
        "i-0",
        "no machine yet: 1 instance, 1 starting",
        "i-4",
    ]


def test_cordoned_instances_are_named_and_their_room_is_not_counted() -> None:
    def cordoned(name: str) -> InstanceStatus:
        closed_by = ("cordoned", "cooling")
        return synthetic.instance(name, node="a", freeness_steps=90.0, closed_by=closed_by)

    here = synthetic.instance("i-0", node="a", freeness_steps=500.0, closed_by=("cooling",))
    found = lines(here, cordoned("i-1"), cordoned("i-2"), synthetic.instance("i-3", node="b"))
    assert "a: 3 instances, 2 cordoned  freeness 500  run 36 wait 0  kv 55%" in found


def test_a_lost_node_is_one_line_but_for_a_filter() -> None:
    there = (synthetic.instance("i-0", node="a"), gone("i-1", "b"), gone("i-2", "b"))
    lost = "! b lost with 2 instances: i-1 i-2"
    assert lines(*there) == [lost, "a: 1 instance  freeness 521  run 12 wait 0  kv 55%", "i-0"]
    assert lines(*there, filtered=True)[:3] == [lost, "i-1", "i-2"]


def test_a_node_with_one_instance_that_is_gone_may_be_there() -> None:
    found = lines(synthetic.instance("i-0", node="a"), gone("i-1", "b"))
    assert found[:2] == ["b: 1 instance, 1 restarting  freeness -  run 0 wait 0  kv -", "i-1"]


def table(app: Dashboard) -> TableView:
    assert isinstance(app.screen, DashboardScreen)
    return app.screen.table(Pane.INSTANCES)


async def test_the_cursor_passes_the_lines_of_nodes() -> None:
    source = FakeSource()
    async with dashboard(source, NARROW) as (app, pilot):
        source.feed(synthetic.on_four_nodes(1))
        await settle(app, pilot)
        found = table(app)
        rows = [item.id for item in found.items if not instances.is_heading(item)]
        assert len(rows) < len(found.items)
        assert found.cursor_id == rows[0]
        seen = [found.cursor_id]
        for _ in range(len(rows) + 2):
            await pilot.press("j")
            seen.append(found.cursor_id)
        assert seen == [*rows, *[rows[-1]] * 3]
        for row in reversed(rows[:-1]):
            await pilot.press("k")
            assert found.cursor_id == row
        first_line = found.items[0]
        assert isinstance(first_line, instances.NodeRow)
        assert instances.node_line(first_line)[:12] in await drawn(pilot), (
            "its node is in view again"
        )
        await pilot.press("G")
        assert found.cursor_id == rows[-1]
        assert found.position.endswith(f"-{len(rows)} of {len(rows)}")


async def test_a_click_on_the_line_of_a_node_does_nothing() -> None:
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.on_four_nodes(1))
        await settle(app, pilot)
        found = table(app)
        place = [item.id for item in found.items].index("node 10.0.0.11")
        before = found.cursor_id
        await pilot.click(found, offset=(5, place + 2))
        assert found.cursor_id == before
        await pilot.click(found, offset=(5, place + 3))
        assert found.cursor_id == found.items[place + 1].id


async def test_a_filter_that_leaves_no_row_leaves_nothing_to_act_on() -> None:
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.on_four_nodes(1))
        await settle(app, pilot)
        assert isinstance(app.screen, DashboardScreen)
        app.screen.filter_by("i-9")
        assert [item.id for item in table(app).items] == ["node 10.0.0.13", "i-9"]
        assert table(app).target.instance_id == "i-9"
        app.screen.filter_by("nothing like it")
        assert not table(app).items
        assert not table(app).target.subject
