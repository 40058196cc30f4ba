"""Drain, undrain and scale on the control API: what is planned, begun, refused and recorded."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from controller.api.client import ControlClient
from controller.api.errors import ConflictError, NotFoundError, RefusedError
from controller.api.operations.on_cluster import Scale, ScaleReport, ScaleRequest
from controller.api.operations.on_instances import (
    Drain,
    DrainList,
    DrainReport,
    DrainRequest,
    Undrain,
    UndrainRequest,
)
from controller.api.wire.status import ClusterState, ClusterStatus
from controller.core.migration.refusals import MoveRefusal
from controller.ports.processes import LauncherLoss
from controller.runtime.messages.members import DrainSet
from tests.unit.control_support import AUTHORIZED, Listener, listening
from tests.unit.move_support import Source, serve_running_request


class Bed:
    """r-1 runs on i-0 with 153 tokens; i-1 and i-2 are idle with 100 blocks."""

    def __init__(self, listener: Listener, client: httpx.AsyncClient) -> None:
        self.listener, self.client = listener, client
        self.cluster = listener.cluster
        self.controller = listener.cluster.controller
        self.book = serve_running_request(listener)
        self.source = Source(listener, self.book)
        self.cluster.report("i-0", num_running=1, num_free_blocks=90)

    async def posts(self, path: str, **body: Any) -> httpx.Response:
        """A scale by a change is ordered as the resulting number."""
        if "change" in body and not body.get("dry_run"):
            body["target"] = self.controller.scaling.num_planned + body.pop("change")
        return await self.client.post(f"/v1/{path}", headers=AUTHORIZED, json=body)

    async def drain(self, instance_id: str = "i-0", **body: Any) -> DrainReport:
        answer = await self.posts(f"instances/{instance_id}/drain", **body)
        assert answer.status_code == 200, answer.text
        return DrainReport.model_validate_json(answer.content)

    async def undrain(self, instance_id: str = "i-0", **body: Any) -> DrainReport:
        answer = await self.posts(f"instances/{instance_id}/undrain", **body)
        assert answer.status_code == 200, answer.text
        return DrainReport.model_validate_json(answer.content)

    async def scale(self, **body: Any) -> ScaleReport:
        answer = await self.posts("scale", **body)
        assert answer.status_code == 200, answer.text
        return ScaleReport.model_validate_json(answer.content)

    async def refused(self, path: str, **body: Any) -> tuple[int, str]:
        answer = await self.posts(path, **body)
        return answer.status_code, answer.json()["code"]

    async def answers(self, key: str) -> httpx.Response:
        return await self.client.get(f"/v1/answers/{key}", headers=AUTHORIZED)

    async def told(self, key: str) -> tuple[int, str]:
        """The outcome of the call with that key: the status, and the code of a refusal."""
        answer = await self.answers(key)
        return answer.status_code, answer.json().get("code", "")

    async def drains(self) -> tuple[DrainReport, ...]:
        answer = await self.client.get("/v1/drains", headers=AUTHORIZED)
        return DrainList.model_validate_json(answer.content).drains

    async def status(self) -> ClusterStatus:
        answer = await self.client.get("/v1/status", headers=AUTHORIZED)
        return ClusterStatus.model_validate_json(answer.content)

    def while_recording(self, action: str, happen: Callable[[], None]) -> None:
        """Lets this happen in the controller while an action is written to the audit log."""
        write, loop = self.listener.audit.write_all, asyncio.get_running_loop()

        def slow(deeds: tuple[tuple[str, str], ...], *, outcome: str, **what: Any) -> None:
            write(deeds, outcome=outcome, **what)
            if outcome == "begun" and deeds[0][0] == action:
                asyncio.run_coroutine_threadsafe(_run(happen), loop).result(10)

        self.listener.audit.write_all = slow

    def ends_by_itself(self, instance_id: str) -> None:
        """Ends the drain as its deadline would."""
        self.controller.drains.end(instance_id, "its deadline passed")

    @property
    def revision(self) -> int:
        return self.controller.keeper.spec.revision

    def audited(self) -> list[dict[str, Any]]:
        if not self.listener.audit.path.exists():
            return []
        return [json.loads(line) for line in self.listener.audit.path.read_text().splitlines()]


async def _run(happen: Callable[[], None]) -> None:
    happen()


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.2)
    async with listening(3) as (listener, client):
        yield Bed(listener, client)


# -- evacuate ------------------------------------------------------------------------------


async def test_an_evacuation_is_planned_begun_and_taken_back(bed: Bed) -> None:
    answer = await bed.posts("instances/i-0/evacuate", within_s=20, dry_run=True)
    plan = DrainReport.model_validate_json(answer.content)
    assert (plan.dry_run, plan.removes_instance, plan.evacuates_instance) == (True, True, True)
    assert [(each.to_instance_id, each.code) for each in plan.plan] == [("i-1", "")]
    answer = await bed.posts("instances/i-0/evacuate", within_s=0.2, dry_run=True)
    plan = DrainReport.model_validate_json(answer.content)
    assert [(each.to_instance_id, each.code) for each in plan.plan] == [(None, "too_late")]
    assert bed.revision == 0
    answer = await bed.posts("instances/i-0/evacuate", within_s=20, reason="spot")
    begun = DrainReport.model_validate_json(answer.content)
    assert (begun.state, begun.evacuates_instance, begun.changes) == ("draining", True, True)
    assert begun.deadline_s == pytest.approx(time.time() + 20, abs=10)
    told = bed.cluster.mailbox.sent_to("mem://i-0", DrainSet)[-1]
    assert told.leaves_in_s == pytest.approx(20, abs=5)
    assert [each["action"] for each in bed.audited()] == ["evacuate i-0 within 20s"] * 2
    assert bed.audited()[-1]["undo"]["kind"] == "undrain"
    await bed.undrain()
    assert bed.cluster.mailbox.sent_to("mem://i-0", DrainSet)[-1] == DrainSet(draining=False)


async def test_the_last_instance_is_evacuated_by_force_only(bed: Bed) -> None:
    for each in ("i-1", "i-2"):
        await bed.drain(each)
    assert await bed.refused("instances/i-0/evacuate") == (409, "last_instance")
    assert (await bed.posts("instances/i-0/evacuate", force=True)).status_code == 200
    assert await bed.refused("instances/i-9/evacuate") == (404, "no_such_instance")
    assert (await bed.posts("instances/i-0/evacuate", within_s=0)).status_code == 400


# -- drain --------------------------------------------------------------------------------


async def test_a_drain_begins_and_says_how_far_it_is(bed: Bed) -> None:
    before_s = time.time()
    found = await bed.drain(deadline_s=60, on_deadline="abort", reason="a fan")
    assert (found.instance_id, found.state, found.safe_to_delete) == ("i-0", "draining", False)
    assert (found.num_requests_left, found.num_moving, found.num_moved) == (1, 0, 0)
    assert (found.cannot_move, found.estimate_s, found.plan) == ((), None, ())
    assert found.deadline_s is not None
    assert before_s + 60 <= found.deadline_s <= time.time() + 60
    assert (found.on_deadline, found.reason, found.dry_run) == ("abort", "a fan", False)
    assert found.actor.startswith("someone from ")
    assert (found.revision, bed.revision) == (1, 1)
    assert not found.removes_instance
    (told,) = bed.cluster.mailbox.sent_to("mem://i-0", DrainSet)[-1:]
    assert told == DrainSet(True)
    assert found.changes
    assert await bed.drains() == (found.model_copy(update={"changes": False}),)


async def test_a_drain_is_on_the_record_and_its_events_have_its_cause(bed: Bed) -> None:
    found = await bed.drain(deadline_s=60, reason="a fan")
    begun, done = bed.audited()
    assert (begun["action"], begun["target"]) == ("drain i-0 within 1m00s, then keep", "i-0")
    assert (begun["outcome"], done["outcome"]) == ("begun", "done")
    assert begun["reason"] == done["reason"] == "a fan"
    assert begun["cause_id"] == found.drain_id
    events = [e for _, e in bed.controller.journal.log.after(None, 100).entries]
    of_drain = [e.kind for e in events if e.cause_id == found.drain_id]
    assert of_drain == ["drain_started", "operator"]


async def test_the_status_shows_it(bed: Bed) -> None:
    assert (await bed.status()).revision == 0
    found = await bed.drain(deadline_s=60)
    status = await bed.status()
    assert status.revision == 1
    assert status.state == "ready"
    instance, other = status.instances[0], status.instances[1]
    assert (instance.state, instance.freeness_steps) == ("draining", None)
    assert instance.drain is not None
    assert instance.drain.drain_id == found.drain_id
    assert instance.drain.num_requests_left == 1
    assert instance.drain.deadline_s == found.deadline_s
    assert (instance.drain.safe_to_delete, instance.drain.removes) == (False, False)
    assert other.drain is None


async def test_a_dry_run_says_who_would_go_where_and_changes_nothing(bed: Bed) -> None:
    bed.cluster.report("i-1", num_running=3, num_free_blocks=50)
    found = await bed.drain(dry_run=True, deadline_s=60)
    (planned,) = found.plan
    assert (planned.request_id, planned.client_id) == ("r-1", "cmpl-1")
    assert (planned.num_tokens, planned.num_blocks) == (153, 10)
    assert (planned.to_instance_id, planned.code, planned.why) == ("i-2", "", "")
    assert (found.dry_run, found.state, found.drain_id, found.revision) == (True, "active", "", 0)
    assert (bed.revision, bed.audited(), await bed.drains()) == (0, [], ())


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_cannot_move_is_named(bed: Bed, dry_run: bool) -> None:
    for instance_id in ("i-1", "i-2"):
        bed.cluster.report(instance_id, num_free_blocks=9)
    found = await bed.drain(dry_run=dry_run)
    (stays,) = found.cannot_move
    assert (stays.request_id, stays.client_id, stays.code) == ("r-1", "cmpl-1", "no_blocks")
    assert stays.why == "no instance has 10 free blocks"
    assert found.estimate_s is None
    bed.source.refusals["r-1"] = str(MoveRefusal.MULTIMODAL)
    found = await bed.drain(dry_run=dry_run)
    assert [(s.code, s.why) for s in found.cannot_move] == [
        ("multimodal", "it has multimodal input")
    ]
    bed.source.refusals["r-1"] = str(MoveRefusal.MOVING)
    assert (await bed.drain(dry_run=dry_run)).cannot_move == (), "it is on its way"


async def test_who_is_no_destination_for_the_rescheduler_is_none_in_the_plan(bed: Bed) -> None:
    for instance_id in ("i-1", "i-2"):
        bed.cluster.report(instance_id, num_free_blocks=40, num_running=20)
    (planned,) = (await bed.drain(dry_run=True)).plan
    assert (planned.to_instance_id, planned.code) == (None, "too_busy")
    assert planned.why == "no instance with room for it is free enough"
    bed.cluster.report("i-2", num_free_blocks=70, num_running=20)
    (planned,) = (await bed.drain(dry_run=True)).plan
    assert planned.to_instance_id == "i-2"


async def test_the_last_one_that_serves_needs_force(bed: Bed) -> None:
    await bed.drain("i-1")
    await bed.drain("i-2")
    assert await bed.refused("instances/i-0/drain") == (409, "last_instance")
    assert await bed.refused("instances/i-0/drain", dry_run=True) == (409, "last_instance")
    assert len(await bed.drains()) == 2
    assert (await bed.drain(force=True)).state == "draining"


async def test_drained_twice_is_drained_once_and_the_new_deadline_counts(bed: Bed) -> None:
    first = await bed.drain(deadline_s=60)
    second = await bed.drain(deadline_s=600, reason="later")
    assert second.drain_id == first.drain_id
    assert first.deadline_s is not None
    assert second.deadline_s is not None
    assert second.deadline_s > first.deadline_s + 500
    assert (second.reason, second.revision) == ("later", 2)


async def test_whether_an_order_would_change_a_drain_that_goes_on(bed: Bed) -> None:
    assert (await bed.drain(dry_run=True)).changes
    await bed.drain(reason="a fan")
    assert not (await bed.drain(dry_run=True, reason="a fan")).changes
    assert (await bed.drain(dry_run=True, reason="two fans")).changes
    assert (await bed.drain(dry_run=True, reason="a fan", deadline_s=60)).changes
    await bed.drain(deadline_s=60, reason="a fan")
    assert (await bed.drain(dry_run=True, reason="a fan")).changes, "without a deadline from now on"


async def test_the_same_order_again_changes_nothing_and_leaves_no_trace(bed: Bed) -> None:
    first = await bed.drain(reason="a fan")
    num_audited, events = len(bed.audited()), bed.controller.journal.log.last_position
    again = await bed.drain(reason="a fan")
    assert (again.drain_id, again.revision, again.changes) == (first.drain_id, 1, False)
    assert (again.state, again.num_requests_left) == ("draining", 1)
    assert (bed.revision, len(bed.audited())) == (1, num_audited)
    assert bed.controller.journal.log.last_position == events
    assert await bed.refused("instances/i-0/drain", reason="a fan", if_revision=0) == (
        409,
        "revision_conflict",
    )


async def test_a_drain_of_one_that_is_to_be_removed_is_another_order_once(bed: Bed) -> None:
    """From then on the instance is drained even if it is not removed after all."""
    (going,) = (await bed.scale(change=-1)).draining
    found = [await bed.drain(going.instance_id, dry_run=dry) for dry in (True, False, True, False)]
    assert [each.changes for each in found] == [True, True, False, False]
    assert all(each.removes_instance for each in found)
    await bed.scale(change=1)
    (drains_on,) = await bed.drains()
    assert (drains_on.instance_id, drains_on.removes_instance) == (going.instance_id, False)
    assert bed.revision == 3


async def test_several_of_one_command_are_checked_and_planned_together(bed: Bed) -> None:
    (planned,) = (await bed.drain(dry_run=True, with_ids=["i-1"])).plan
    assert planned.to_instance_id == "i-2", "the other one is no destination"
    assert await bed.refused("instances/i-0/drain", with_ids=["i-1", "i-2"]) == (
        409,
        "last_instance",
    )
    assert await bed.refused("instances/i-0/drain", with_ids=["i-9"]) == (404, "no_such_instance")
    assert await bed.drains() == ()
    assert (await bed.drain(with_ids=["i-1"])).state == "draining"
    assert (await bed.drain("i-1", with_ids=["i-0"])).state == "draining"


async def test_the_revision_of_a_report_is_the_one_that_was_left(bed: Bed) -> None:
    """A client that goes on from the report is told what others change while the frontends are
    asked."""
    ask = bed.controller.drain_forecasts.of

    async def meanwhile(*args: Any) -> Any:
        bed.controller.keeper.change(bed.controller.keeper.spec.with_settings({}))
        return await ask(*args)

    bed.controller.drain_forecasts.of = meanwhile
    assert ((await bed.drain(dry_run=True)).revision, bed.revision) == (0, 1)
    assert ((await bed.drain()).revision, bed.revision) == (2, 3)
    assert (await bed.scale(change=-1, dry_run=True)).revision == 3
    assert (await bed.scale(change=-1)).revision == bed.revision - 1


async def test_frontends_that_say_nothing_are_waited_for_once(bed: Bed) -> None:
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

    del bed.cluster.mailbox.engine_state["mem://f-0"]
    bed.controller.drain_forecasts.of = counted
    assert len((await bed.scale(change=-2, dry_run=True)).draining) == 2
    assert most == 2
    most = 0
    assert len((await bed.scale(change=-2)).draining) == 2
    assert most == 2
    most = 0
    assert len(await bed.drains()) == 2
    assert most == 2


# -- undrain ------------------------------------------------------------------------------


async def test_undrain_takes_it_back(bed: Bed) -> None:
    await bed.drain()
    planned = await bed.undrain(dry_run=True)
    assert (planned.state, planned.changes) == ("draining", True)
    assert bed.revision == 1
    found = await bed.undrain(reason="fixed")
    assert (found.state, found.drain_id, found.revision) == ("active", "", 2)
    assert found.changes
    assert found.num_requests_left == 1
    assert bed.cluster.mailbox.sent_to("mem://i-0", DrainSet)[-1] == DrainSet(False)
    last = bed.audited()[-1]
    assert (last["action"], last["reason"]) == ("undrain i-0", "fixed")
    for dry_run in (False, True):
        again = await bed.refused("instances/i-0/undrain", dry_run=dry_run)
        assert again == (409, "not_draining")
    assert (bed.revision, len(bed.audited())) == (2, 4)


async def test_a_dry_run_of_undrain_does_not_keep_others_waiting(bed: Bed) -> None:
    """Although the frontends, which it asks, do not answer for a while."""
    await bed.drain()
    ask, asked = bed.controller.drain_forecasts.of, asyncio.Event()

    async def silent(*args: Any) -> Any:
        asked.set()
        await asyncio.sleep(60)
        return await ask(*args)

    bed.controller.drain_forecasts.of = silent
    looking = asyncio.create_task(bed.undrain(dry_run=True))
    async with asyncio.timeout(10):
        await asked.wait()
        assert (await bed.undrain()).state == "active"
    looking.cancel()


async def test_undrain_looks_at_the_revision_again_once_it_is_on_the_record(bed: Bed) -> None:
    await bed.drain()
    bed.while_recording("undrain i-0", lambda: bed.ends_by_itself("i-0"))
    assert await bed.refused("instances/i-0/undrain", if_revision=1) == (409, "revision_conflict")
    assert bed.audited()[-1]["outcome"] == "failed: revision_conflict"


# -- scale --------------------------------------------------------------------------------


async def test_scale_out_and_in(bed: Bed) -> None:
    grown = await bed.scale(change=1)
    assert (grown.previous, grown.target, grown.added) == (3, 4, ("i-3",))
    assert (grown.draining, grown.undrained, grown.revision) == ((), (), 1)
    assert bed.cluster.launcher.launched[-1] == "i-3"
    status = await bed.status()
    assert (status.state, status.detail) == ("ready", "i-3 is starting")
    shrunk = await bed.scale(target=2, deadline_s=30, on_deadline="abort", reason="night")
    assert (shrunk.previous, shrunk.target) == (4, 2)
    going = {each.instance_id: each for each in shrunk.draining}
    assert sorted(going) == ["i-1", "i-3"], "one that does not serve, and one without requests"
    assert going["i-1"].removes_instance
    assert (going["i-1"].on_deadline, going["i-1"].reason) == ("abort", "night")
    actions = [entry["action"] for entry in bed.audited() if entry["outcome"] == "begun"]
    assert actions == [
        "scale 3 to 4",
        "scale 4 to 2",
        "remove i-3 once drained within 30s, then abort",
        "remove i-1 once drained within 30s, then abort",
    ]
    back = await bed.scale(target=3)
    assert (back.previous, back.undrained, back.added) == (2, ("i-1",), ())


async def test_one_that_could_not_be_launched_yet_is_starting(bed: Bed) -> None:
    """A client that waits for the instance must not be told that it does not exist."""
    launch = bed.cluster.launcher.launch_instance

    def fails(_instance_id: str) -> None:
        raise ConnectionError

    bed.cluster.launcher.launch_instance = fails
    assert (await bed.scale(change=1)).added == ("i-3",)
    new = (await bed.status()).instances[-1]
    assert (new.id, new.state, new.incarnation) == ("i-3", "starting", 0)
    assert new.detail == "could not be launched; it is tried again"
    bed.cluster.launcher.launch_instance = launch
    bed.cluster.now_s += 1.0
    bed.controller.scaling.launch_missing()
    assert [each.id for each in (await bed.status()).instances] == ["i-0", "i-1", "i-2", "i-3"]
    await bed.scale(change=-1)
    bed.controller.terminate("i-3")
    assert "i-3" not in [each.id for each in (await bed.status()).instances], "it is on its way out"


async def test_a_dry_run_of_scale_names_everything_and_does_nothing(bed: Bed) -> None:
    out = await bed.scale(change=2, dry_run=True)
    assert (out.previous, out.target, out.added, out.dry_run) == (3, 5, ("i-3", "i-4"), True)
    bed.cluster.report("i-2", num_running=4, num_free_blocks=40)
    bed.cluster.report("i-1", num_running=5, num_free_blocks=30)
    into = await bed.scale(change=-2, dry_run=True)
    (first, second) = into.draining
    assert (first.instance_id, second.instance_id) == ("i-0", "i-2")
    assert first.removes_instance
    assert [p.to_instance_id for p in first.plan] == ["i-1"], "not the other one that goes"
    assert (bed.revision, bed.audited()) == (0, [])
    assert bed.cluster.launcher.launched == ["i-0", "i-1", "i-2"]


async def test_a_scale_to_what_is_planned_changes_nothing(bed: Bed) -> None:
    found = await bed.scale(target=3)
    assert (found.previous, found.target, found.revision) == (3, 3, 0)
    assert bed.audited() == []


async def test_a_scale_that_comes_twice_is_carried_out_once(bed: Bed) -> None:
    """Also with the earlier revision, which the first call increased."""
    for target, agreed in ((4, ()), (2, ("i-2", "i-3"))):
        revision = bed.revision
        order = {"target": target, "draining": agreed, "if_revision": revision}
        first, again = await asyncio.gather(bed.scale(**order), bed.scale(**order))
        assert first.revision == again.revision == bed.revision == revision + 1
        assert first.added or first.draining
        assert (again.previous, again.added, again.draining) == (target, (), ())
    another = {"target": 3, "if_revision": 1}
    assert await bed.refused("scale", **another) == (409, "revision_conflict")


async def test_a_change_is_planned_and_its_target_is_ordered(bed: Bed) -> None:
    order = {"change": 1, "dry_run": False}
    answer = await bed.client.post("/v1/scale", headers=AUTHORIZED, json=order)
    assert answer.status_code == 400
    assert "ask for the target of the plan" in answer.text
    planned = await bed.scale(change=1, dry_run=True)
    assert (planned.target, planned.revision, bed.revision) == (4, 0, 0)


async def test_those_that_were_agreed_to_go_and_no_others(bed: Bed) -> None:
    (shown,) = (await bed.scale(change=-1, dry_run=True)).draining
    assert shown.instance_id == "i-1"
    bed.cluster.report("i-1", num_running=9, num_free_blocks=30)  # by now it is the busiest
    (going,) = (await bed.scale(change=-1, draining=["i-1"])).draining
    assert going.instance_id == "i-1"
    for agreed in ([], ["i-1"], ["i-0", "i-2"], ["i-77"]):
        assert await bed.refused("scale", change=-1, draining=agreed) == (409, "plan_changed")
    assert await bed.refused("scale", change=1, draining=["i-0"]) == (409, "plan_changed")


async def test_what_is_on_the_record_is_what_is_done(bed: Bed) -> None:
    """Although another instance has the fewest requests by then."""
    bed.while_recording(
        "scale 3 to 2", lambda: bed.cluster.report("i-1", num_running=9, num_free_blocks=30)
    )
    (going,) = (await bed.scale(change=-1)).draining
    targets = [entry["target"] for entry in bed.audited() if entry["outcome"] == "done"]
    assert targets == ["the cluster", going.instance_id]


async def test_a_plan_that_cannot_be_carried_out_any_more_is_none(bed: Bed) -> None:
    await bed.scale(change=-1)
    revision = bed.revision
    bed.while_recording("scale 2 to 3", lambda: bed.ends_by_itself("i-1"))
    assert await bed.refused("scale", change=1) == (409, "plan_changed")
    assert bed.revision == revision + 1
    assert bed.audited()[-1]["outcome"] == "failed: plan_changed"


async def test_scale_is_refused_with_the_reason(bed: Bed) -> None:
    assert await bed.refused("scale", target=0) == (409, "min_instances")
    assert await bed.refused("scale", change=-3) == (409, "min_instances")
    assert await bed.refused("scale", target=0, dry_run=True) == (409, "min_instances")
    assert await bed.refused("scale", change=1022, dry_run=True) == (400, "max_instances")
    bed.cluster.launcher.why_no_room = "1 GPUs are needed, Ray has 0 free"
    assert await bed.refused("scale", change=1) == (409, "no_room")
    assert (await bed.scale(change=1, force=True)).added == ("i-3",)


async def test_without_rays_head_restarts_are_refused_and_the_status_says_so(bed: Bed) -> None:
    bed.cluster.launcher.lost = LauncherLoss("Ray's head at h:1 does not answer", 9.0, 86400.0)
    for path in (RESTART, "rolling-restart"):
        assert await bed.refused(path, force=True) == (503, "ray_lost"), path
    status = await bed.status()
    assert (status.state, status.detail) == (
        ClusterState.DEGRADED,
        "Ray's head at h:1 does not answer (9 s): what runs goes on, but no process is started or"
        " ended, and after 24 h without it all processes end; when clients can wait: llumctl down,"
        " then llumctl up",
    )


# -- revisions and refusals ---------------------------------------------------------------


async def test_of_two_who_act_on_one_revision_one_is_told(bed: Bed) -> None:
    answers = await asyncio.gather(
        bed.posts("instances/i-0/drain", if_revision=0),
        bed.posts("scale", change=1, if_revision=0),
        bed.posts("instances/i-1/drain", if_revision=0),
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    codes = {a.json()["code"] for a in answers if a.status_code == 409}
    assert codes == {"revision_conflict"}
    told = next(answer.json() for answer in answers if answer.status_code == 409)
    assert "revision 0 was looked at, and 1 is the present one" in told["message"]
    assert told["hint"] == "llumctl status"
    assert bed.revision == 1
    assert await bed.refused("instances/i-0/undrain", if_revision=7) == (409, "revision_conflict")
    assert await bed.refused("scale", change=1, if_revision=7, dry_run=True) == (
        409,
        "revision_conflict",
    )


@pytest.mark.parametrize("path", ["instances/i-9/drain", "instances/f-0/drain"])
async def test_what_is_no_instance_is_not_found(bed: Bed, path: str) -> None:
    assert await bed.refused(path) == (404, "no_such_instance")
    assert await bed.refused(path.replace("drain", "undrain")) == (404, "no_such_instance")


async def test_a_cluster_that_stops_is_not_steered(bed: Bed) -> None:
    bed.controller.stop(drain=True, grace_s=5.0)
    assert await bed.refused("instances/i-0/drain") == (409, "stopping")
    assert await bed.refused("scale", change=1) == (409, "stopping")


async def test_what_is_not_audited_is_not_done(bed: Bed) -> None:
    bed.listener.audit.path.mkdir()
    assert await bed.refused("instances/i-0/drain") == (500, "not_audited")
    assert await bed.refused("scale", change=1) == (500, "not_audited")
    assert bed.revision == 0


# -- restart ------------------------------------------------------------------------------


async def restart(bed: Bed, instance_id: str = "i-0", **body: Any) -> DrainReport:
    answer = await bed.posts(f"instances/{instance_id}/restart", **body)
    assert answer.status_code == 200, answer.text
    return DrainReport.model_validate_json(answer.content)


RESTART = "instances/i-0/restart"


async def test_a_restart_begins_by_emptying_the_instance(bed: Bed) -> None:
    found = await restart(bed, reason="a leak", deadline_s=60)
    assert (found.state, found.restarts_instance, found.changes) == ("draining", True, True)
    assert (found.incarnation, found.pid, found.safe_to_delete) == (1, 77, False)
    assert (found.on_deadline, found.num_requests_left) == ("abort", 1)
    claim = bed.controller.keeper.spec.drains["i-0"].restart
    assert claim is not None
    assert (claim.nonce, claim.at_once) == ("a", False)
    entry, over = bed.audited()
    assert (entry["action"], entry["target"]) == ("restart i-0 within 1m00s, then abort", "i-0")
    assert (entry["reason"], over["outcome"]) == ("a leak", "done")
    assert entry["cause_id"] == found.drain_id
    status = (await bed.status()).instances[0]
    assert status.drain is not None
    assert (status.drain.restarts, status.drain.safe_to_delete) == (True, False)
    assert bed.cluster.launcher.restarted == []


async def test_at_once_its_process_ends_and_the_next_one_ends_the_restart(bed: Bed) -> None:
    assert (await restart(bed, now=True)).restarts_instance
    bed.controller.drains.tick()
    assert bed.cluster.launcher.restarted == ["i-0"]
    (report,) = await bed.drains()
    assert (report.state, report.safe_to_delete) == ("restarting", False)
    bed.cluster.mailbox.lose("mem://i-0")
    bed.cluster.hello("i-0", nonce="b")
    bed.cluster.hello("i-0", nonce="b", incarnation=2)
    bed.controller.drains.tick()
    assert await bed.drains() == ()
    assert [entry["action"] for entry in bed.audited()] == ["restart i-0 at once"] * 2


async def test_a_dry_run_of_a_restart_changes_nothing(bed: Bed) -> None:
    found = await restart(bed, dry_run=True)
    assert (found.dry_run, found.changes, found.restarts_instance) == (True, True, True)
    assert [(each.request_id, each.to_instance_id) for each in found.plan] == [("r-1", "i-1")]
    now = await restart(bed, dry_run=True, now=True)
    assert [(each.code, each.to_instance_id) for each in now.plan] == [("replays", None)]
    assert "it would be replayed elsewhere" in now.plan[0].why
    assert bed.revision == 0
    assert not bed.audited()


async def test_the_same_restart_again_changes_nothing(bed: Bed) -> None:
    first = await restart(bed, reason="a leak")
    again = await restart(bed, reason="a leak")
    assert (first.changes, again.changes, bed.revision) == (True, False, 1)
    assert len(bed.audited()) == 2
    assert (await restart(bed, reason="a leak", now=True)).changes
    claim = bed.controller.keeper.spec.drains["i-0"].restart
    assert claim is not None
    assert claim.at_once
    assert (await bed.drain(reason="a leak")).changes, "it is drained after its restart"
    assert (await bed.undrain()).state == "active"
    assert bed.controller.keeper.spec.drains == {}


async def test_what_is_not_restarted(bed: Bed) -> None:
    for other in ("i-1", "i-2"):
        await bed.drain(other)
    status, code = await bed.refused(RESTART)
    assert (status, code) == (409, "last_instance")
    answer = await bed.posts(RESTART)
    assert answer.json()["hint"] == "llumctl scale +1      or      llumctl restart i-0 --now"
    assert await bed.refused(RESTART, if_revision=0) == (409, "revision_conflict")
    assert (await restart(bed, dry_run=True, now=True)).changes
    assert (await restart(bed, dry_run=True, force=True)).changes
    for other in ("i-1", "i-2"):
        await bed.undrain(other)
    await bed.scale(target=2)
    (leaving,) = [key for key, each in bed.controller.keeper.spec.drains.items() if each.goes]
    assert await bed.refused(f"instances/{leaving}/restart") == (409, "leaving")
    await bed.scale(target=4)
    assert await bed.refused("instances/i-3/restart") == (409, "not_started")
    assert await bed.refused("instances/i-9/restart") == (404, "no_such_instance")


async def test_one_that_does_not_serve_is_restarted_though_nobody_else_does(bed: Bed) -> None:
    """The restart takes no serving instance away."""
    for other in ("i-1", "i-2"):
        await bed.drain(other)
    bed.cluster.hello("i-0", phase="failed", incarnation=1)
    assert (await restart(bed)).restarts_instance


# -- once ---------------------------------------------------------------------------------


async def with_key(
    bed: Bed, key: str, path: str = "instances/i-0/drain", **body: Any
) -> httpx.Response:
    headers = AUTHORIZED | {"Idempotency-Key": key}
    return await bed.client.post(f"/v1/{path}", headers=headers, json=body)


async def test_an_order_that_comes_twice_is_carried_out_once(bed: Bed) -> None:
    """A deadline counts from the order: without a key each call would be another order."""
    first, meanwhile = await asyncio.gather(*(with_key(bed, "k", deadline_s=60) for _ in range(2)))
    again = await with_key(bed, "k", deadline_s=60)
    assert first.status_code == 200, first.text
    assert first.content == meanwhile.content == again.content
    assert bed.revision == 1
    assert (await with_key(bed, "l", deadline_s=60)).json()["revision"] == 2


async def test_a_refusal_comes_twice_too(bed: Bed) -> None:
    answers = [await with_key(bed, "k", if_revision=9) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [409, 409]
    assert answers[0].content == answers[1].content


async def test_a_key_is_one_order_s(bed: Bed) -> None:
    await with_key(bed, "k", reason="a fan")
    other = await with_key(bed, "k", reason="two fans")
    assert (other.status_code, other.json()["code"]) == (409, "key_reused")
    elsewhere = await with_key(bed, "k", "instances/i-0/undrain", reason="a fan")
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "key_reused")
    for key in ("", "k" * 65):
        answer = await with_key(bed, key)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_key")
    assert bed.revision == 1


async def test_the_answer_to_a_key_can_be_asked_for_and_asking_changes_nothing(bed: Bed) -> None:
    assert await bed.told("k") == (404, "no_such_call")
    first = await with_key(bed, "k", reason="a fan")
    assert (await bed.answers("k")).content == first.content
    assert await bed.told("k") == (200, "")
    await with_key(bed, "m", if_revision=9)
    assert await bed.told("m") == (409, "revision_conflict")
    assert bed.revision == 1
    async with bed.listener.server._orders._changing:
        waiting = asyncio.create_task(with_key(bed, "n", "instances/i-0/undrain"))
        while await bed.told("n") == (404, "no_such_call"):
            assert not waiting.done()
        assert await bed.told("n") == (409, "under_way")
    assert (await waiting).status_code == 200
    assert await bed.told("n") == (200, "")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "scale", {"target": 0}),
        ("POST", "requests/r1/priority", {"level": "high"}),
        ("PATCH", "settings", {"changes": {"migration.max_moves": 3}}),
    ],
)
async def test_all_that_changes_the_cluster_takes_a_key(
    bed: Bed, method: str, path: str, body: dict[str, Any]
) -> None:
    headers = AUTHORIZED | {"Idempotency-Key": "k"}
    found = await bed.client.request(method, f"/v1/{path}", headers=headers, json=body)
    assert (await bed.answers("k")).content == found.content


async def test_old_keys_are_forgotten(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.adapters.http.calls.MAX_KEPT", 2)
    for key in "abc":
        await with_key(bed, key, reason="a fan")
    assert (await with_key(bed, "c", reason="two fans")).status_code == 409
    assert (await with_key(bed, "a", reason="two fans")).status_code == 200


async def test_a_frontend_that_does_not_answer_is_named_and_nothing_is_estimated(
    bed: Bed,
) -> None:
    bed.cluster.mailbox.engine_state.clear()
    found = await bed.drain()
    assert (found.silent, found.estimate_s, found.num_requests_left) == (("f-0",), None, 1)


async def test_the_typed_client(bed: Bed) -> None:
    def use() -> None:
        with ControlClient(bed.listener.url, "t0ken") as client:
            assert client.send(Drain("i-0", DrainRequest())).state == "draining"
            assert [each.instance_id for each in client.drains().drains] == ["i-0"]
            assert client.send(Undrain("i-0", UndrainRequest())).state == "active"
            assert client.send(Scale(ScaleRequest(target=4))).added == ("i-3",)
            with pytest.raises(RefusedError, match="at least one"):
                client.send(Scale(ScaleRequest(target=0)))
            with pytest.raises(ConflictError, match="revision"):
                client.send(Drain("i-0", DrainRequest(if_revision=99)))
            with pytest.raises(NotFoundError):
                client.send(Drain("i-77", DrainRequest()))

    await asyncio.to_thread(use)
