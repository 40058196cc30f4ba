"""What operators and clients do to requests that wait at the controller: with a real controller, a
real frontend, and llumlets with engine threads of 64 blocks each.

i-0 and i-1 run two requests of 24 blocks each, so 16 blocks are free on each, and r0 to r3, of 20
blocks each, wait. No step is taken until the test says so."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.perform import Handler, Operated, Operation
from controller.adapters.http.request_orders import AbortHandler, PriorityHandler
from controller.adapters.http.requests import RequestsQuery, explain_request, list_requests
from controller.api.operations.on_requests import Abort, AbortRequest, PriorityRequest, SetPriority
from controller.api.settings.settings import Settings
from controller.core.admission.policies import SchedulerConfig
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.frontend.router import TOLD_TO_THE_CLIENT
from tests.unit.runtime.controlled_cluster import ControlledCluster
from tests.unit.runtime.fakes import PATIENCE_S, FakeNetwork, until
from tests.unit.runtime.members import repeat_often

HOLDING = HoldingConfig(room_to_grow_tokens=0, reserved_share=0.5, reserve_after_s=3600.0)
CONFIG = LiveConfig(
    SchedulerConfig(policy="llumnix+", holding=HOLDING),
    rescheduling=ReschedulingConfig(interval_s=3600.0),
)
RUNNING = ("a0", "a1", "b0", "b1")
HELD = ("r0", "r1", "r2", "r3")


class Cluster(ControlledCluster):
    def __init__(self, network: FakeNetwork) -> None:
        super().__init__(network, CONFIG, holds=True)
        self.submitted: dict[str, asyncio.Task[None]] = {}

    async def fill(self) -> None:
        for instance_id in ("i-0", "i-1"):
            self.join(instance_id)
        await until(lambda: len(self.frontend.known) == 2)
        for request_id in RUNNING:
            await self.frontend.submit(request_id, 383, 1 + 16 * (request_id == "a0"))
        await until(lambda: sum(len(i.engine.waiting) for i in self.instances.values()) == 4)
        for request_id in HELD:
            submit = self.frontend.submit(request_id, 320, 1)
            self.submitted[request_id] = asyncio.create_task(submit)
        await until(lambda: self.held == list(HELD))

    @property
    def held(self) -> list[str]:
        """In the order in which they are to go."""
        view = self.controller.scheduler.waiting_view()
        return [held.request_id for held in view.entries]

    @property
    def reserved(self) -> dict[str, str]:
        view = self.controller.scheduler.waiting_view()
        return {instance_id: key[1] for instance_id, key in view.reserved.items()}

    def record(self, request_id: str) -> RequestRecord:
        record = self.frontend.book.find(request_id)
        assert record is not None
        return record

    async def end(self) -> None:
        for task in self.submitted.values():
            task.cancel()
        await super().end()


@pytest.fixture
async def cluster(network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    repeat_often(monkeypatch)
    cluster = Cluster(network)
    await cluster.fill()
    yield cluster
    await cluster.all_finish()
    cluster.controller.scheduler.check()
    await cluster.end()


async def test_they_are_listed_in_order_and_go_in_order(cluster: Cluster) -> None:
    found = await list_requests(cluster.controller, RequestsQuery(state=("waiting",)))
    held = [item for item in found.requests if item.held is not None]
    assert [(item.id, item.held.place) for item in held] == [*zip(HELD, (1, 2, 3, 4), strict=True)]
    explained = await explain_request(cluster.controller, "r0")
    assert "i-0 is kept for it and lacks 4 blocks" in explained.waiting.why
    assert cluster.reserved == {"i-0": "r0"}


async def carried_out(
    cluster: Cluster, handler: type[Handler[Any, Any]], order: Abort | SetPriority
) -> Any:
    operated = Operated(cluster.controller, LiveSettings(cluster.controller, Settings()))
    carrying = handler(operated, order)
    await carrying.look()
    await carrying.carry_out(Operation("op-1", "ana"))
    return await carrying.report()


async def test_another_priority_counts_at_once(cluster: Cluster) -> None:
    wanted = SetPriority("r2", PriorityRequest(level="high"))
    report = await carried_out(cluster, PriorityHandler, wanted)
    assert (report.previous, report.level, report.instance_id) == ("normal", "high", None)
    await until(lambda: cluster.held == ["r2", "r0", "r1", "r3"])
    await until(lambda: cluster.reserved == {"i-0": "r2"})
    listed = await list_requests(cluster.controller, RequestsQuery())
    assert [item.id for item in listed.requests if item.held] == ["r2", "r0", "r1", "r3"]


async def test_one_that_an_operator_ends_leaves_the_queue_and_its_client_hears(
    cluster: Cluster,
) -> None:
    wanted = Abort("r0", AbortRequest(reason="too large"))
    report = await carried_out(cluster, AbortHandler, wanted)
    assert (report.request_ids, report.instance_id) == (("r0",), None)
    assert await cluster.frontend.ended["r0"] == TOLD_TO_THE_CLIENT
    await until(lambda: cluster.held == ["r1", "r2", "r3"])
    await until(lambda: cluster.reserved == {"i-0": "r1"})
    assert cluster.record("r0").state is RequestState.ABORTED
    await asyncio.wait_for(cluster.submitted["r0"], PATIENCE_S)


async def test_what_a_reserved_instance_ran_when_it_died_goes_ahead_of_what_is_held(
    cluster: Cluster,
) -> None:
    cluster.network.lose(cluster.instances["i-0"].address)
    await until(lambda: cluster.held == ["a0", "b0", *HELD])
    assert set(cluster.reserved) == {"i-1"}
    cluster.go_on("i-1")
    await cluster.finished("a0", "b0", *HELD)


async def test_they_are_served_within_the_grace_of_down(cluster: Cluster) -> None:
    cluster.controller.stop(drain=True, grace_s=20.0)
    assert cluster.controller.stopping
    assert cluster.held == list(HELD)
    cluster.go_on()
    await cluster.finished(*HELD)
