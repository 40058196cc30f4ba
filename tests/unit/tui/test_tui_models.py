"""A cluster that serves several models: the instances in groups, orders about one of the models,
and one model alone."""

from typing import Any

import pytest

from controller.api.operations.on_cluster import RollingRequest, ScaleRequest, SettingsPatch
from controller.api.wire.status import RollingReport
from tests.unit.tui.tui_support import NARROW, WIDE, Bed, after, text_of, watching
from tools import synthetic_cluster as synthetic
from tui import asking
from tui.actions import Target
from tui.app import Next
from tui.drawing import UNICODE
from tui.panes import instances
from tui.screens.dashboard import Pane
from tui.screens.dialogs import ConfirmScreen
from tui.screens.tuning import TuningScreen

BIG = "big: OK  2/2 serve  run 24 wait 0  p99 TTFT 1.9s  1.2k tokens/s"
SMALL = "small: OVERLOADED  2/3 serve  run 36 wait 9  auto on, 4 wanted  p99 TTFT 1.9s"


def of_two_models(**options: Any) -> Any:
    return watching(synthetic.of_two_models(1), NARROW, **options)


async def to(bed: Bed, instance_id: str) -> None:
    """Goes to the row of this instance."""
    await bed.press("0", "g")
    for _ in range(len(bed.ids())):
        if bed.cursor == instance_id:
            return
        await bed.press("j")
    raise AssertionError(instance_id)


async def test_the_instances_stand_below_their_models_and_the_worst_model_is_first() -> None:
    async with of_two_models() as bed:
        small, big = ["i-4", "i-2", "i-3", "i-5"], ["i-0", "i-1"]
        assert bed.ids() == ["model small", *small, "model big", *big]
        lines = await bed.lines()
        assert all(len(line) <= 80 for line in lines)
        heads = [line.strip() for line in lines if "serve  run" in line]
        assert heads[0].startswith(SMALL)
        assert heads[1:] == [BIG]
        assert "OVERLOADED  small: 61 wait" in lines[1]
        seen = [bed.cursor]
        for _ in range(8):
            await bed.press("j")
            seen.append(bed.cursor)
        assert list(dict.fromkeys(seen)) == [*small, *big], "the cursor passes the lines of models"
        await bed.type("slash", "big")
        assert bed.ids() == ["model big", *big]


def test_models_that_are_equally_well_keep_their_order() -> None:
    state = after(list(synthetic.of_two_models(1))[-1:])
    status = state.status
    assert status is not None
    well = tuple(each.model_copy(update={"verdict": None}) for each in status.models)
    found = instances.grouped(
        instances.rows(state, UNICODE), status.model_copy(update={"models": well}), filtered=False
    )
    assert [row.id for row in found if instances.is_heading(row)] == ["model big", "model small"]
    assert instances.num_lines(status) == len(found)
    rolling = RollingReport(state="going", left=("i-2", "i-3", "i-4"))
    line = instances.model_line(status.models[1].model_copy(update={"rolling": rolling}))
    assert "  roll 0/3  auto on" in line


def test_on_several_machines_each_model_has_its_nodes() -> None:
    state = after(list(synthetic.of_two_models(1))[-1:])
    status = state.status
    assert status is not None
    items = tuple(
        item.model_copy(update={"node": f"10.0.0.{int(item.id[2:]) % 2}"})
        for item in status.instances
    )
    status = status.model_copy(update={"instances": items})
    rows = instances.rows(state.__class__(status=status, time_s=1.0), UNICODE)
    found = instances.grouped(rows, status, filtered=False)
    assert len({row.id for row in found}) == len(found) == instances.num_lines(status)
    heads = [text_of([note[1]]) for row in found if (note := instances.note(row)) is not None]
    assert [head.split(":")[0] for head in heads if "loading" not in head] == [
        "small", "10.0.0.0", "10.0.0.1", "big", "10.0.0.0", "10.0.0.1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "order"),
    [
        ("", ("scale", ScaleRequest(target=13, draining=(), if_revision=7))),
        ("scale 14", ("scale", ScaleRequest(target=14, draining=(), if_revision=7))),
        ("rolling", ("rolling", RollingRequest(if_revision=7))),
        (
            "set migration.max_moves=2",
            ("set", SettingsPatch(changes={"migration.max_moves": 2}, if_revision=7)),
        ),
    ],
)
async def test_an_order_about_a_model_is_for_the_one_of_the_row(
    typed: str, order: tuple[str, Any]
) -> None:
    async with of_two_models() as bed:
        await to(bed, "i-3")
        await (bed.type(":", typed) if typed else bed.press("plus"))
        assert isinstance(bed.app.screen, ConfirmScreen)
        assert "small: " in await bed.shown()
        await bed.press("y")
        assert bed.control.calls == [(order[0], "small", order[1])]
        assert f"small: {order[0]}".split()[0] in await bed.bottom()
        await bed.press("L", "y")
        assert "--model small" in bed.app.clipboard


async def test_a_typed_scale_may_name_its_model() -> None:
    async with of_two_models() as bed:
        await to(bed, "i-3")
        await bed.type(":", "scale big=3", end="enter")
        await bed.sees("big: Scale to 3?")
        await bed.press("y")
        assert [call[:2] for call in bed.control.calls] == [("scale", "big")]
        await bed.type(":", "scale bog=3")
        assert "no model 'bog': did you mean big?" in await bed.bottom()


async def test_the_settings_and_auto_scaling_are_those_of_the_row() -> None:
    async with of_two_models() as bed:
        await to(bed, "i-0")
        await bed.press("A")
        await bed.sees("Auto-scaling of big?", "by hand only; now")
        await bed.press("escape")
        await to(bed, "i-2")
        await bed.press("A")
        await bed.sees("Auto-scaling of small?", "with the load; now")
        await bed.press("j", "enter")
        kind, model, wanted = bed.control.calls[-1]
        assert (kind, model, wanted.if_revision) == ("autoscale", "small", 7)
        await bed.press("t")
        assert isinstance(bed.app.screen, TuningScreen)
        assert "Settings of small (" in await bed.shown()
        assert bed.control.models[-1] == "small"
        await bed.type("slash", "max_moves_per")
        await bed.press("e")
        await bed.type("", "3")
        await bed.sees("small: Set migration.max_moves_per_minute=3?")


async def test_without_an_instance_under_the_cursor_the_model_is_asked_for() -> None:
    async with of_two_models() as bed:
        await bed.press("3")
        assert bed.main.view.focused is Pane.EVENTS
        for keys, typed in (("plus", ""), ("A", ""), ("t", ""), ("", "set migration.max_moves")):
            await (bed.type(":", typed) if typed else bed.press(keys))
            assert "of which model (big, small)? Go to a row of one" in await bed.bottom()
        assert not bed.control.plans


def test_a_request_moves_only_to_instances_of_its_model() -> None:
    status = synthetic.two_models()
    found = asking.destinations([Target("i-2", "r1")], status)
    assert [each.name for each in found.choices] == ["i-3"]


async def test_one_model_alone_and_all_again() -> None:
    names = ("big", "small")
    async with of_two_models(cluster="prod-a") as bed:
        await bed.type(":", "model")
        assert "this is all models (big, small)" in await bed.bottom()
        await bed.type(":", "model smal")
        assert "no model 'smal': did you mean small?" in await bed.bottom()
        bed.app.run_command("model small")
        await bed.pilot.pause()
        assert bed.app.next == Next("prod-a", "small", names)
    alone = {"cluster": "prod-a", "model": "small", "models": names}
    async with watching(1, NARROW, **alone) as bed:
        assert "prod-a/small" in (await bed.lines())[0]
        await bed.type(":", "model small")
        assert "this is small" in await bed.bottom()
        bed.app.run_command("model")
        await bed.pilot.pause()
        assert bed.app.next == Next("prod-a", "", names)
    async with watching(1, NARROW, cluster="prod-a", model="small") as bed:
        await bed.type(":", "model big")
        assert "no model big is known: :model shows all" in await bed.bottom()
        aimed = bed.app.session.options.aimed("llumctl scale +1")
        assert aimed == "llumctl scale --model small +1"
    async with watching(1, WIDE) as bed:
        await bed.type(":", "model")
        assert "this cluster serves one model" in await bed.bottom()


async def test_what_helps_a_model_is_said_with_its_name() -> None:
    async with of_two_models() as bed:
        order = synthetic.two_models().verdict
        assert order is not None
        assert order.order is not None
        assert bed.app.session.way_of(order.order) == ":scale small=+1"
        on = order.order.model_copy(update={"deed": "moves-on"})
        assert bed.app.session.way_of(on) == "t on an instance of small"
