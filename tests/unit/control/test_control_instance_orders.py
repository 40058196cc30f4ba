"""Drain, undrain, evacuate, restart and cordon: what is special in each on the control API, and the
commands `cordon` and `uncordon`."""

import json
import time
from typing import Any

import pytest

from controller.api.errors import EXIT_REFUSED
from controller.api.operations.on_cluster import Rolling, Scale
from controller.api.operations.on_instances import (
    Cordon,
    Drain,
    DrainList,
    DrainReport,
    Evacuate,
    Restart,
    Uncordon,
    Undrain,
    cordoned,
)
from controller.api.operations.on_requests import Migrate
from controller.api.text.status_words import MOVES_ONLY
from controller.core.load.closed import Closed
from controller.core.migration.refusals import MoveRefusal
from controller.ports.processes import LauncherLoss
from controller.runtime.messages.members import DrainSet
from tests.unit.control.control_bed import AnyOrder, Bed, llumctl

Captured = pytest.CaptureFixture[str]


async def drains(bed: Bed) -> tuple[DrainReport, ...]:
    return (await bed.get("drains", DrainList)).drains


async def changed_by(bed: Bed, change: int, **body: Any) -> Any:
    """A scale by a change is ordered as the resulting number."""
    return await bed.does(Scale, target=bed.controller.scaling.num_planned + change, **body)


# -- drain --------------------------------------------------------------------------------


async def test_a_drain_begins_says_how_far_it_is_and_is_taken_back(bed: Bed) -> None:
    before_s = time.time()
    found = await bed.does(Drain, deadline_s=60, on_deadline="abort", reason="a fan")
    assert (found.instance_id, found.state, found.safe_to_delete) == ("i-0", "draining", False)
    assert (found.num_requests_left, found.num_moving, found.num_moved) == (1, 0, 0)
    assert (found.cannot_move, found.estimate_s, found.plan) == ((), None, ())
    assert before_s + 60 <= found.deadline_s <= time.time() + 60
    assert (found.on_deadline, found.reason, found.dry_run) == ("abort", "a fan", False)
    assert (found.revision, found.changes, found.removes_instance) == (1, True, False)
    assert await drains(bed) == (found.model_copy(update={"changes": False}),)
    assert bed.audited()[0]["action"] == "drain i-0 within 1m00s, then abort"
    of_drain = [e.kind for e in await bed.events() if e.cause_id == found.drain_id]
    assert of_drain == ["drain_started", "operator"]
    instance, other, _ = (await bed.status()).instances
    assert (instance.state, instance.freeness_steps, other.drain) == ("draining", None, None)
    shown = instance.drain
    assert (shown.drain_id, shown.deadline_s) == (found.drain_id, found.deadline_s)
    assert (shown.num_requests_left, shown.safe_to_delete, shown.removes) == (1, False, False)
    back = await bed.does(Undrain)
    assert (back.state, back.drain_id, back.changes) == ("active", "", True)
    assert (back.num_requests_left, back.revision) == (1, 2)


async def test_where_a_request_would_go(bed: Bed) -> None:
    bed.cluster.report("i-1", num_running=3, num_free_blocks=50)
    found = await bed.does(Drain, dry_run=True, deadline_s=60)
    (planned,) = found.plan
    assert (planned.request_id, planned.client_id) == ("r-1", "cmpl-1")
    assert (planned.num_tokens, planned.num_blocks) == (153, 10)
    assert (planned.to_instance_id, planned.code, planned.why) == ("i-2", "", "")
    assert (found.state, found.drain_id, found.revision) == ("active", "", 0)


async def test_why_a_request_stays(bed: Bed) -> None:
    for load, code, why in (
        ({"num_running": 4, "max_num_running": 4}, "no_slot", "full batch"),
        ({"num_free_blocks": 40, "num_running": 20}, "too_busy", "free enough"),
        ({"draining": True}, "no_destination", "no other instance"),
        ({"num_free_blocks": 9}, "no_blocks", "10 free blocks"),
    ):
        for instance_id in ("i-1", "i-2"):
            bed.cluster.report(instance_id, **load)
        (planned,) = (await bed.does(Drain, dry_run=True, force=True)).plan
        assert (planned.to_instance_id, planned.code) == (None, code)
        assert why in planned.why
    (stays,) = (await bed.does(Drain)).cannot_move
    assert (stays.request_id, stays.client_id, stays.code) == ("r-1", "cmpl-1", "no_blocks")
    bed.source.refusals["r-1"] = str(MoveRefusal.MULTIMODAL)
    (stays,) = (await drains(bed))[0].cannot_move
    assert (stays.code, stays.why) == ("multimodal", "it has multimodal input")
    bed.source.refusals["r-1"] = str(MoveRefusal.MOVING)
    bed.cluster.now_s += 2.0  # they are asked once a second
    assert (await drains(bed))[0].cannot_move == (), "it is on its way"


@pytest.mark.parametrize(
    ("row", "despite"),
    [
        (Drain, "drain i-0 --force"),
        (Restart, "restart i-0 --now"),
        (Evacuate, "drain i-0 --remove --force"),
    ],
)
async def test_the_last_instance_that_serves_needs_force(
    bed: Bed, row: AnyOrder, despite: str
) -> None:
    for other in ("i-1", "i-2"):
        await bed.does(Drain, other)
    for dry_run in (True, False):
        refused = await bed.gives(row, dry_run=dry_run)
        assert (refused.status_code, refused.json()["code"]) == (409, "last_instance")
        assert refused.json()["hint"].endswith(f"llumctl {despite}")
    if row is Restart:
        assert (await bed.does(row, dry_run=True, now=True)).changes
        assert (await bed.does(row, dry_run=True, force=True)).changes
        bed.cluster.hello("i-0", phase="failed", incarnation=1)
        assert (await bed.does(row, dry_run=True)).changes, "it takes no serving instance away"
    else:
        assert (await bed.does(row, force=True)).state == "draining"


async def test_a_second_drain_keeps_the_first_which_is_not_undone(bed: Bed) -> None:
    first = await bed.does(Drain, reason="a fan")
    second = await bed.does(Drain, deadline_s=600, reason="later")
    assert (second.drain_id, second.reason, second.revision) == (first.drain_id, "later", 2)
    assert (await bed.done())[0].why_not == "no order takes it back"


async def test_instances_of_one_command_are_checked_and_planned_together(bed: Bed) -> None:
    (planned,) = (await bed.does(Drain, dry_run=True, with_ids=["i-1"])).plan
    assert planned.to_instance_id == "i-2", "the other one is no destination"
    assert await bed.refused(Drain, with_ids=["i-1", "i-2"]) == (409, "last_instance")
    assert await bed.refused(Drain, with_ids=["i-9"]) == (404, "no_such_instance")
    assert await drains(bed) == ()
    assert (await bed.does(Drain, with_ids=["i-1"])).state == "draining"
    assert (await bed.does(Drain, "i-1", with_ids=["i-0"])).state == "draining"


async def test_a_report_has_the_revision_that_its_order_left(bed: Bed) -> None:
    """A client that goes on from the report is told what others change while the frontends are
    asked."""
    ask, keeper = bed.controller.drain_forecasts.of, bed.controller.keeper

    async def meanwhile(*args: Any) -> Any:
        keeper.change(keeper.spec.with_settings({}))
        return await ask(*args)

    bed.controller.drain_forecasts.of = meanwhile
    assert ((await bed.does(Drain, dry_run=True)).revision, bed.revision) == (0, 1)
    assert ((await bed.does(Drain)).revision, bed.revision) == (2, 3)
    assert (await changed_by(bed, -1, dry_run=True)).revision == 3
    assert (await changed_by(bed, -1)).revision == bed.revision - 1


async def test_silent_frontends_are_named_and_waited_for_once(bed: Bed) -> None:
    """Otherwise steering many instances would take longer than a client waits."""
    at_once: list[int] = []
    ask, asking = bed.controller.drain_forecasts.of, set[object]()

    async def counted(*args: Any) -> Any:
        me = object()
        asking.add(me)
        at_once.append(len(asking))
        try:
            return await ask(*args)
        finally:
            asking.discard(me)

    bed.mailbox.engine_state.clear()
    bed.controller.drain_forecasts.of = counted
    for how in ({"dry_run": True}, {}):
        at_once.clear()
        found = (await changed_by(bed, -2, **how)).draining
        assert len(found) == max(at_once) == 2
        assert {(each.silent, each.estimate_s) for each in found} == {(("f-0",), None)}


# -- undrain and evacuate -----------------------------------------------------------------


async def test_an_evacuation_is_planned_and_begun(bed: Bed) -> None:
    for within_s, departure in ((20, ("i-1", "")), (0.2, (None, "too_late"))):
        plan = await bed.does(Evacuate, within_s=within_s, dry_run=True)
        assert (plan.removes_instance, plan.evacuates_instance) == (True, True)
        assert [(each.to_instance_id, each.code) for each in plan.plan] == [departure]
    begun = await bed.does(Evacuate, within_s=20)
    assert (begun.state, begun.evacuates_instance, begun.changes) == ("draining", True, True)
    assert begun.deadline_s == pytest.approx(time.time() + 20, abs=10)
    told = bed.mailbox.sent_to("mem://i-0", DrainSet)[-1]
    assert told.leaves_in_s == pytest.approx(20, abs=5)


# -- restart ------------------------------------------------------------------------------


async def test_a_restart_begins_by_emptying_the_instance(bed: Bed) -> None:
    (at_once,) = (await bed.does(Restart, dry_run=True, now=True)).plan
    assert (at_once.code, at_once.to_instance_id) == ("replays", None)
    planned = await bed.does(Restart, dry_run=True)
    assert [(each.request_id, each.to_instance_id) for each in planned.plan] == [("r-1", "i-1")]
    found = await bed.does(Restart, reason="a leak", deadline_s=60)
    assert (found.state, found.restarts_instance, found.changes) == ("draining", True, True)
    assert (found.incarnation, found.pid, found.safe_to_delete) == (1, 77, False)
    assert (found.on_deadline, found.num_requests_left) == ("abort", 1)
    claim = bed.controller.keeper.spec.drains["i-0"].restart
    assert (claim.nonce, claim.at_once) == ("a", False)
    shown = (await bed.status()).instances[0].drain
    assert (shown.drain_id, shown.restarts, shown.safe_to_delete) == (found.drain_id, True, False)
    assert (await bed.does(Drain)).changes, "it is drained after its restart"
    assert (await bed.does(Restart, reason="a leak", now=True)).changes
    bed.controller.drains.tick()
    assert bed.cluster.launcher.restarted == ["i-0"]
    (report,) = await drains(bed)
    assert (report.state, report.safe_to_delete) == ("restarting", False)
    (leaving,) = (await changed_by(bed, -1)).draining
    assert await bed.refused(Restart, leaving.instance_id) == (409, "leaving")
    await changed_by(bed, 2)
    assert await bed.refused(Restart, "i-3") == (409, "not_started")


async def test_without_rays_head_nothing_is_restarted_and_the_status_says_so(bed: Bed) -> None:
    bed.cluster.launcher.lost = LauncherLoss("Ray's head at h:1 does not answer", 9.0, 86400.0)
    for row in (Restart, Rolling):
        assert await bed.refused(row, force=True) == (503, "ray_lost")
    status = await bed.status()
    assert status.state == "degraded"
    for part in ("Ray's head at h:1 does not answer (9 s)", "after 24 h", "llumctl down"):
        assert part in status.detail


# -- cordon -------------------------------------------------------------------------------


def marked(bed: Bed) -> set[str]:
    return set(bed.controller.keeper.spec.marked(Closed.CORDONED))


async def test_a_cordon_closes_an_instance_that_goes_on_serving(bed: Bed) -> None:
    plan = await bed.does(Cordon, dry_run=True)
    assert (plan.cordoned, plan.closed_by, plan.changes) == (True, ("cordoned",), True)
    assert (plan.num_requests, plan.revision) == (1, 0)
    made = await bed.does(Cordon, reason="its fan")
    assert (made.cordoned, made.changes, made.reason, made.revision) == (True, True, "its fan", 1)
    assert not bed.controller.scheduler.instances["i-0"].schedulable
    shown = (await bed.status()).instances[0]
    assert (shown.state, shown.closed_by) == ("active", ("cordoned",))
    assert shown.freeness_steps is not None, "it does not drain"
    assert (await bed.does(Drain, "i-1", dry_run=True)).changes, "i-2 would serve"
    back = await bed.does(Uncordon)
    assert (back.cordoned, back.closed_by, back.changes) == (False, (), True)
    await bed.does(Cordon, "i-1")
    status, code, message = await bed.refusal(Migrate, to="i-1", dry_run=True)
    assert (status, code) == (409, "unschedulable")
    assert "it is cordoned" in message
    assert (await bed.does(Migrate, dry_run=True)).to_instance_id == "i-2"


async def test_a_drain_and_its_end_leave_the_cordon(bed: Bed) -> None:
    await bed.does(Cordon)
    await bed.does(Drain)
    assert (await bed.status()).instances[0].closed_by == ("draining", "cordoned")
    planned = await bed.does(Uncordon, dry_run=True)
    assert planned.closed_by == ("draining",)
    assert cordoned(planned) == "i-0: would not be cordoned any more, but still draining"
    await bed.does(Undrain)
    assert bed.controller.keeper.spec.closed == {"i-0": {Closed.CORDONED}}
    await bed.does(Drain)
    back = await bed.does(Uncordon)
    assert cordoned(back) == "i-0: not cordoned any more; it is draining"


async def test_one_command_cordons_all_or_none(bed: Bed, capsys: Captured) -> None:
    for dry in ((), ("--dry-run",)):
        assert await llumctl("cordon", "i-0", "i-1", "i-2", *dry) == EXIT_REFUSED
        assert "without i-0, i-1, i-2 no instance would serve" in capsys.readouterr().err
    assert await llumctl("cordon", "i-0", "i-9") != 0
    assert (marked(bed), bed.revision) == (set(), 0)
    assert await llumctl("cordon", "i-0", "i-1", "i-2", "--force") == 0
    assert marked(bed) == {"i-0", "i-1", "i-2"}


async def test_the_commands_cordon_and_uncordon(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("cordon", "i-0", "i-1", "--dry-run") == 10
    assert "i-0: would be cordoned, would keep its 1 request" in capsys.readouterr().out
    assert await llumctl("cordon", "i-0", "i-1", "-m", "a fan") == 0
    capsys.readouterr()
    assert await llumctl("status") == 0
    assert capsys.readouterr().out.count(" cordoned ") == 2
    assert await llumctl("cordon", "i-0") == 0
    assert "nothing to change" in capsys.readouterr().err
    assert await llumctl("undo", "-y") == 0
    assert marked(bed) == {"i-0"}
    assert await llumctl("uncordon", "i-0", "-o", "json") == 0
    assert '"cordoned": false' in capsys.readouterr().out
    assert await llumctl("undo", "-y") == 0
    assert marked(bed) == {"i-0"}


async def test_uncordon_takes_drains_back_too(bed: Bed, capsys: Captured) -> None:
    for arguments in (("drain", "i-1", "-y", "--detach"), ("cordon", "i-1"), ("cordon", "i-2")):
        assert await llumctl(*arguments) == 0
    assert await llumctl("uncordon", "i-1", "i-2", "--dry-run") == 10
    capsys.readouterr()
    assert await llumctl("uncordon", "i-1", "i-2", "--if-revision", str(bed.revision)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "i-1: drain and cordon taken back, gets new requests again",
        "i-2: gets new requests again",
    ]
    assert (marked(bed), bed.controller.keeper.spec.drains) == (set(), {})
    assert await llumctl("uncordon", "i-1", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drains"] == []
    assert [each["cordoned"] for each in found["cordons"]] == [False]


def test_clients_know_which_reasons_are_about_moves_alone() -> None:
    assert {str(each) for each in Closed if not each.stops_requests} == MOVES_ONLY
