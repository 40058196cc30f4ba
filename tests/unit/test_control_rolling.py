"""Rolling restarts on the control API: what is planned, begun, shown, stopped and recorded."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from controller.api.errors import UsageError
from controller.api.operations.table import OperationList
from controller.api.wire.status import ClusterStatus, RollingReport
from controller.core.fleet.cluster_spec import EngineChange
from tests.unit.control_support import AUTHORIZED, Listener, listening
from tests.unit.move_support import Source, serve_running_request


class Bed:
    """r-1 runs on i-0 with 153 tokens; i-1 and i-2 are idle with 100 blocks."""

    def __init__(self, listener: Listener, client: httpx.AsyncClient) -> None:
        self.listener, self.client = listener, client
        self.controller = listener.cluster.controller
        self.source = Source(listener, serve_running_request(listener))
        listener.cluster.report("i-0", num_running=1, num_free_blocks=90)

    async def posts(self, path: str = "", key: str = "", **body: Any) -> httpx.Response:
        headers = {**AUTHORIZED, **({"Idempotency-Key": key} if key else {})}
        path = f"/v1/rolling-restart{path}"
        return await self.client.post(path, headers=headers, json=body)

    async def done(self, path: str = "", **body: Any) -> RollingReport:
        answer = await self.posts(path, **body)
        assert answer.status_code == 200, answer.text
        return RollingReport.model_validate_json(answer.content)

    async def refused(self, path: str = "", **body: Any) -> tuple[int, str]:
        answer = await self.posts(path, **body)
        return answer.status_code, answer.json()["code"]

    async def gets(self, path: str) -> bytes:
        return (await self.client.get(f"/v1/{path}", headers=AUTHORIZED)).content

    @property
    def actions(self) -> list[tuple[str, str]]:
        lines = self.listener.audit.path.read_text().splitlines()
        return [(found["action"], found["outcome"]) for found in map(json.loads, lines)]


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.2)
    async with listening(3) as (listener, client):
        yield Bed(listener, client)


async def test_a_dry_run_says_the_turn_and_what_each_takes(bed: Bed) -> None:
    plan = await bed.done(dry_run=True, at_once=2)
    assert (plan.state, plan.left, plan.at_once) == ("none", ("i-0", "i-1", "i-2"), 2)
    assert [(each.instance_id, each.num_requests, each.num_blocks) for each in plan.plan] == [
        ("i-0", 1, 10),
        ("i-1", 0, 0),
        ("i-2", 0, 0),
    ]
    assert (plan.dry_run, plan.changes, bed.controller.keeper.spec.revision) == (True, True, 0)
    assert not bed.listener.audit.path.exists()


async def test_it_begins_is_shown_and_is_stopped(bed: Bed) -> None:
    begun = await bed.done(reason="a patch", deadline_s=60)
    assert (begun.state, begun.left, begun.reason) == ("going", ("i-0", "i-1", "i-2"), "a patch")
    async with asyncio.timeout(5):
        while not bed.controller.rolling.order.under_way:  # type: ignore[union-attr]
            bed.controller.rolling.tick()
            await asyncio.sleep(0.01)
    shown = RollingReport.model_validate_json(await bed.gets("rolling-restart"))
    (turn,) = shown.under_way
    assert (turn.instance_id, turn.state, turn.num_requests_left) == ("i-0", "draining", 1)
    status = ClusterStatus.model_validate_json(await bed.gets("status"))
    assert status.rolling == shown
    assert await bed.refused() == (409, "rolling")
    planned = await bed.done("/stop", dry_run=True)
    assert (planned.state, planned.dry_run) == ("going", True)
    stopped = await bed.done("/stop", reason="no")
    assert (stopped.state, stopped.why) == ("stopped", "stopped: no")
    assert stopped.left == ("i-0", "i-1", "i-2")
    assert bed.controller.keeper.spec.drains == {}
    assert await bed.refused("/stop") == (409, "not_rolling")
    assert bed.actions == [
        ("restart --rolling, each within 1m00s", "begun"),
        ("restart --rolling, each within 1m00s", "done"),
        ("restart --stop", "begun"),
        ("restart --stop", "done"),
    ]


async def test_it_is_begun_once_and_undone_by_stopping_it(bed: Bed) -> None:
    first = await bed.posts(key="k-1")
    again = await bed.posts(key="k-1")
    assert first.content == again.content
    found = OperationList.model_validate_json(await bed.gets("operations"))
    (entry,) = found.operations
    assert entry.undo is not None
    assert (entry.undo.kind, entry.why_not) == ("stop_rolling", "")
    await bed.done("/stop")
    found = OperationList.model_validate_json(await bed.gets("operations"))
    assert found.operations[1].why_not == "that rolling restart is over"
    assert found.operations[0].why_not == "it cannot be undone"


async def test_refusals(bed: Bed) -> None:
    revision = bed.controller.keeper.spec.revision
    assert await bed.refused(if_revision=revision + 1) == (409, "revision_conflict")
    assert await bed.refused("/stop") == (409, "not_rolling")
    for wrong in ({"at_once": -1}, {"deadline_s": 0}, {"start_timeout_s": 0}, {"soon": True}):
        assert (await bed.posts(**wrong)).status_code == 400
    for instance_id in ("i-1", "i-2"):
        await bed.client.post(f"/v1/instances/{instance_id}/drain", headers=AUTHORIZED)
    assert await bed.refused() == (409, "last_instance")
    assert (await bed.done(force=True)).state == "going"


async def test_engine_arguments_are_checked_planned_and_recorded(bed: Bed) -> None:
    seen: list[tuple[object, ...]] = []

    def check(given: Any, before: Any, after: Any) -> None:
        seen.append((given, before, after))
        if "dtype" in given:
            raise UsageError("engine.dtype cannot be changed", "llumctl down")

    orders = bed.listener.server._orders
    orders._operated = replace(orders._operated, check_engine=check)
    wanted = {"max_num_seqs": 64, "enforce_eager": None}
    plan = await bed.done(dry_run=True, engine_args=wanted)
    assert (plan.engine_args, plan.changes_engine) == ({"max_num_seqs": 64}, True)
    assert seen == [(wanted, {}, {"max_num_seqs": 64})]
    revision = bed.controller.keeper.spec.revision
    assert await bed.refused(engine_args={"dtype": "half"}) == (400, "bad_setting")
    assert bed.controller.keeper.spec.revision == revision
    begun = await bed.done(engine_args=wanted)
    assert begun.engine_args == {"max_num_seqs": 64}
    order = bed.controller.rolling.order
    assert order is not None
    assert order.engine == EngineChange(1, {"max_num_seqs": 64})
    assert bed.actions[0][0] == (
        "restart --rolling --engine-arg max_num_seqs=64 --engine-arg enforce_eager=null"
    )


async def test_status_shows_which_instances_have_which_arguments(bed: Bed) -> None:
    async def changes() -> list[tuple[Any, ...]]:
        status = ClusterStatus.model_validate_json(await bed.gets("status"))
        found = status.engine_changes
        return [(each.generation, each.instances, each.is_clusters) for each in found]

    assert await changes() == []
    await bed.done(engine_args={"speed": 2})
    order, keeper = bed.controller.rolling.order, bed.controller.keeper
    assert order is not None
    keeper.change(keeper.spec.with_rolling(order, engines={"i-1": order.engine}))
    assert await changes() == [(0, ("i-0", "i-2"), True), (1, ("i-1",), False)]


async def test_one_that_is_over_is_dismissed(bed: Bed) -> None:
    assert not (await bed.done("/dismiss")).changes
    await bed.done()
    assert await bed.refused("/dismiss") == (409, "rolling")
    await bed.done("/stop")
    revision = bed.controller.keeper.spec.revision
    assert await bed.refused("/dismiss", if_revision=revision + 1) == (409, "revision_conflict")
    planned = await bed.done("/dismiss", dry_run=True)
    assert (planned.changes, planned.dismissed) == (True, False)
    assert (await bed.done("/dismiss")).dismissed
    assert not (await bed.done("/dismiss")).changes
    assert bed.actions[-2:] == [("restart --dismiss", "begun"), ("restart --dismiss", "done")]
