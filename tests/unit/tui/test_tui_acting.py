"""Keys that change the cluster: which call they make, with which id, and when they make none."""

from pathlib import Path

import pytest
from textual.widgets import Button

from controller.api.errors import AnswerLostError, ConflictError, NotFoundError, RefusedError
from controller.api.operations.on_cluster import ScaleRequest
from controller.api.operations.on_instances import (
    CordonRequest,
    DrainRequest,
    UncordonRequest,
    Undrain,
    UndrainRequest,
)
from controller.api.operations.on_requests import PriorityRequest
from controller.api.settings.settings import ConsoleTable
from controller.api.wire.status import DrainStatus
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_bed import acting
from tests.unit.tui.tui_support import drawn, presses, replaying, settle
from tools import synthetic_cluster as synthetic
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import LogScreen
from tui.screens.dialogs import ChooseScreen, ConfirmScreen


@presses("drain")
@presses("dialog_yes")
async def test_drain(key: str, dialog_key: str) -> None:
    async with acting() as bed:
        await bed.press("j", "j")
        wanted = bed.cursor
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert f"Drain {wanted}?" in text
        assert f"{wanted}: 2 requests would move" in text
        assert "left: 2 of 2 serving instances, 900 of their 2000 blocks free" in text
        assert "r1  7 blocks  to i-9" in text
        assert [(name, id_) for name, id_, _ in bed.control.plans] == [("drain", wanted)]
        assert bed.control.calls == []
        await bed.press(dialog_key)
        assert bed.control.calls == [("drain", wanted, DrainRequest(if_revision=7))]
        assert f"drain {wanted}: 2 left, 0 moving, 0 moved  (U takes it back)" in await bed.bottom()


async def test_the_instance_is_that_under_the_cursor_when_the_key_was_pressed() -> None:
    """That holds even if rows change places before the dialog is answered."""
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press("d")
        for second in range(3):
            await bed.tick(**{wanted.replace("-", "_"): {"freeness_steps": 9000.0 + second}})
        await bed.press("y")
        assert [id_ for _, id_, _ in bed.control.calls] == [wanted]
        assert bed.cursor != wanted, "it is the freest now"


@pytest.mark.parametrize("keys", [("enter",), ("escape",), ("n",), ("left", "left", "enter")])
async def test_the_cursor_is_on_cancel(keys: tuple[str, ...]) -> None:
    async with acting() as bed:
        await bed.press("d", *keys)
        assert isinstance(bed.app.screen, DashboardScreen)
        assert bed.control.calls == []


@presses("dialog_next")
async def test_the_other_button(key: str) -> None:
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press("d", key)
        focused = bed.app.screen.focused
        assert isinstance(focused, Button)
        assert focused.id == "yes"
        await bed.press("enter")
        assert [id_ for _, id_, _ in bed.control.calls] == [wanted]


@presses("dialog_no")
async def test_no(key: str) -> None:
    async with acting() as bed:
        await bed.press("d", key, "y")
        assert bed.control.calls == []


async def test_nothing_is_agreed_to_before_the_plan_is_there() -> None:
    async with acting() as bed:
        bed.caller.held = True
        await bed.press("d")
        assert "asking what it would do" in await drawn(bed.pilot)
        await bed.press("y", "right", "enter")
        assert bed.control.calls == []
        bed.caller.held = False
        bed.caller.release()
        await settle(bed.app, bed.pilot)
        await bed.press("d", "y")
        assert len(bed.control.calls) == 1


async def test_the_last_instance_is_drained_by_its_name_only() -> None:
    async with acting() as bed:
        wanted = bed.cursor
        bed.control.last = (wanted,)
        await bed.press("d")
        assert f"Nothing else would serve. Type {wanted}" in await drawn(bed.pilot)
        await bed.press("y", "enter")
        assert bed.control.calls == []
        await bed.press("backspace", *wanted, "enter")
        assert bed.control.calls == [("drain", wanted, DrainRequest(force=True, if_revision=7))]


async def test_a_plan_that_is_refused_says_why_and_gives_no_order() -> None:
    async with acting() as bed:
        refused = RefusedError("the cluster is being stopped")
        bed.control.failing = {"drain": refused, "drain_plan": refused}
        await bed.press("d")
        assert "the cluster is being stopped" in await drawn(bed.pilot)
        await bed.press("y")
        assert isinstance(bed.app.screen, ConfirmScreen)
        assert bed.control.calls == []


@presses("undrain")
async def test_undrain(key: str) -> None:
    async with acting() as bed:
        await bed.press("j")
        wanted = bed.cursor
        await bed.press(key)
        assert bed.control.calls == [("undrain", wanted, UndrainRequest(if_revision=7))]
        assert f"undrain {wanted}: it gets requests again" in await bed.bottom()


@presses("cordon")
async def test_cordon(key: str) -> None:
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert f"Cordon {wanted}?" in text
        assert f"{wanted}: would be cordoned, would keep its 2 requests" in text
        assert bed.control.calls == []
        await bed.press("y")
        assert bed.control.calls == [("cordon", wanted, CordonRequest(if_revision=7))]
        told = f"cordon {wanted}: cordoned, keeps its 2 requests  (U takes it back)"
        assert told in await bed.bottom()
        await bed.tick(**{wanted.replace("-", "_"): {"closed_by": ("cordoned",)}})
        assert "cordoned" in await drawn(bed.pilot)


@presses("uncordon")
async def test_uncordon(key: str) -> None:
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press(key)
        assert bed.control.calls == [("uncordon", wanted, UncordonRequest(if_revision=7))]
        assert f"uncordon {wanted}: gets new requests again" in await bed.bottom()


async def test_a_queue_heads_row_is_about_its_instance_too() -> None:
    async with acting() as bed:
        await bed.press("2")
        assert isinstance(bed.app.screen, DashboardScreen)
        wanted = bed.app.screen.table(Pane.QUEUE).cursor_id
        await bed.press("d", "y")
        assert [(name, id_) for name, id_, _ in bed.control.calls] == [("drain", wanted)]


async def test_on_an_instances_screen_it_is_that_instance() -> None:
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press("enter", "d", "y")
        assert [id_ for _, id_, _ in bed.control.calls] == [wanted]


async def test_typed_and_by_the_palettes_action() -> None:
    async with acting() as bed:
        await bed.type("colon", "uncordon i-5")
        assert [(name, id_) for name, id_, _ in bed.control.calls] == [("uncordon", "i-5")]
        await bed.type("colon", "drain i-99")
        assert "no instance 'i-99'" in await bed.bottom()
        assert len(bed.control.calls) == 1


async def test_the_revision_that_has_moved_on_is_a_conflict_that_is_said() -> None:
    async with acting() as bed:
        bed.control.failing = {"drain": ConflictError("the cluster was changed meanwhile")}
        wanted = bed.cursor
        await bed.press("d", "y")
        assert f"drain {wanted}: the cluster was changed meanwhile" in await bed.bottom()
        assert "takes it back" not in await bed.bottom()


async def test_two_orders_of_ones_own_are_no_conflict() -> None:
    """The second one was given before the screen showed the first one's revision."""
    async with acting() as bed:
        await bed.press("u", "j", "u")
        revisions = [wanted.if_revision for _, _, wanted in bed.control.calls]
        assert revisions == [7, 8]


async def test_an_answer_that_never_comes_is_asked_for_and_the_order_not_repeated() -> None:
    async with acting() as bed:
        wanted = bed.cursor
        bed.control.failing = {"undrain": AnswerLostError("did not answer within 5 s")}
        await bed.press("u")
        text = f"undrain {wanted}: outcome unknown: did not answer within 5 s"
        assert text in await bed.bottom()
        assert "[1 UNKNOWN]" in await drawn(bed.pilot)
        bed.control.failing = {}
        bed.control.answers[bed.control.keys[0]] = bed.control.send(
            Undrain(wanted, UndrainRequest()), key="other"
        )
        bed.control.calls.pop()
        await bed.tick()
        await bed.tick()
        assert f"undrain {wanted}: it gets requests again" in await bed.bottom()
        assert "UNKNOWN" not in await drawn(bed.pilot)
        assert len(bed.control.calls) == 1


async def test_what_is_not_sent_in_time_is_cancelled_and_never_sent() -> None:
    async with acting() as bed:
        bed.caller.held = True
        await bed.press("u", "j", "u")
        for _ in range(6):
            await bed.tick()
        assert "not sent within 5 s" in await bed.bottom()
        bed.caller.held = False
        bed.caller.release()
        await bed.tick()
        assert len(bed.control.calls) == 1


@pytest.mark.parametrize("key", ["d", "u", "U", "plus", "p", "m"])
async def test_a_stale_screen_refuses_and_says_why(key: str) -> None:
    async with acting() as bed:
        bed.source.clock_s += 9
        await settle(bed.app, bed.pilot)
        await bed.press(key)
        assert "now: what the screen shows is 9.0s old" in await bed.bottom()
        assert bed.control.calls == bed.control.plans == []


async def test_a_screen_that_goes_stale_under_the_dialog_gives_no_order() -> None:
    async with acting() as bed:
        await bed.press("d")
        bed.source.clock_s += 9
        await bed.press("y")
        assert "not now: what the screen shows is 9.0s old" in await drawn(bed.pilot)
        assert bed.control.calls == []


async def test_a_frozen_screen_refuses() -> None:
    async with acting() as bed:
        await bed.press("space", "d")
        assert "no drain now: the screen is frozen: Space" in await bed.bottom()
        assert bed.control.plans == []


async def test_a_replay_refuses(tmp_path: Path) -> None:
    async with replaying(tmp_path, synthetic.frames(5)) as (app, pilot, _):
        await settle(app, pilot)
        await pilot.press("d")
        text = await drawn(pilot)
        assert "no drain now: this is a replay" in text


@presses("read_only")
async def test_read_only(key: str) -> None:
    async with acting() as bed:
        assert "[WRITE]" in await drawn(bed.pilot)
        assert " d drain " in await drawn(bed.pilot)
        await bed.press(key, "u")
        assert "no undrain now: read-only: R allows changes" in await bed.bottom()
        assert "[READ]" in await drawn(bed.pilot)
        assert bed.control.calls == []
        await bed.press(key, "u")
        assert len(bed.control.calls) == 1


async def test_read_only_from_the_start_is_for_good() -> None:
    async with acting(readonly=True) as bed:
        assert " d drain " not in await drawn(bed.pilot)
        await bed.press("R")
        assert "started with --readonly" in await bed.bottom()
        await bed.press("d")
        assert "no drain now: this dashboard was started with --readonly" in await bed.bottom()
        assert bed.control.plans == []


async def test_read_only_by_the_configuration_file_until_the_key_allows_changes() -> None:
    async with acting(limits=ConsoleTable(readonly=True)) as bed:
        assert "[READ]" in await drawn(bed.pilot)
        await bed.press("u")
        assert "no undrain now: read-only: R allows changes" in await bed.bottom()
        await bed.press("R", "u")
        assert len(bed.control.calls) == 1


@presses("priority")
async def test_priority(key: str) -> None:
    """The order is about the request under the cursor, by its full id; once the level is chosen, it
    is sent at once."""
    async with acting() as bed:
        await bed.press("2", "j")
        wanted = bed.request
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert f"Which priority for {wanted}?" in text
        assert text.index("high") < text.index("rank 1") < text.index("rank 0")
        await bed.tick()
        await bed.press("j", "enter")
        await bed.press(key, "enter")
        assert bed.control.calls == [
            ("priority", wanted, PriorityRequest(level="normal")),
            ("priority", bed.request, PriorityRequest(level="high")),
        ]
        assert f"priority {bed.request} high: high, was normal" in await bed.bottom()
        over = NotFoundError(f"request {bed.request} has finished")
        bed.control.failing = {"priority": over}
        await bed.press(key, "enter")
        assert f"priority {bed.request} high: it has finished" in await bed.bottom()


async def test_the_request_is_that_under_the_cursor_when_the_key_was_pressed() -> None:
    async with acting() as bed:
        await bed.press("2")
        wanted = bed.request
        await bed.press("p")
        for _ in range(3):
            await bed.tick(**{f"i_{place}": {"queue_head": None} for place in range(12)})
        await bed.press("enter")
        assert [id_ for _, id_, _ in bed.control.calls] == [wanted]


@presses("choice_none")
async def test_choosing_nothing(key: str) -> None:
    async with acting() as bed:
        await bed.press("2", "p", key)
        assert isinstance(bed.app.screen, DashboardScreen)
        assert bed.control.calls == []


@presses("migrate")
async def test_migrate(key: str) -> None:
    """The controller is asked what a move to the destination would take before that can be
    chosen."""
    async with acting() as bed:
        await bed.press("2")
        wanted, source = bed.request, bed.head_instance
        await bed.press(key)
        (first,) = [plan.to for _, _, plan in bed.control.plans]
        assert f"Move {wanted} from {source} to?" in await drawn(bed.pilot)
        assert "40 blocks, 40.0 MiB, downtime about 24ms" in await drawn(bed.pilot)
        assert first != source
        assert isinstance(bed.app.screen, ChooseScreen)
        assert source not in [each.name for each in bed.app.screen.found.choices]
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
        await bed.press("2")
        bed.control.full = tuple(f"i-{place}" for place in range(12))
        await bed.press("m", "enter")
        assert "cannot: it has not enough free blocks" in await drawn(bed.pilot)
        assert isinstance(bed.app.screen, ChooseScreen)
        bed.caller.held = True
        await bed.press("j", "enter")
        assert "asking what it would take" in await drawn(bed.pilot)
        assert bed.control.calls == []


async def test_what_goes_stale_under_a_choice_gives_no_order() -> None:
    async with acting() as bed:
        await bed.press("2", "p")
        bed.source.clock_s += 9
        await bed.press("enter")
        assert "not now: what the screen shows is 9.0s old" in await drawn(bed.pilot)
        assert bed.control.calls == []


@pytest.mark.parametrize("key", ["p", "m"])
async def test_a_row_without_a_request_says_so(key: str) -> None:
    async with acting() as bed:
        await bed.press(key)
        assert "this row is about no request" in await bed.bottom()
        assert bed.control.plans == []


@presses("scale_out")
async def test_one_more(key: str) -> None:
    async with acting() as bed:
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert "12 -> 13 instances" in text
        assert "i-12 would start" in text
        await bed.press("y")
        order = ScaleRequest(target=13, draining=(), if_revision=7)
        assert bed.control.calls == [("scale", "", order)]


@presses("scale_in")
async def test_one_fewer(key: str) -> None:
    async with acting() as bed:
        await bed.press(key)
        text = await drawn(bed.pilot)
        assert "i-11: 0 requests would move, then it is removed" in text
        assert "left: 2 of 2 serving instances" in text
        await bed.press("enter")
        assert bed.control.calls == [], "the cursor is on Cancel"
        await bed.press(key, "y")
        order = ScaleRequest(target=11, draining=("i-11",), if_revision=7)
        assert bed.control.calls == [("scale", "", order)]


async def test_scale_typed() -> None:
    async with acting() as bed:
        await bed.type("colon", "scale 14")
        await bed.press("y")
        assert [order.target for _, _, order in bed.control.calls] == [14]
        await bed.type("colon", "scale 12")
        assert "there are 12 instances already" in await drawn(bed.pilot)
        await bed.press("y", "escape")
        await bed.type("colon", "scale many")
        assert "'many' is no number" in await bed.bottom()
        assert len(bed.control.calls) == 1


async def test_uncordon_as_typed_takes_back_drains_too() -> None:
    """The key of each order takes back only that order."""
    async with acting() as bed:
        frame = list(synthetic.frames(1, num_instances=12))[-1]
        assert isinstance(frame, StatusFrame)
        drain = DrainStatus(drain_id="op-1", num_requests_left=7, num_moved=5)
        closed = {"i-1": ("draining",), "i-2": ("draining", "cordoned"), "i-3": ("cordoned",)}
        instances = tuple(
            each.model_copy(
                update={
                    "closed_by": closed.get(each.id, ()),
                    "drain": drain if "draining" in closed.get(each.id, ()) else None,
                }
            )
            for each in frame.status.instances
        )
        status = frame.status.model_copy(update={"instances": instances, "revision": 7})
        bed.source.feed([frame.model_copy(update={"status": status})])
        await settle(bed.app, bed.pilot)
        for each in ("i-1", "i-2", "i-3"):
            await bed.type("colon", f"uncordon {each}")
        assert [(name, id_) for name, id_, _ in bed.control.calls] == [
            ("undrain", "i-1"),
            ("undrain", "i-2"),
            ("uncordon", "i-2"),
            ("uncordon", "i-3"),
        ]


@presses("log")
async def test_the_log_keeps_what_was_done(key: str) -> None:
    async with acting((160, 36), of_cluster=" --cluster t3") as bed:
        wanted = bed.cursor
        await bed.press("d", "y")
        bed.control.failing = {"undrain": RefusedError("it is not being drained")}
        await bed.press("u", key)
        assert isinstance(bed.app.screen, LogScreen)
        lines = (await drawn(bed.pilot)).splitlines()
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


async def test_who_leaves_before_the_outcome_is_known_is_told() -> None:
    async with acting(of_cluster=" --cluster t3") as bed:
        bed.caller.held = True
        wanted = bed.cursor
        await bed.press("u")
        assert bed.app.session.unsettled() == [
            f"undrain {wanted}: sent: llumctl uncordon --cluster t3 {wanted}"
        ]
