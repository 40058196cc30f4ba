"""Keys that change the cluster: which call they make, with which id, and when they make none."""

from typing import Any

import pytest

from controller.api.errors import ConflictError, LlumctlError, RefusedError
from controller.api.operations.on_cluster import RollingRequest, RollingStopRequest, ScaleRequest
from controller.api.operations.on_instances import (
    CordonRequest,
    DrainReport,
    DrainRequest,
    PlannedDeparture,
    RestartRequest,
    UncordonRequest,
    UndrainRequest,
    departures,
    would_move,
)
from controller.api.operations.on_requests import AbortRequest, PriorityRequest
from controller.api.operations.order import Awaited, End, progress
from controller.api.operations.table import Undo
from controller.api.wire.requests import Event
from controller.api.wire.status import (
    DrainStatus,
    InstanceState,
    InstanceStatus,
    RestartedInstance,
    RestartTurn,
    RollingReport,
)
from controller.api.wire.stream import EventFrame
from tests.unit.tui.tui_control import FakeControl
from tests.unit.tui.tui_support import Bed, acting, field_of, keys_of, presses
from tools import synthetic_cluster as synthetic
from tui.actions import ACTIONS
from tui.asking import TakeBack
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import LogScreen
from tui.screens.dialogs import ChooseScreen, ConfirmScreen

(YES,) = keys_of("dialog_yes")
ORDERS: dict[str, tuple[Any, str]] = {
    "drain": (DrainRequest(if_revision=7), ": 2 left, 0 moving, 0 moved  (U takes it back)"),
    "restart": (RestartRequest(if_revision=7), ": "),
    "undrain": (UndrainRequest(if_revision=7), ": it gets requests again"),
    "cordon": (CordonRequest(if_revision=7), ": cordoned, keeps its 2 requests  (U takes it back)"),
    "uncordon": (UncordonRequest(if_revision=7), ": gets new requests again"),
    "priority": (PriorityRequest(level="normal"), " normal: it had normal already"),
    "abort": (AbortRequest(), ": aborted after 40 tokens, and 1 more"),
}
ASKED = {
    "drain": [
        "ID: 2 requests would move",
        "left: 2 of 2 serving instances",
        "r1  7 blocks  to i-9",
    ],
    "restart": ["ID: 2 requests would move, then its process is replaced"],
    "cordon": ["ID: would be cordoned, would keep its 2 requests"],
    "priority": ["Which priority for ID?", "rank 1", "rank 0"],
    "abort": [
        "ID: running on i-3, 40 tokens written, priority high",
        "ID is the client's mine",
        "ID-b ends with it",
        "There is no undo.",
    ],
}


def leaving(to: str | None = None, **fields: Any) -> PlannedDeparture:
    known: dict[str, Any] = {"num_blocks": 7, "code": "" if to else "no_blocks"}
    return PlannedDeparture(request_id="r0", num_tokens=100, to_instance_id=to, **(known | fields))


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in ORDERS for key in keys_of(kind)])
async def test_an_order_is_about_the_row_under_the_cursor_when_its_key_was_pressed(
    bed: Bed, kind: str, key: str
) -> None:
    """Even if rows change places or vanish before the question is answered."""
    is_of_request = kind in ("priority", "abort")
    await bed.press("2" if is_of_request else "0", "j")
    wanted = bed.request if is_of_request else bed.cursor
    await bed.press(key)
    asked = ASKED.get(kind, [])
    await bed.sees(*(each.replace("ID", wanted) for each in asked))
    assert bool(bed.control.calls) is not bool(asked)
    gone = {f"i_{place}": {"queue_head": None} for place in range(12)}
    await bed.tick(**gone | {field_of(wanted): {"freeness_steps": 9000.0}})
    if asked:
        await bed.press(*(("j", "enter") if kind == "priority" else YES))
    order, said = ORDERS[kind]
    assert bed.control.calls == [(kind, wanted, order)]
    assert f"{kind} {wanted}{said}" in await bed.bottom()


@presses("dialog_no", "no")
@presses("dialog_next", "other")
async def test_the_cursor_is_on_cancel(bed: Bed, no: str, other: str) -> None:
    for keys in (("enter",), (no, "y"), (other, other, "enter")):
        await bed.press("d", *keys)
        assert isinstance(bed.app.screen, DashboardScreen)
        assert bed.control.calls == []
    await bed.press("d", other, "enter")
    assert bed.control.sent == [("drain", bed.cursor)]


async def test_nothing_is_agreed_to_before_the_plan_is_there_or_if_it_is_refused(bed: Bed) -> None:
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


async def test_the_last_instance_is_drained_or_restarted_by_its_name_only(bed: Bed) -> None:
    wanted = bed.cursor
    bed.control.last = (wanted,)
    for key in ("d", "r"):
        await bed.press(key)
        assert f"Nothing else would serve. Type {wanted}" in await bed.shown()
        await bed.press("y", "enter")
        assert isinstance(bed.app.screen, ConfirmScreen)
        await bed.type("", wanted)
    assert bed.control.calls == [
        ("drain", wanted, DrainRequest(force=True, if_revision=7)),
        ("restart", wanted, RestartRequest(force=True, if_revision=8)),
    ]


async def test_an_instance_that_is_silent_is_restarted_at_once(bed: Bed) -> None:
    """It cannot give its requests away."""
    wanted = bed.cursor
    await bed.tick(**{field_of(wanted): {"state": "stalled"}})
    await bed.press("r")
    assert f"Restart {wanted} at once?" in await bed.shown()
    await bed.press("y")
    assert bed.control.calls == [("restart", wanted, RestartRequest(now=True, if_revision=7))]


async def test_orders_about_an_instance_elsewhere(bed: Bed) -> None:
    """From rows of queue heads, from the instance's screen, and typed: there, `uncordon` takes back
    drains too, while the key of each order takes back only that order."""
    first = bed.cursor
    await bed.press("enter", "u", "escape", "2")
    second = bed.table(Pane.QUEUE).cursor_id
    await bed.press("u")
    assert bed.control.sent == [("undrain", first), ("undrain", second)]
    drain = DrainStatus(drain_id="op-1", num_requests_left=7, num_moved=5)
    await bed.tick(
        i_1={"closed_by": ("draining",), "drain": drain},
        i_2={"closed_by": ("draining", "cordoned"), "drain": drain},
    )
    for each in ("uncordon i-1", "uncordon i-2", "uncordon i-4", "drain i-99"):
        await bed.type("colon", each)
    assert "no instance 'i-99'" in await bed.bottom()
    undrained = [("undrain", "i-1"), ("undrain", "i-2")]
    assert bed.control.sent[2:] == [*undrained, ("uncordon", "i-2"), ("uncordon", "i-4")]


CHANGING = [each for each in ACTIONS if each.change is not None and each.keys]
TYPED = ("priority r1 high", "abort r1", "scale 3", "autoscale on")


@presses("read_only")
async def test_a_locked_screen_refuses_every_change_and_says_why(bed: Bed, key: str) -> None:
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
    await bed.press("u")
    assert "now: read-only: R allows changes" in await bed.bottom()
    assert bed.control.calls == bed.control.plans == []
    await bed.press(key, "u")
    assert len(bed.control.calls) == 1


async def test_a_screen_that_goes_stale_under_a_dialog_gives_no_order(bed: Bed) -> None:
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


@presses("migrate")
@presses("choice_none", "leave")
async def test_migrate(bed: Bed, key: str, leave: str) -> None:
    """The controller is asked what a move to the destination would take before that can be
    chosen."""
    await bed.press("2")
    wanted, source = bed.request, bed.table(Pane.QUEUE).target.instance_id
    await bed.press(key, leave)
    assert isinstance(bed.app.screen, DashboardScreen)
    bed.control.plans.clear()
    await bed.press(key)
    await bed.sees(f"Move {wanted} from {source} to?", "40 blocks, 40.0 MiB, downtime about 24ms")
    assert isinstance(bed.app.screen, ChooseScreen)
    assert source not in [each.name for each in bed.app.screen.found.choices]
    await bed.press("j", "k", "j")
    asked = [plan.to for _, _, plan in bed.control.plans]
    assert asked == [each.name for each in bed.app.screen.found.choices], "each is asked once"
    second = asked[1]
    await bed.press("enter")
    ((name, id_, order),) = bed.control.calls
    assert (name, id_, order.to, order.dry_run) == ("migrate", wanted, second, False)
    assert f"to {second}: migrated, 40 blocks, downtime 31ms" in await bed.bottom()


async def test_a_destination_that_cannot_take_it_is_not_taken(bed: Bed) -> None:
    for key in ("p", "m"):
        await bed.press(key)
        assert "this row is about no request" in await bed.bottom()
    await bed.press("2")
    bed.control.full = tuple(f"i-{place}" for place in range(12))
    await bed.press("m", "enter")
    assert "cannot: it has not enough free blocks" in await bed.shown()
    assert isinstance(bed.app.screen, ChooseScreen)
    await bed.press("escape")
    bed.caller.held = True
    await bed.press("m", "enter")
    assert "asking what it would take" in await bed.shown()
    assert bed.control.calls == []


async def test_the_choice_begins_at_the_best_destination_that_can_take_it(bed: Bed) -> None:
    """The others stay in their places, with their reasons."""
    await bed.press("2", "m")
    assert isinstance(bed.app.screen, ChooseScreen)
    best, second, third, *_ = (each.name for each in bed.app.screen.found.choices)
    assert bed.app.screen.choices.cursor_id == best
    await bed.press("escape")
    bed.control.full = (best, second)
    await bed.press("m")
    assert bed.app.screen.choices.cursor_id == third
    lines = [line for line in await bed.lines() if "cannot: it has not enough free" in line]
    assert [line.split("│")[1].split()[0] for line in lines[:2]] == [best, second]
    await bed.press("k", "k")
    await bed.tick()
    assert bed.app.screen.choices.cursor_id == best, "the operator's choice stays"
    await bed.press("enter")
    assert bed.control.calls == [], "and it cannot be taken"


WHY = "no instance has {} free blocks"


@pytest.mark.parametrize(
    ("plan", "summary", "lines"),
    [
        ((leaving("i-9"), leaving("i-9")), "2 requests would move", ["r0  7 blocks  to i-9"] * 2),
        (
            (leaving("i-9"), leaving(why=WHY.format(7)), leaving(why=WHY.format(90))),
            "3 requests: 1 move now, 2 wait for room",
            [
                "2 stay for now: no instance has so many free blocks",
                "r0  7 blocks  to i-9",
                "r0  7 blocks  stays",
                "r0  7 blocks  stays",
            ],
        ),
        (
            (leaving(why=WHY.format(7)), leaving(why="it cannot", code="pooling", num_blocks=0)),
            "2 requests: 1 wait for room, 1 cannot move now",
            [
                "1 stays for now: no instance has 7 free blocks",
                "1 stays for now: it cannot",
                "r0  7 blocks  stays",
                "r0  queued  stays",
            ],
        ),
        (
            (leaving(why="it would be replayed", code="replays"),),
            "1 request would be replayed elsewhere",
            ["1: it would be replayed", "r0  7 blocks  replayed"],
        ),
    ],
)
def test_a_plan_sums_up_and_says_equal_reasons_once(
    plan: tuple[PlannedDeparture, ...], summary: str, lines: list[str]
) -> None:
    report = DrainReport(instance_id="i-7", state="active", plan=plan)
    assert would_move(report) == f"i-7: {summary}"
    assert [line.strip() for line in departures(plan)] == lines


@presses("scale_out", "more")
@presses("scale_in", "fewer")
async def test_one_more_and_one_fewer(bed: Bed, more: str, fewer: str) -> None:
    await bed.press(more)
    await bed.sees("12 -> 13 instances", "i-12 would start")
    await bed.press("y", fewer)
    await bed.sees(
        "i-11: 0 requests would move, then it is removed", "left: 2 of 2 serving instances"
    )
    await bed.press("enter", fewer, "y")
    await bed.type("colon", "scale 14")
    await bed.press("y")
    await bed.type("colon", "scale 12")
    assert "there are 12 instances already" in await bed.shown()
    await bed.press("y", "escape")
    assert bed.control.calls == [
        ("scale", "", ScaleRequest(target=13, draining=(), if_revision=7)),
        ("scale", "", ScaleRequest(target=11, draining=("i-11",), if_revision=8)),
        ("scale", "", ScaleRequest(target=14, draining=(), if_revision=9)),
    ]


@presses("log")
async def test_the_log_keeps_what_was_done(key: str) -> None:
    async with acting((160, 36), of_cluster=" --cluster t3") as bed:
        wanted = bed.cursor
        await bed.press("d", "y")
        bed.control.failing = {"undrain": RefusedError("it is not being drained")}
        await bed.press("u", key)
        assert isinstance(bed.app.screen, LogScreen)
        lines = [line.strip() for line in await bed.lines()]
        (drained,) = [line for line in lines if f"drain {wanted} " in line and "done" in line]
        assert f"llumctl drain --cluster t3 {wanted}" in drained
        whole = lines.index(f"undrain {wanted}: failed, it is not being drained")
        assert lines[whole + 1] == f"llumctl uncordon --cluster t3 {wanted}"
        await bed.press("y")
        assert bed.app.clipboard == f"llumctl uncordon --cluster t3 {wanted}"
        await bed.press("escape")
        assert isinstance(bed.app.screen, DashboardScreen)


# Marked rows


async def marked(bed: Bed, pane: Pane = Pane.INSTANCES) -> list[str]:
    """Marks the first two rows of the pane, and returns their ids."""
    await bed.press("0" if pane is Pane.INSTANCES else "2", "g", "x", "j", "x")
    return bed.ids(pane)[:2]


def requests_of(bed: Bed) -> list[str]:
    return [item.target.request_id for item in bed.table(Pane.QUEUE).items[:2]]


@presses("mark")
async def test_a_mark_follows_its_row_and_is_taken_off(bed: Bed, key: str) -> None:
    """It vanishes with its row and with what the row was about."""
    wanted = bed.cursor
    await bed.press(key)
    assert "1 marked" in await bed.shown()
    await bed.tick(**{field_of(wanted): {"freeness_steps": 9000.0}})
    (line,) = [line for line in await bed.lines() if line.startswith("*")]
    assert wanted in line
    await bed.press("g")
    assert bed.cursor != wanted
    await bed.press("u")
    assert f"Undrain {wanted}?" in await bed.shown(), "the cursor may be on another row"
    assert bed.control.calls == []
    await bed.press("y")
    assert bed.control.calls == [("undrain", wanted, UndrainRequest(if_revision=7))]
    await bed.press("escape")
    assert "marked" not in await bed.shown()
    left, changed = await marked(bed, Pane.QUEUE)
    assert "2 marked" in await bed.shown()
    heads = {item.id: item.queue_head for item in bed.status.instances}
    another = {"queue_head": heads[changed].model_copy(update={"request_id": "another"})}
    await bed.tick(**{field_of(left): {"queue_head": None}, field_of(changed): another})
    assert "marked" not in await bed.shown()


async def test_orders_for_all_marked_instances_wherever_the_cursor_is(bed: Bed) -> None:
    first, second = await marked(bed)
    await bed.press("j", "j", "d")
    await bed.sees("Drain 2 instances?", *(f"{each}: 2 requests would" for each in (first, second)))
    assert (await bed.shown()).count("left: 2 of 2 serving instances") == 1
    await bed.press("y")
    assert bed.control.calls == [
        ("drain", first, DrainRequest(if_revision=7, with_ids=(second,))),
        ("drain", second, DrainRequest(if_revision=8, with_ids=(first,))),
    ]
    await bed.press("c", "y")
    assert bed.control.sent[2:] == [("cordon", first), ("cordon", second)]
    await bed.press("r")
    assert "restart one at a time: Esc takes the marks off" in await bed.bottom()


async def test_orders_for_all_marked_requests(bed: Bed) -> None:
    """All move except the request that is on the destination already; one that has ended is left
    out of an abort."""
    sources = await marked(bed, Pane.QUEUE)
    first, second = requests_of(bed)
    await bed.press("p")
    assert f"Which priority for 2 requests ({first}, {second})?" in await bed.shown()
    await bed.press("enter", "m")
    assert isinstance(bed.app.screen, ChooseScreen)
    names = [each.name for each in bed.app.screen.found.choices]
    assert set(sources) <= set(names)
    assert "2 of 2 can:" in await bed.shown()
    await bed.press(*["j"] * names.index(sources[0]), "enter")
    bed.control.over = (first,)
    await bed.press("a")
    await bed.sees("Abort 2 requests?", f"not abort {first}: request {first} is over")
    await bed.press("y")
    requests = [("priority", first), ("priority", second), ("migrate", second), ("abort", second)]
    assert bed.control.sent == requests
    assert bed.control.calls[2][2].to == sources[0]


async def test_marked_requests_on_an_instances_screen(bed: Bed) -> None:
    bed.source.answer = synthetic.requests(bed.cursor)
    await bed.press("enter")
    await bed.tick()
    await bed.press("x", "j", "x", "a")
    assert "Abort 2 requests?" in await bed.shown()
    await bed.press("escape", "escape")
    assert "marked" not in await bed.shown()


# What is taken back, by which order, and what cannot be

WHY = "undo of op-0"
ON = {"reason": WHY, "if_revision": 7}


def undo(kind: str, target: str = "", **previous: Any) -> Undo:
    return Undo(kind=kind, target=target, previous=previous, made={})


def test_what_is_taken_back_and_what_cannot_be() -> None:
    """The plan says who did it and when; the order carries the reason and the list's revision."""
    control = FakeControl()
    with pytest.raises(LlumctlError, match="there is no operation that was done"):
        TakeBack().plan(control)
    control.note("did it", undo("scale", instances=11), reason="maintenance")
    found = TakeBack().plan(control)
    assert found.lines[0].endswith("ana@desk (maintenance):")
    assert "12 -> 11 instances" in found.lines
    control.send(found.order, key="key")
    assert control.calls == [("scale", "", ScaleRequest(target=11, draining=("i-11",), **ON))]
    control.note("abort r-1", None)
    with pytest.raises(LlumctlError, match=r"op-2 \(abort r-1\) cannot be undone: no order"):
        TakeBack().plan(control)
    assert TakeBack("op-0").plan(control).order is not None


@presses("undo")
async def test_undo(bed: Bed, key: str) -> None:
    """Undoes the last operation, whoever did it, after it was shown. A second undo takes back the
    first one, as on the command line."""
    await bed.press(key)
    assert "there is no operation that was done" in await bed.shown()
    await bed.press("y", "escape")
    wanted = bed.cursor
    await bed.press("d", "y")
    bed.control.note("undrain i-5", undo("drain", "i-5"))
    await bed.press(key)
    await bed.sees("12:00:01 ana@desk:", "It is taken back by: drain i-5", "r1  7 blocks  to i-9")
    await bed.press("enter")
    bed.control.done.pop(0)
    await bed.type("colon", "undo")
    await bed.tick()
    await bed.press("y")
    order = UndrainRequest(reason=WHY, if_revision=8)
    assert bed.control.calls[1:] == [("undrain", wanted, order)], "the cursor was on Cancel"
    await bed.press(key)
    assert f"It is taken back by: drain {wanted}" in await bed.shown()


async def test_on_an_operators_event_undrain_takes_that_operation_back(bed: Bed) -> None:
    bed.control.note("set x", undo("scale", instances=13))
    bed.control.note("drain i-1", undo("undrain", "i-1"))
    event = Event(kind="operator", time_s=synthetic.START_S, cause_id="op-0", reason="scale")
    await bed.feed([EventFrame(time_s=bed.source.clock_s, event=event)])
    await bed.press("3", "u")
    assert "Take op-0 back?" in await bed.shown()
    bed.control.failing = {"scale": ConflictError("the cluster was changed meanwhile")}
    await bed.press("y")
    assert bed.control.calls == [("scale", "", ScaleRequest(target=13, draining=(), **ON))]
    assert "the cluster was changed meanwhile" in await bed.bottom()


# Orders that go on after their answer

EMPTYING = DrainStatus(drain_id="op-1", num_requests_left=12, num_moved=3)
EMPTY = EMPTYING.model_copy(update={"num_requests_left": 0, "safe_to_delete": True})


def instance(drain: DrainStatus | None = None, **what: Any) -> InstanceStatus:
    found = synthetic.instance("i-7")
    state = InstanceState.DRAINING if drain else InstanceState.ACTIVE
    update = {"state": state, "drain": drain, "num_moves_out": 1, "incarnation": 3}
    return found.model_copy(update=update | what)


STARTING, FAILED = InstanceState.STARTING, InstanceState.FAILED
LEFT = "12 requests left, 1 migrating"
TAKEN = "taken back, or given up at its deadline"


@pytest.mark.parametrize(
    ("end", "found", "text", "is_over", "failed"),
    [
        (End.DRAINED, instance(EMPTYING), LEFT, False, False),
        (End.DRAINED, instance(EMPTY), "drained", True, False),
        (End.DRAINED, instance(), TAKEN, True, True),
        (End.DRAINED, None, "it is gone", True, True),
        (End.REMOVED, instance(EMPTY), "0 requests left, 1 migrating", False, False),
        (End.REMOVED, None, "removed", True, False),
        (End.RESTARTED, instance(EMPTY, state=STARTING), "starting", False, False),
        (End.RESTARTED, instance(incarnation=4, state=STARTING), "starting", False, False),
        (End.RESTARTED, instance(incarnation=4), "restarted", True, False),
        (End.RESTARTED, instance(), TAKEN, True, True),
        (End.RESTARTED, instance(EMPTY, state=FAILED, detail="no"), "failed: no", True, True),
        (End.STARTED, None, "not launched yet", False, False),
        (End.STARTED, instance(state=STARTING, detail="loading"), "loading", False, False),
        (End.STARTED, instance(), "serves", True, False),
    ],
)
def test_how_far_one_is(
    end: End, found: InstanceStatus | None, text: str, is_over: bool, failed: bool
) -> None:
    status = synthetic.cluster((found,) if found else ())
    come = progress([Awaited("i-7", end, "op-1", 3)], status)
    assert (come.text, come.is_over, come.failed) == (text, is_over, failed)
    several = progress(
        [Awaited("i-7", end, "op-1", 3), Awaited("i-8", End.REMOVED, "op-1")], status
    )
    assert several.text == f"i-7: {text}, i-8: removed"
    assert several.is_over is is_over


@pytest.mark.parametrize(
    ("rolling", "is_over", "failed"),
    [
        (None, True, True),
        (("op-2", "going"), True, True),
        (("op-1", "going"), False, False),
        (("op-1", "done"), True, False),
        (("op-1", "failed"), True, True),
        (("op-1", "stopped"), True, True),
    ],
)
def test_how_far_a_rolling_restart_is(
    rolling: tuple[str, Any] | None, is_over: bool, failed: bool
) -> None:
    report = rolling and RollingReport(rolling_id=rolling[0], state=rolling[1])
    status = synthetic.cluster(()).model_copy(update={"rolling": report})
    come = progress([Awaited("", End.ROLLED, "op-1")], status)
    assert (come.is_over, come.failed) == (is_over, failed)


async def test_a_drain_tells_its_progress_and_its_end() -> None:
    """Both stand on the bottom line beside the keys, and in the log. Earlier statuses are
    ignored."""
    async with acting((160, 36)) as bed:
        bed.control.drain_id = "op-1"
        wanted = bed.cursor
        await bed.press("d", "y")
        emptying = {"drain": EMPTYING, "state": InstanceState.DRAINING, "num_moves_out": 1}
        await bed.tick({"revision": bed.control.revision - 1})
        await bed.tick(**{field_of(wanted): emptying})
        bed.app.session.message.clear()
        await bed.sees(f"> drain {wanted}: 12 requests left, 1 migrating", "? help")
        await bed.press("L")
        assert "under way" in await bed.shown()
        await bed.tick(**{field_of(wanted): emptying | {"drain": EMPTY}})
        await bed.sees(f"drain {wanted}: drained after 3.0s", "done       drained after 3.0s")
        assert "under way" not in await bed.shown()
        await bed.press("escape", "j", "d", "y", "u")
        await bed.tick()
        assert "it gets requests again" in await bed.bottom(), "the undrain ended the second one"
        await bed.press("L")
        assert TAKEN in await bed.shown()


async def test_a_rolling_restart_is_typed_followed_and_stopped(bed: Bed) -> None:
    done = RestartedInstance(instance_id="i-0", took_s=9.0)
    turn = RestartTurn(instance_id="i-1", began_s=1.0, state="restarting")
    going = RollingReport(
        rolling_id="op-roll", state="going", done=(done,), under_way=(turn,), left=("i-2",)
    )
    why = "i-1 could not start: no such model"
    failed = {"state": "failed", "why": why, "failed_id": "i-1", "under_way": ()}
    bed.control.last = ("i-0",)
    await bed.type("colon", "rolling")
    await bed.sees(
        "Restart all, one after the other?",
        "2 instances would be restarted, 1 at a time",
        "i-0: 2 requests (7 blocks), then a start",
        "Type all",
    )
    await bed.type("", "all")
    assert "rolling restart: 0 of 2 done, then i-0 i-1" in await bed.bottom()
    await bed.press("U")
    assert "It is taken back by: restart --stop" in await bed.shown()
    await bed.press("escape")
    await bed.tick({"rolling": going})
    assert "roll 1/3 i-1 starting" in await bed.shown()
    await bed.tick({"rolling": going.model_copy(update=failed)})
    await bed.sees("roll 1/2 failed i-1", f"failed: {why}")
    await bed.type("colon", "stop_rolling")
    assert "these would keep their process: i-1" in await bed.shown()
    await bed.press("y")
    assert bed.control.calls == [
        ("rolling", "", RollingRequest(force=True, if_revision=7)),
        ("stop_rolling", "", RollingStopRequest(if_revision=8)),
    ]
