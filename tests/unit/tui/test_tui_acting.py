"""Keys that change the cluster: which call they make, with which id, and when they make none."""

from pathlib import Path

from textual.widgets import Button

from controller.api.errors import RefusedError
from controller.api.operations.on_cluster import ScaleRequest
from controller.api.operations.on_instances import (
    CordonRequest,
    DrainRequest,
    UncordonRequest,
    UndrainRequest,
)
from controller.api.operations.on_requests import PriorityRequest
from controller.api.wire.status import DrainStatus
from tests.unit.tui.tui_support import acting, field_of, presses, replaying
from tui.actions import ACTIONS
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import LogScreen
from tui.screens.dialogs import ChooseScreen, ConfirmScreen


@presses("drain")
@presses("dialog_yes", "dialog_key")
async def test_drain(key: str, dialog_key: str) -> None:
    """The instance is that under the cursor when the key was pressed, even if rows change places
    before the dialog is answered."""
    async with acting() as bed:
        await bed.press("j", "j")
        wanted = bed.cursor
        await bed.press(key)
        text = await bed.shown()
        assert f"Drain {wanted}?" in text
        assert f"{wanted}: 2 requests would move" in text
        assert "left: 2 of 2 serving instances, 900 of their 2000 blocks free" in text
        assert "r1  7 blocks  to i-9" in text
        assert [plan[:2] for plan in bed.control.plans] == [("drain", wanted)]
        assert bed.control.calls == []
        await bed.tick(**{field_of(wanted): {"freeness_steps": 9000.0}})
        await bed.press(dialog_key)
        assert bed.control.calls == [("drain", wanted, DrainRequest(if_revision=7))]
        assert f"drain {wanted}: 2 left, 0 moving, 0 moved  (U takes it back)" in await bed.bottom()
        assert bed.ids().index(wanted) != 2


@presses("dialog_no", "no")
@presses("dialog_next", "other")
async def test_the_cursor_is_on_cancel(no: str, other: str) -> None:
    async with acting() as bed:
        for keys in (("enter",), (no, "y"), (other, other, "enter")):
            await bed.press("d", *keys)
            assert isinstance(bed.app.screen, DashboardScreen)
            assert bed.control.calls == []
        await bed.press("d", other)
        focused = bed.app.screen.focused
        assert isinstance(focused, Button)
        assert focused.id == "yes"
        await bed.press("enter")
        assert bed.control.sent == [("drain", bed.cursor)]


async def test_nothing_is_agreed_to_before_the_plan_is_there_or_if_it_is_refused() -> None:
    async with acting() as bed:
        bed.caller.held = True
        await bed.press("d")
        assert "asking what it would do" in await bed.shown()
        await bed.press("y", "right", "enter")
        assert bed.control.calls == []
        bed.caller.release()
        await bed.settle()
        bed.control.failing = {"drain_plan": RefusedError("the cluster is being stopped")}
        await bed.press("d")
        assert "the cluster is being stopped" in await bed.shown()
        await bed.press("y")
        assert isinstance(bed.app.screen, ConfirmScreen)
        assert bed.control.calls == []


async def test_the_last_instance_is_drained_or_restarted_by_its_name_only() -> None:
    async with acting() as bed:
        wanted = bed.cursor
        bed.control.last = (wanted,)
        await bed.press("d")
        assert f"Nothing else would serve. Type {wanted}" in await bed.shown()
        await bed.press("y", "enter")
        assert bed.control.calls == []
        await bed.type("", wanted)
        assert bed.control.calls == [("drain", wanted, DrainRequest(force=True, if_revision=7))]
        await bed.press("r", "y")
        await bed.type("", wanted)
        assert bed.control.sent[1:] == [("restart", wanted)]


@presses("undrain", "undrain")
@presses("cordon", "cordon")
@presses("uncordon", "uncordon")
async def test_undrain_cordon_and_uncordon(undrain: str, cordon: str, uncordon: str) -> None:
    async with acting() as bed:
        await bed.press("j")
        wanted = bed.cursor
        await bed.press(undrain)
        assert f"undrain {wanted}: it gets requests again" in await bed.bottom()
        await bed.press(cordon)
        text = await bed.shown()
        assert f"Cordon {wanted}?" in text
        assert f"{wanted}: would be cordoned, would keep its 2 requests" in text
        assert len(bed.control.calls) == 1
        await bed.press("y")
        told = f"cordon {wanted}: cordoned, keeps its 2 requests  (U takes it back)"
        assert told in await bed.bottom()
        await bed.tick(**{field_of(wanted): {"closed_by": ("cordoned",)}})
        assert "cordoned" in await bed.shown()
        await bed.press(uncordon)
        assert f"uncordon {wanted}: gets new requests again" in await bed.bottom()
        assert bed.control.calls == [
            ("undrain", wanted, UndrainRequest(if_revision=7)),
            ("cordon", wanted, CordonRequest(if_revision=8)),
            ("uncordon", wanted, UncordonRequest(if_revision=9)),
        ]


async def test_rows_of_queue_heads_and_an_instances_screen_are_about_their_instance() -> None:
    async with acting() as bed:
        first = bed.cursor
        await bed.press("enter", "u", "escape", "2")
        second = bed.table(Pane.QUEUE).cursor_id
        await bed.press("u")
        assert bed.control.sent == [("undrain", first), ("undrain", second)]


CHANGING = [each for each in ACTIONS if each.change is not None and each.keys]
TYPED = ("priority r1 high", "migrate r1 i-2", "abort r1", "restart i-1", "scale 3", "autoscale on")


@presses("read_only")
async def test_a_locked_screen_refuses_every_change_and_says_why(key: str) -> None:
    async with acting() as bed:
        assert "[WRITE]" in await bed.shown()
        assert " d drain " in await bed.bottom()
        await bed.press("2", "space")
        for each in CHANGING:
            if each.action_id != "setting_edit":
                await bed.press(each.keys[0])
                assert f"no {each.action_id} now: the screen is frozen: Space" in await bed.bottom()
        for text in TYPED:
            await bed.type("colon", text)
            assert f"no {text.split()[0]} now: the screen is frozen" in await bed.bottom()
        await bed.press("space", key)
        bed.app.session.message.clear()
        assert " d drain " not in await bed.bottom()
        for pressed in ("plus", "minus", "u"):
            await bed.press(pressed)
            assert "now: read-only: R allows changes" in await bed.bottom()
        assert bed.control.calls == bed.control.plans == []
        await bed.press(key, "u")
        assert len(bed.control.calls) == 1


async def test_a_screen_that_goes_stale_under_a_dialog_gives_no_order() -> None:
    async with acting() as bed:
        await bed.press("2")
        for opening, answer in (("d", "y"), ("p", "enter"), ("m", "enter")):
            await bed.tick()
            await bed.press(opening)
            await bed.wait(9)
            await bed.press(answer)
            assert "not now: what the screen shows is 9.0s old" in await bed.shown()
            await bed.press("escape", "u")
            assert "now: what the screen shows is 9.0s old" in await bed.bottom()
            bed.source.clock_s -= 9
        assert bed.control.calls == []


async def test_a_replay_refuses(tmp_path: Path) -> None:
    async with replaying(tmp_path, 5) as replay:
        await replay.press("d")
        assert "no drain now: this is a replay" in await replay.bottom()


@presses("priority")
async def test_priority(key: str) -> None:
    """The order is about the request that was under the cursor when the key was pressed, by its
    full id; once the level is chosen, it is sent at once."""
    async with acting() as bed:
        await bed.press("2", "j")
        wanted = bed.request
        await bed.press(key)
        text = await bed.shown()
        assert f"Which priority for {wanted}?" in text
        assert text.index("high") < text.index("rank 1") < text.index("rank 0")
        await bed.tick(**{f"i_{place}": {"queue_head": None} for place in range(12)})
        await bed.press("j", "enter")
        assert bed.control.calls == [("priority", wanted, PriorityRequest(level="normal"))]
        assert f"priority {wanted} normal: it had normal already" in await bed.bottom()


@presses("migrate")
@presses("choice_none", "leave")
async def test_migrate(key: str, leave: str) -> None:
    """The controller is asked what a move to the destination would take before that can be
    chosen."""
    async with acting() as bed:
        await bed.press("2")
        wanted, source = bed.request, bed.table(Pane.QUEUE).target.instance_id
        await bed.press(key, leave)
        assert isinstance(bed.app.screen, DashboardScreen)
        bed.control.plans.clear()
        await bed.press(key)
        (first,) = [plan.to for _, _, plan in bed.control.plans]
        assert f"Move {wanted} from {source} to?" in await bed.shown()
        assert "40 blocks, 40.0 MiB, downtime about 24ms" in await bed.shown()
        assert isinstance(bed.app.screen, ChooseScreen)
        assert source not in [first, *(each.name for each in bed.app.screen.found.choices)]
        await bed.press("j")
        second = bed.control.plans[-1][2].to
        assert second not in (first, source)
        await bed.press("k", "j")
        assert len(bed.control.plans) == 2, "each is asked once"
        await bed.press("enter")
        ((name, id_, order),) = bed.control.calls
        assert (name, id_, order.to, order.dry_run) == ("migrate", wanted, second, False)
        assert f"to {second}: migrated, 40 blocks, downtime 31ms" in await bed.bottom()


async def test_a_destination_that_cannot_take_it_is_not_taken() -> None:
    async with acting() as bed:
        for key in ("p", "m"):
            await bed.press(key)
            assert "this row is about no request" in await bed.bottom()
        await bed.press("2")
        bed.control.full = tuple(f"i-{place}" for place in range(12))
        await bed.press("m", "enter")
        assert "cannot: it has not enough free blocks" in await bed.shown()
        assert isinstance(bed.app.screen, ChooseScreen)
        bed.caller.held = True
        await bed.press("j", "enter")
        assert "asking what it would take" in await bed.shown()
        assert bed.control.calls == []


@presses("scale_out", "more")
@presses("scale_in", "fewer")
async def test_one_more_and_one_fewer(more: str, fewer: str) -> None:
    async with acting() as bed:
        await bed.press(more)
        assert "12 -> 13 instances" in await bed.shown()
        assert "i-12 would start" in await bed.shown()
        await bed.press("y", fewer)
        assert "i-11: 0 requests would move, then it is removed" in await bed.shown()
        assert "left: 2 of 2 serving instances" in await bed.shown()
        await bed.press("enter")
        assert len(bed.control.calls) == 1, "the cursor is on Cancel"
        await bed.press(fewer, "y")
        await bed.type("colon", "scale 14")
        await bed.press("y")
        assert bed.control.calls == [
            ("scale", "", ScaleRequest(target=13, draining=(), if_revision=7)),
            ("scale", "", ScaleRequest(target=11, draining=("i-11",), if_revision=8)),
            ("scale", "", ScaleRequest(target=14, draining=(), if_revision=9)),
        ]
        await bed.type("colon", "scale 12")
        assert "there are 12 instances already" in await bed.shown()
        await bed.press("y", "escape")
        assert len(bed.control.calls) == 3


async def test_uncordon_as_typed_takes_back_drains_too() -> None:
    """The key of each order takes back only that order."""
    async with acting() as bed:
        drain = DrainStatus(drain_id="op-1", num_requests_left=7, num_moved=5)
        await bed.tick(
            i_1={"closed_by": ("draining",), "drain": drain},
            i_2={"closed_by": ("draining", "cordoned"), "drain": drain},
            i_3={"closed_by": ("cordoned",)},
        )
        for each in ("i-1", "i-2", "i-3", "i-4"):
            await bed.type("colon", f"uncordon {each}")
        await bed.type("colon", "drain i-99")
        assert "no instance 'i-99'" in await bed.bottom()
        assert bed.control.sent == [
            ("undrain", "i-1"),
            ("undrain", "i-2"),
            ("uncordon", "i-2"),
            ("uncordon", "i-3"),
            ("uncordon", "i-4"),
        ]


@presses("log")
async def test_the_log_keeps_what_was_done(key: str) -> None:
    async with acting((160, 36), of_cluster=" --cluster t3") as bed:
        wanted = bed.cursor
        await bed.press("d", "y")
        bed.control.failing = {"undrain": RefusedError("it is not being drained")}
        await bed.press("u", key)
        assert isinstance(bed.app.screen, LogScreen)
        lines = await bed.lines()
        (drained,) = [line for line in lines if f"drain {wanted} " in line and "done" in line]
        assert f"llumctl drain --cluster t3 {wanted}" in drained
        (failed, whole) = [line for line in lines if "failed" in line]
        assert "it is not being drained" in failed
        assert whole.strip() == f"undrain {wanted}: failed, it is not being drained"
        assert lines[lines.index(whole) + 1].strip() == f"llumctl uncordon --cluster t3 {wanted}"
        await bed.press("y")
        assert bed.app.clipboard == f"llumctl uncordon --cluster t3 {wanted}"
        await bed.press("escape")
        assert isinstance(bed.app.screen, DashboardScreen)
