"""Drain, undrain, evacuate, restart and scale on the control API: what is special in each."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.api.operations.on_cluster import Rolling, Scale
from controller.api.operations.on_instances import (
    Drain,
    DrainList,
    DrainReport,
    Evacuate,
    Restart,
    Undrain,
)
from controller.core.migration.refusals import MoveRefusal
from controller.ports.processes import LauncherLoss
from controller.runtime.messages.members import DrainSet
from tests.unit.control_bed import AnyOrder, Bed, bed_of


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with bed_of() as found:
        yield found


async def drains(bed: Bed) -> tuple[DrainReport, ...]:
    return (await bed.get("drains", DrainList)).drains


async def only_i_0_serves(bed: Bed) -> None:
    for other in ("i-1", "i-2"):
        await bed.does(Drain, other)


async def changed_by(bed: Bed, change: int, **body: Any) -> Any:
    """A scale by a change is ordered as the resulting number."""
    return await bed.does(Scale, target=bed.controller.scaling.num_planned + change, **body)


# -- drain --------------------------------------------------------------------------------


async def test_a_drain_begins_and_says_how_far_it_is(bed: Bed) -> None:
    before_s = time.time()
    found = await bed.does(Drain, deadline_s=60, on_deadline="abort", reason="a fan")
    assert (found.instance_id, found.state, found.safe_to_delete) == ("i-0", "draining", False)
    assert (found.num_requests_left, found.num_moving, found.num_moved) == (1, 0, 0)
    assert (found.cannot_move, found.estimate_s, found.plan) == ((), None, ())
    assert found.deadline_s is not None
    assert before_s + 60 <= found.deadline_s <= time.time() + 60
    assert (found.on_deadline, found.reason, found.dry_run) == ("abort", "a fan", False)
    assert found.actor.startswith("someone from ")
    assert (found.revision, found.changes, found.removes_instance) == (1, True, False)
    assert bed.mailbox.sent_to("mem://i-0", DrainSet)[-1] == DrainSet(True)
    assert await drains(bed) == (found.model_copy(update={"changes": False}),)
    begun = bed.audited()[0]
    assert begun["action"] == "drain i-0 within 1m00s, then abort"
    assert begun["cause_id"] == found.drain_id
    of_drain = [e.kind for e in await bed.events() if e.cause_id == found.drain_id]
    assert of_drain == ["drain_started", "operator"]
    status = await bed.status()
    instance, other, _ = status.instances
    assert (status.state, status.revision) == ("ready", 1)
    assert (instance.state, instance.freeness_steps, other.drain) == ("draining", None, None)
    shown = instance.drain
    assert shown is not None
    assert (shown.drain_id, shown.deadline_s) == (found.drain_id, found.deadline_s)
    assert (shown.num_requests_left, shown.safe_to_delete, shown.removes) == (1, False, False)


async def test_a_dry_run_says_where_each_request_would_go(bed: Bed) -> None:
    bed.cluster.report("i-1", num_running=3, num_free_blocks=50)
    found = await bed.does(Drain, dry_run=True, deadline_s=60)
    (planned,) = found.plan
    assert (planned.request_id, planned.client_id) == ("r-1", "cmpl-1")
    assert (planned.num_tokens, planned.num_blocks) == (153, 10)
    assert (planned.to_instance_id, planned.code, planned.why) == ("i-2", "", "")
    assert (found.state, found.drain_id, found.revision) == ("active", "", 0)


@pytest.mark.parametrize(
    ("load", "code", "why"),
    [
        ({"num_free_blocks": 9}, "no_blocks", "no instance has 10 free blocks"),
        (
            {"num_running": 4, "max_num_running": 4},
            "no_slot",
            "every instance with room for it has a full batch",
        ),
        ({"draining": True}, "no_destination", "no other instance may take requests"),
        (
            {"num_free_blocks": 40, "num_running": 20},
            "too_busy",
            "no instance with room for it is free enough",
        ),
    ],
)
async def test_why_no_other_instance_takes_a_request(
    bed: Bed, load: dict[str, Any], code: str, why: str
) -> None:
    for instance_id in ("i-1", "i-2"):
        bed.cluster.report(instance_id, **load)
    force = code == "no_destination"
    (planned,) = (await bed.does(Drain, dry_run=True, force=force)).plan
    assert (planned.to_instance_id, planned.code, planned.why) == (None, code, why)
    found = await bed.does(Drain, force=force)
    (stays,) = found.cannot_move
    assert (stays.request_id, stays.client_id) == ("r-1", "cmpl-1")
    assert (stays.code, stays.why, found.estimate_s) == (code, why, None)


async def test_what_the_source_says_of_a_request_counts_first(bed: Bed) -> None:
    bed.source.refusals["r-1"] = str(MoveRefusal.MULTIMODAL)
    (stays,) = (await bed.does(Drain, dry_run=True)).cannot_move
    assert (stays.code, stays.why) == ("multimodal", "it has multimodal input")
    bed.source.refusals["r-1"] = str(MoveRefusal.MOVING)
    assert (await bed.does(Drain, dry_run=True)).cannot_move == (), "it is on its way"


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
    await only_i_0_serves(bed)
    for dry_run in (True, False):
        refused = await bed.gives(row, dry_run=dry_run)
        assert (refused.status_code, refused.json()["code"]) == (409, "last_instance")
        assert refused.json()["hint"] == f"llumctl scale +1      or      llumctl {despite}"
    assert (await bed.does(row, force=True)).state == "draining"


async def test_a_second_drain_keeps_the_first_and_has_its_own_deadline(bed: Bed) -> None:
    first = await bed.does(Drain, reason="a fan")
    assert (await bed.does(Drain, dry_run=True, reason="two fans")).changes
    second = await bed.does(Drain, deadline_s=600, reason="later")
    assert (second.drain_id, second.reason, second.revision) == (first.drain_id, "later", 2)
    assert (second.deadline_s or 0.0) > time.time() + 500
    assert (await bed.done())[0].why_not == "it cannot be undone", "a drain was there before"


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
    at_once, most = 0, 0
    ask = bed.controller.drain_forecasts.of

    async def counted(*args: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await ask(*args)
        finally:
            at_once -= 1

    bed.mailbox.engine_state.clear()
    bed.controller.drain_forecasts.of = counted

    async def scaled(**how: Any) -> tuple[DrainReport, ...]:
        found: tuple[DrainReport, ...] = (await changed_by(bed, -2, **how)).draining
        return found

    for look in (lambda: scaled(dry_run=True), scaled, lambda: drains(bed)):
        most = 0
        found = await look()
        assert len(found) == most == 2
        assert {(each.silent, each.estimate_s) for each in found} == {(("f-0",), None)}


# -- undrain and evacuate ------------------------------------------------------------------


async def test_undrain_takes_a_drain_back(bed: Bed) -> None:
    await bed.does(Drain)
    planned = await bed.does(Undrain, dry_run=True)
    assert (planned.state, planned.changes) == ("draining", True)
    found = await bed.does(Undrain)
    assert (found.state, found.drain_id, found.changes) == ("active", "", True)
    assert (found.num_requests_left, found.revision) == (1, 2)
    assert bed.mailbox.sent_to("mem://i-0", DrainSet)[-1] == DrainSet(False)


async def test_a_dry_run_does_not_keep_others_waiting(bed: Bed) -> None:
    """Although the frontends, which it asks, do not answer for a while."""
    await bed.does(Drain)
    asked = asyncio.Event()

    async def silent(*_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    ask, bed.controller.drain_forecasts.of = bed.controller.drain_forecasts.of, silent
    looking = asyncio.create_task(bed.does(Undrain, dry_run=True))
    async with asyncio.timeout(10):
        await asked.wait()
        bed.controller.drain_forecasts.of = ask
        assert (await bed.does(Undrain)).state == "active"
    looking.cancel()


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
    planned = await bed.does(Restart, dry_run=True)
    assert (planned.changes, planned.restarts_instance) == (True, True)
    assert [(each.request_id, each.to_instance_id) for each in planned.plan] == [("r-1", "i-1")]
    found = await bed.does(Restart, reason="a leak", deadline_s=60)
    assert (found.state, found.restarts_instance, found.changes) == ("draining", True, True)
    assert (found.incarnation, found.pid, found.safe_to_delete) == (1, 77, False)
    assert (found.on_deadline, found.num_requests_left) == ("abort", 1)
    claim = bed.controller.keeper.spec.drains["i-0"].restart
    assert claim is not None
    assert (claim.nonce, claim.at_once) == ("a", False)
    assert bed.audited()[0]["action"] == "restart i-0 within 1m00s, then abort"
    shown = (await bed.status()).instances[0].drain
    assert shown is not None
    assert (shown.drain_id, shown.restarts, shown.safe_to_delete) == (found.drain_id, True, False)
    assert (await bed.does(Drain)).changes, "it is drained after its restart"
    assert bed.cluster.launcher.restarted == []


async def test_at_once_the_process_ends_and_the_next_one_ends_the_restart(bed: Bed) -> None:
    (planned,) = (await bed.does(Restart, dry_run=True, now=True)).plan
    assert (planned.code, planned.to_instance_id) == ("replays", None)
    assert "it would be replayed elsewhere" in planned.why
    assert (await bed.does(Restart, reason="a leak")).changes
    assert (await bed.does(Restart, reason="a leak", now=True)).changes
    bed.controller.drains.tick()
    assert bed.cluster.launcher.restarted == ["i-0"]
    (report,) = await drains(bed)
    assert (report.state, report.safe_to_delete) == ("restarting", False)
    bed.mailbox.lose("mem://i-0")
    bed.cluster.hello("i-0", nonce="b")
    bed.cluster.hello("i-0", nonce="b", incarnation=2)
    bed.controller.drains.tick()
    assert await drains(bed) == ()
    assert bed.outcomes()[-1] == ("restart i-0 at once", "done")
    assert (await bed.done())[0].why_not == "it cannot be undone"


async def test_which_instances_are_restarted(bed: Bed) -> None:
    await only_i_0_serves(bed)
    assert (await bed.does(Restart, dry_run=True, now=True)).changes
    bed.cluster.hello("i-0", phase="failed", incarnation=1)
    assert (await bed.does(Restart, dry_run=True)).changes, "it takes no serving instance away"
    (leaving,) = (await changed_by(bed, -1)).draining
    assert await bed.refused(Restart, leaving.instance_id) == (409, "leaving")
    await changed_by(bed, 2)
    assert await bed.refused(Restart, "i-3") == (409, "not_started")


async def test_without_rays_head_nothing_is_restarted_and_the_status_says_so(bed: Bed) -> None:
    bed.cluster.launcher.lost = LauncherLoss("Ray's head at h:1 does not answer", 9.0, 86400.0)
    for row in (Restart, Rolling):
        assert await bed.refused(row, force=True) == (503, "ray_lost")
    status = await bed.status()
    assert (status.state, status.detail) == (
        "degraded",
        "Ray's head at h:1 does not answer (9 s): what runs goes on, but no process is started or"
        " ended, and after 24 h without it all processes end; when clients can wait: llumctl down,"
        " then llumctl up",
    )


# -- scale --------------------------------------------------------------------------------


async def test_scale_out_and_in(bed: Bed) -> None:
    grown = await bed.does(Scale, target=4)
    assert (grown.previous, grown.target, grown.added) == (3, 4, ("i-3",))
    assert (grown.draining, grown.undrained, grown.revision) == ((), (), 1)
    assert bed.cluster.launcher.launched[-1] == "i-3"
    status = await bed.status()
    assert (status.state, status.detail) == ("ready", "i-3 is starting")
    shrunk = await bed.does(Scale, target=2, deadline_s=30, on_deadline="abort", reason="night")
    assert (shrunk.previous, shrunk.target) == (4, 2)
    going = {each.instance_id: each for each in shrunk.draining}
    assert sorted(going) == ["i-1", "i-3"], "one that does not serve, and one without requests"
    assert going["i-1"].removes_instance
    assert (going["i-1"].on_deadline, going["i-1"].reason) == ("abort", "night")
    back = await bed.does(Scale, target=3)
    assert (back.previous, back.undrained, back.added) == (2, ("i-1",), ())
    assert [action for action, outcome in bed.outcomes() if outcome == "begun"] == [
        "scale 3 to 4",
        "scale 4 to 2",
        "remove i-3 once drained within 30s, then abort",
        "remove i-1 once drained within 30s, then abort",
        "scale 2 to 3",
        "undrain i-1",
    ]


async def test_an_instance_that_could_not_be_launched_yet_is_starting(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waits for the instance must not be told that it does not exist."""

    def fails(_instance_id: str) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(bed.cluster.launcher, "launch_instance", fails)
        assert (await bed.does(Scale, target=4)).added == ("i-3",)
        new = (await bed.status()).instances[-1]
        assert (new.id, new.state, new.incarnation) == ("i-3", "starting", 0)
        assert new.detail == "could not be launched; it is tried again"
    bed.cluster.now_s += 1.0
    bed.controller.scaling.launch_missing()
    assert [each.id for each in (await bed.status()).instances] == ["i-0", "i-1", "i-2", "i-3"]
    await bed.does(Scale, target=3)
    bed.controller.terminate("i-3")
    assert "i-3" not in [each.id for each in (await bed.status()).instances], "it is on its way out"


async def test_a_dry_run_of_scale_names_everything(bed: Bed) -> None:
    out = await bed.does(Scale, change=2, dry_run=True)
    assert (out.previous, out.target, out.added) == (3, 5, ("i-3", "i-4"))
    bed.cluster.report("i-2", num_running=4, num_free_blocks=40)
    bed.cluster.report("i-1", num_running=5, num_free_blocks=30)
    first, second = (await bed.does(Scale, change=-2, dry_run=True)).draining
    assert (first.instance_id, second.instance_id) == ("i-0", "i-2")
    assert first.removes_instance
    assert [p.to_instance_id for p in first.plan] == ["i-1"], "not the other one that goes"
    status, code, message = await bed.refusal(Scale, change=1)
    assert (status, code) == (400, "bad_request")
    assert "ask for the target of the plan" in message


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
    (going,) = (await changed_by(bed, -1)).draining
    targets = [entry["target"] for entry in bed.audited() if entry["outcome"] == "done"]
    assert targets == ["the cluster", going.instance_id]


async def test_a_plan_that_cannot_be_carried_out_any_more_is_refused(bed: Bed) -> None:
    (going,) = (await changed_by(bed, -1)).draining
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


# -- revisions and keys --------------------------------------------------------------------


async def test_of_several_who_act_on_one_revision_one_is_obeyed(bed: Bed) -> None:
    answers = await asyncio.gather(
        bed.gives(Drain, if_revision=0),
        bed.gives(Scale, target=4, if_revision=0),
        bed.gives(Drain, "i-1", if_revision=0),
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    told = next(answer.json() for answer in answers if answer.status_code == 409)
    assert "revision 0 was looked at, and 1 is the present one" in told["message"]
    assert (told["code"], told["hint"]) == ("revision_conflict", "llumctl status")
    assert bed.revision == 1


async def test_a_key_is_for_one_path_and_refusals_are_repeated_too(bed: Bed) -> None:
    keyed = {"headers": {"Idempotency-Key": "k"}}
    answers = [await bed.gives(Drain, **keyed, if_revision=9) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [409, 409]
    assert answers[0].content == answers[1].content == (await bed.answered("k")).content
    assert (await bed.answered("k")).status_code == 409
    assert await bed.refused(Undrain, **keyed, if_revision=9) == (409, "key_reused")


async def test_a_call_under_way_has_no_answer_yet(bed: Bed) -> None:
    told: list[tuple[int, str]] = []

    async def ask() -> None:
        for key in ("k", "l"):
            answer = await bed.answered(key)
            told.append((answer.status_code, answer.json()["code"]))

    bed.while_recording(ask)
    await bed.gives(Drain, headers={"Idempotency-Key": "k"})
    assert told == [(409, "under_way"), (404, "no_such_call")]


async def test_old_keys_are_forgotten(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.adapters.http.calls.MAX_KEPT", 2)
    for key in "abc":
        await bed.gives(Drain, headers={"Idempotency-Key": key}, reason="a fan")
    refusals = [
        await bed.refused(Drain, headers={"Idempotency-Key": key}, reason="two fans")
        for key in "ba"
    ]
    assert refusals == [(409, "key_reused"), (200, "")]
