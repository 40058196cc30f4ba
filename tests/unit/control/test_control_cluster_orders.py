"""Scale, rolling restarts and changes of settings on the control API: what is special in each."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from controller.api.errors import LlumctlError, UsageError
from controller.api.operations.on_cluster import (
    DismissRolling,
    Rolling,
    Scale,
    SetSettings,
    SettingChanges,
    SettingList,
    StopRolling,
)
from controller.api.operations.on_instances import Drain
from controller.api.settings.setting_values import live_settings
from controller.api.settings.settings import Settings
from controller.api.wire.status import RollingReport
from controller.core.fleet.cluster_spec import EngineChange
from controller.core.load.step_times import StepLimit
from controller.runtime.messages.members import StatusPushSet, StepTimeSet
from controller.runtime.messages.move_messages import MoveLimitsSet
from tests.unit.control.control_bed import Bed, bed_of

# -- scale --------------------------------------------------------------------------------


async def test_scale_out_and_in(bed: Bed) -> None:
    grown = await bed.does(Scale, target=4)
    assert (grown.previous, grown.target, grown.added) == (3, 4, ("i-3",))
    assert bed.cluster.launcher.launched[-1] == "i-3"
    assert (await bed.status()).detail == "i-3 is starting"
    shrunk = await bed.does(Scale, target=2, deadline_s=30, on_deadline="abort", reason="night")
    going = {each.instance_id: each for each in shrunk.draining}
    assert sorted(going) == ["i-1", "i-3"], "one that does not serve, and one without requests"
    assert going["i-1"].removes_instance
    assert (going["i-1"].on_deadline, going["i-1"].reason) == ("abort", "night")
    back = await bed.does(Scale, target=3)
    assert (back.previous, back.undrained, back.added) == (2, ("i-1",), ())
    assert ("undrain i-1", "done") in bed.outcomes()


async def test_an_instance_that_could_not_be_launched_yet_is_starting(bed: Bed) -> None:
    """A client that waits for the instance must not be told that it does not exist."""
    bed.cluster.launcher.failures["i-3"] = 1
    assert (await bed.does(Scale, target=4)).added == ("i-3",)
    new = (await bed.status()).instances[-1]
    assert (new.id, new.state, new.incarnation) == ("i-3", "starting", 0)
    bed.controller.scaling.launch_missing()
    assert len((await bed.status()).instances) == 4
    await bed.does(Scale, target=3)
    bed.controller.terminate("i-3")
    assert len((await bed.status()).instances) == 3, "it is on its way out"


async def test_a_dry_run_of_scale_names_everything(bed: Bed) -> None:
    out = await bed.does(Scale, change=2, dry_run=True)
    assert (out.previous, out.target, out.added) == (3, 5, ("i-3", "i-4"))
    bed.cluster.report("i-2", num_running=4, num_free_blocks=40)
    bed.cluster.report("i-1", num_running=5, num_free_blocks=30)
    first, second = (await bed.does(Scale, change=-2, dry_run=True)).draining
    assert (first.instance_id, second.instance_id) == ("i-0", "i-2")
    assert [p.to_instance_id for p in first.plan] == ["i-1"], "not the other one that goes"
    assert await bed.refused(Scale, change=1) == (400, "bad_request"), "a change is only planned"


async def test_a_scale_that_comes_twice_is_carried_out_once(bed: Bed) -> None:
    """Also with the earlier revision, which the first call increased."""
    for target, agreed in ((4, []), (2, ["i-2", "i-3"])):
        revision = bed.revision
        order: dict[str, Any] = {"target": target, "draining": agreed, "if_revision": revision}
        first, again = await asyncio.gather(bed.does(Scale, **order), bed.does(Scale, **order))
        assert first.revision == again.revision == bed.revision == revision + 1
        assert first.added or first.draining
        assert (again.previous, again.added, again.draining) == (target, (), ())


async def test_those_that_were_agreed_to_go_and_no_others(bed: Bed) -> None:
    (shown,) = (await bed.does(Scale, change=-1, dry_run=True)).draining
    bed.cluster.report("i-1", num_running=9, num_free_blocks=30)  # by now it is the busiest
    assert await bed.refused(Scale, target=2, draining=["i-77"]) == (409, "plan_changed")
    (going,) = (await bed.does(Scale, target=2, draining=["i-1"])).draining
    assert going.instance_id == shown.instance_id == "i-1"


async def test_what_is_on_the_record_is_what_is_done(bed: Bed) -> None:
    """Although another instance has the fewest requests by then."""
    bed.while_recording(lambda: bed.cluster.report("i-1", num_running=9, num_free_blocks=30))
    (going,) = (await bed.does(Scale, target=2)).draining
    targets = [entry["target"] for entry in bed.audited() if entry["outcome"] == "done"]
    assert targets == ["the cluster", going.instance_id]


async def test_a_plan_that_cannot_be_carried_out_any_more_is_refused(bed: Bed) -> None:
    (going,) = (await bed.does(Scale, target=2)).draining
    revision, end = bed.revision, bed.controller.drains.end
    bed.while_recording(lambda: end(going.instance_id, "its deadline passed"))
    assert await bed.refused(Scale, target=3) == (409, "plan_changed")
    assert bed.revision == revision + 1
    assert bed.audited()[-1]["outcome"] == "failed: plan_changed"


async def test_scale_has_bounds_and_needs_room(bed: Bed) -> None:
    assert await bed.refused(Scale, target=0) == (409, "min_instances")
    assert await bed.refused(Scale, change=1022, dry_run=True) == (400, "max_instances")
    bed.cluster.launcher.why_no_room = "1 GPUs are needed, Ray has 0 free"
    assert await bed.refused(Scale, target=4) == (409, "no_room")
    assert (await bed.does(Scale, target=4, force=True)).added == ("i-3",)


# -- rolling restarts ---------------------------------------------------------------------


async def test_a_rolling_restart_is_planned_shown_and_stopped(bed: Bed) -> None:
    plan = await bed.does(Rolling, dry_run=True, at_once=2)
    assert (plan.state, plan.left, plan.at_once) == ("none", ("i-0", "i-1", "i-2"), 2)
    assert [each.num_blocks for each in plan.plan] == [10, 0, 0]
    begun = await bed.does(Rolling, reason="a patch", deadline_s=60)
    assert (begun.state, begun.left, begun.reason) == ("going", ("i-0", "i-1", "i-2"), "a patch")
    async with asyncio.timeout(5):
        while not (shown := (await bed.get("rolling-restart", RollingReport))).under_way:
            bed.controller.rolling.tick()
            await asyncio.sleep(0.01)
    (turn,) = shown.under_way
    assert (turn.instance_id, turn.state, turn.num_requests_left) == ("i-0", "draining", 1)
    assert (await bed.status()).rolling == shown
    assert (await bed.does(StopRolling, dry_run=True)).state == "going"
    stopped = await bed.does(StopRolling, reason="no")
    assert (stopped.state, stopped.why) == ("stopped", "stopped: no")
    assert bed.controller.keeper.spec.drains == {}


async def test_a_rolling_restart_is_dismissed_once_it_is_over(bed: Bed) -> None:
    assert not (await bed.does(DismissRolling)).changes, "there was none"
    for instance_id in ("i-1", "i-2"):
        await bed.client.post(f"/v1/instances/{instance_id}/drain")
    assert await bed.refused(Rolling) == (409, "last_instance")
    await bed.does(Rolling, force=True)
    assert await bed.refused(DismissRolling) == (409, "rolling")
    await bed.does(StopRolling)
    assert not (await bed.does(DismissRolling, dry_run=True)).dismissed
    assert (await bed.does(DismissRolling)).dismissed
    assert not (await bed.does(DismissRolling)).changes


async def test_engine_arguments_are_checked_planned_and_shown() -> None:
    def check(given: Any, _before: Any, _after: Any) -> None:
        if "dtype" in given:
            raise UsageError("engine.dtype cannot be changed", "llumctl down")

    wanted = {"max_num_seqs": 64, "enforce_eager": None}
    async with bed_of(check_engine=check) as bed:
        plan = await bed.does(Rolling, dry_run=True, engine_args=wanted)
        assert (plan.engine_args, plan.changes_engine) == ({"max_num_seqs": 64}, True)
        assert await bed.refused(Rolling, engine_args={"dtype": "half"}) == (400, "bad_setting")
        assert bed.revision == 0
        await bed.does(Rolling, engine_args=wanted)
        order, keeper = bed.controller.rolling.order, bed.controller.keeper
        assert order.engine == EngineChange(1, {"max_num_seqs": 64})
        keeper.change(keeper.spec.with_rolling(order, engines={"i-1": order.engine}))
        found = (await bed.status()).engine_changes
        assert [(each.generation, each.instances) for each in found] == [
            (0, ("i-0", "i-2")),
            (1, ("i-1",)),
        ]


async def test_other_orders_go_on_while_a_python_environment_is_checked() -> None:
    """The environment describes itself in up to a minute; a drain cannot wait that long."""
    checked, described = list[object](), threading.Event()

    def check(python: object) -> None:
        checked.append(python)
        if not described.wait(10) or python == "/bad/bin/python":
            raise UsageError("engine.python is bad", "python -m venv")

    async with bed_of(check_python=check) as bed:
        new = {"python": "/new/bin/python"}
        ordered = asyncio.create_task(bed.gives(Rolling, engine_args=new))
        try:
            async with asyncio.timeout(5):
                while not checked:
                    await asyncio.sleep(0.01)
            await bed.does(Drain)
            assert not ordered.done()
        finally:
            described.set()
        assert (await ordered).status_code == 200
        order = bed.controller.rolling.order
        assert (order.engine.python, checked) == ("/new/bin/python", ["/new/bin/python"])
        assert await bed.refused(Rolling, engine_args=new) == (409, "rolling")
        assert len(checked) == 1, "the order is refused before the environment is asked"
        await bed.does(StopRolling)
        bad = {"python": "/bad/bin/python"}
        for dry_run in (True, False):
            found = await bed.refused(Rolling, engine_args=bad, dry_run=dry_run)
            assert found == (400, "bad_setting")


async def test_the_interpreter_of_the_cluster_s_start_is_no_change() -> None:
    """Its processes do not name it, so that a spec with it would have them replaced for ever."""
    started = Settings(engine={"python": "/env/bin/python"})
    async with bed_of(settings=started) as bed:
        same = {"python": "/env/bin/python"}
        plan = await bed.does(Rolling, dry_run=True, engine_args=same)
        assert (plan.engine_args, plan.changes_engine) == ({}, False)
        keeper = bed.controller.keeper
        changed = EngineChange(1, {"python": "/other/bin/python", "max_num_seqs": 4})
        keeper.change(replace(keeper.spec, revision=1, engine=changed))
        await bed.does(Rolling, engine_args=same)
        assert bed.controller.rolling.order.engine == EngineChange(2, {"max_num_seqs": 4})


# -- settings -----------------------------------------------------------------------------


async def sets(bed: Bed, changes: dict[str, Any], **how: Any) -> SettingChanges:
    return await bed.does(SetSettings, changes=changes, **how)


async def listed(bed: Bed) -> SettingList:
    return await bed.get("settings", SettingList)


def told(bed: Bed, member_id: str, kind: Any = MoveLimitsSet) -> list[Any]:
    return bed.mailbox.sent_to(f"mem://{member_id}", kind)


async def test_settings_are_listed_with_their_origin_and_bounds() -> None:
    started = Settings.model_validate({"migration": {"max_moves": 7, "max_bytes_per_s": 3.0}})
    async with bed_of(1, settings=started) as bed:
        await sets(bed, {"migration.max_bytes_per_s": 4})
        found = await listed(bed)
    assert found.revision == 1
    settings = {each.key: each for each in found.settings}
    assert settings.keys() == live_settings(started).keys()
    for key, value, origin in (
        ("migration.max_moves", 7, "start"),
        ("migration.max_bytes_per_s", 4.0, "set"),
        ("migration.enabled", True, "default"),
    ):
        assert (settings[key].value, settings[key].origin) == (value, origin)
    assert settings["migration.max_moves"].allowed == "0 to 1024"


async def test_a_change_reaches_every_instance_and_names_the_value_before(bed: Bed) -> None:
    changes = {"migration.max_moves": 2, "migration.max_bytes_per_s": 5_000_000}
    for _ in range(2):  # the answer to the first was lost
        found = await sets(bed, changes, if_revision=0)
        assert found.revision == bed.revision == 1
    assert found.changes == ()
    for instance_id in ("i-0", "i-1"):
        assert told(bed, instance_id) == [MoveLimitsSet(4, None), MoveLimitsSet(2, 5e6)]
    back = await sets(bed, {"migration.max_bytes_per_s": 0})
    assert [(each.previous, each.value) for each in back.changes] == [(5e6, 0.0)]
    assert told(bed, "i-0")[-1] == MoveLimitsSet(2, None)
    entries = bed.audited()
    assert [each["target"] for each in entries[:4]] == [*changes] * 2
    assert len({each["cause_id"] for each in entries[:4]}) == 1


async def test_each_setting_reaches_whom_it_concerns(bed: Bed) -> None:
    changes = {
        "migration.max_moves": 3,
        "migration.max_moves_per_minute": 7,
        "scheduler.status_interval_s": 0.5,
        "scheduler.step_time_s": 0.03,
        "priority.high.target_load_tokens": 320,
        "control.max_events": 2,
    }
    await sets(bed, changes)
    moves, rescheduler = bed.controller.operator_moves.machine, bed.controller.rescheduler
    assert (moves.max_moves, rescheduler.config.max_moves_per_minute) == (3, 7)
    for levels in (moves.levels, rescheduler.levels, (await bed.status()).levels):
        assert [level.target_load_tokens for level in levels] == [None, 320]
    assert told(bed, "i-1", StatusPushSet)[-1] == StatusPushSet(0.5)
    assert told(bed, "i-1", StepTimeSet)[-1] == StepTimeSet(StepLimit(0.03))
    assert len(await bed.events()) == 2


async def test_a_dry_run_says_which_instances_would_send_and_take_requests(bed: Bed) -> None:
    """According to the present statuses: i-0 has 50 free blocks for 10 requests, which is 80
    steps."""
    bed.cluster.report("i-0", num_free_blocks=50, num_running=10)
    bed.cluster.report("i-1", num_free_blocks=99, num_running=1)
    thresholds = {"migration.source_below_steps": 100, "migration.destination_above_steps": 2000}
    found = await sets(bed, thresholds, dry_run=True)
    assert [(each.freeness_steps, each.now, each.then) for each in found.roles[:2]] == [
        (80.0, "destination", "source"),
        (1584.0, "destination", "neither"),
    ]
    assert (await sets(bed, {"migration.max_moves_per_minute": 1}, dry_run=True)).roles == ()


@pytest.mark.parametrize(
    ("key", "value"), [("scheduler.policy", "best"), ("migration.max_bytes_per_s", float("inf"))]
)
async def test_all_settings_of_an_order_change_or_none(bed: Bed, key: str, value: Any) -> None:
    changes = {"migration.max_moves": 2, key: value}
    status, code, message = await bed.refusal(SetSettings, changes=changes)
    assert (status, code) == (400, "bad_setting")
    assert message.startswith(key)
    assert (bed.controller.live.rescheduling.max_moves, bed.revision) == (4, 0)


async def test_an_outcome_that_cannot_be_recorded_any_more_is_no_failure(bed: Bed) -> None:
    write_all = bed.listener.audit.write_all

    def fills_up(*what: Any, outcome: str, **more: Any) -> None:
        if outcome != "begun":
            raise LlumctlError("cannot write the audit log")
        write_all(*what, outcome=outcome, **more)

    bed.listener.audit.write_all = fills_up
    assert (await sets(bed, {"migration.max_moves": 2})).revision == 1
    assert bed.controller.live.rescheduling.max_moves == 2
    assert (await bed.done())[0].why_not == "it is not over"
