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
from controller.core.emptying.claims import Drain, Remove
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestState
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.frontend.router import TOLD_TO_THE_CLIENT
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import PATIENCE_S, FakeLauncher, FakeNetwork, until
from tests.unit.runtime.members import CONTROLLER, Frontend, Instance, repeat_often

HOLDING = HoldingConfig(room_to_grow_tokens=0, reserved_share=0.5, reserve_after_s=3600.0)
CONFIG = LiveConfig(
    SchedulerConfig(policy="llumnix+", holding=HOLDING),
    rescheduling=ReschedulingConfig(interval_s=3600.0),
)
RUNNING = ("a0", "a1", "b0", "b1")
HELD = ("r0", "r1", "r2", "r3")


class Cluster:
    def __init__(self, network: FakeNetwork) -> None:
        self.network = network
        self.launcher = FakeLauncher()
        self.controller = ControllerProcess(
            network.mailbox(CONTROLLER), self.launcher, CONFIG, SpecKeeper(ClusterSpec.first(2))
        )
        self.controller.start(num_frontends=1)
        self.running = asyncio.create_task(self.controller.run())
        self.frontend = Frontend(network)
        self.instances: dict[str, Instance] = {}
        self.submitted: dict[str, asyncio.Task[None]] = {}

    def join(self, instance_id: str) -> Instance:
        instance = self.instances[instance_id] = Instance(self.network, instance_id)
        instance.engine.hold(blocks_thread=False)
        return instance

    async def fill(self) -> None:
        for instance_id in ("i-0", "i-1"):
            self.join(instance_id)
        await until(lambda: len(self.frontend.known) == 2)
        for request_id in RUNNING:
            await self.frontend.submit(request_id, 383, 1 + 16 * (request_id == "a0"))
        await until(lambda: sum(len(i.engine.waiting) for i in self.instances.values()) == 4)
        for request_id in HELD:
            self.submit(request_id)
        await until(lambda: self.held == list(HELD))

    def submit(self, request_id: str, num_prompt_tokens: int = 320) -> None:
        submit = self.frontend.submit(request_id, num_prompt_tokens, 1)
        self.submitted[request_id] = asyncio.create_task(submit)

    @property
    def held(self) -> list[str]:
        """In the order in which they are to go."""
        view = self.controller.scheduler.waiting_view()
        return [held.request_id for held in view.entries]

    @property
    def reserved(self) -> dict[str, str]:
        view = self.controller.scheduler.waiting_view()
        return {instance_id: key[1] for instance_id, key in view.reserved.items()}

    def at(self, request_id: str) -> str | None:
        record = self.frontend.book.find(request_id)
        assert record is not None
        return record.instance_id

    def state(self, request_id: str) -> RequestState:
        record = self.frontend.book.find(request_id)
        assert record is not None
        return record.state

    async def goes_on(self, *instance_ids: str) -> None:
        for instance_id in instance_ids or self.instances:
            self.instances[instance_id].engine.go_on()

    async def finished(self, *request_ids: str) -> None:
        ended = (self.frontend.ended[request_id] for request_id in request_ids)
        ends = await asyncio.wait_for(asyncio.gather(*ended), PATIENCE_S)
        assert set(ends) == {"finished"}
        for request_id in request_ids:
            number = len(self.frontend.tokens[request_id])
            assert self.frontend.tokens[request_id] == tokens_of(request_id, number)

    async def end(self) -> None:
        for task in self.submitted.values():
            task.cancel()
        for instance in self.instances.values():
            await instance.end()
        await self.frontend.router.close()
        self.running.cancel()


@pytest.fixture
async def cluster(network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    repeat_often(monkeypatch)
    cluster = Cluster(network)
    await cluster.fill()
    yield cluster
    cluster.controller.scheduler.check()
    await cluster.end()


DRAIN = Drain("op-1", 1000.0, actor="ana")


async def test_they_are_listed_in_order_and_go_in_order(cluster: Cluster) -> None:
    found = await list_requests(cluster.controller, RequestsQuery(state=("waiting",)))
    held = [item for item in found.requests if item.held is not None]
    assert [(item.id, item.held and item.held.place) for item in held] == [
        ("r0", 1),
        ("r1", 2),
        ("r2", 3),
        ("r3", 4),
    ]
    explained = await explain_request(cluster.controller, "r0")
    assert explained.waiting is not None
    assert "i-0 is kept for it and lacks 4 blocks" in explained.waiting.why
    assert cluster.reserved == {"i-0": "r0"}
    await cluster.goes_on()
    await cluster.finished(*RUNNING, *HELD)


def operated(cluster: Cluster) -> Operated:
    return Operated(cluster.controller, LiveSettings(cluster.controller, Settings()))


def priority(cluster: Cluster, request_id: str, level: str) -> PriorityHandler:
    return PriorityHandler(operated(cluster), SetPriority(request_id, PriorityRequest(level=level)))


def abort(cluster: Cluster, request_id: str, wanted: AbortRequest) -> AbortHandler:
    return AbortHandler(operated(cluster), Abort(request_id, wanted))


async def carried_out(order: Handler[Any, Any]) -> Any:
    await order.look()
    await order.carry_out(Operation("op-1", "ana"))
    return await order.report()


async def test_another_priority_counts_at_once(cluster: Cluster) -> None:
    report = await carried_out(priority(cluster, "r2", "high"))
    assert (report.previous, report.level, report.instance_id) == ("normal", "high", None)
    await until(lambda: cluster.held == ["r2", "r0", "r1", "r3"])
    await until(lambda: cluster.reserved == {"i-0": "r2"})
    listed = await list_requests(cluster.controller, RequestsQuery())
    assert [item.id for item in listed.requests if item.held] == ["r2", "r0", "r1", "r3"]
    await carried_out(priority(cluster, "r2", "normal"))
    await until(lambda: cluster.held == list(HELD))
    await cluster.goes_on()
    await cluster.finished(*HELD)


async def test_it_goes_with_the_priority_that_it_was_given(cluster: Cluster) -> None:
    await carried_out(priority(cluster, "r3", "high"))
    await until(lambda: cluster.held[0] == "r3")
    await cluster.goes_on("i-1")
    await cluster.finished(*HELD)
    entries = cluster.controller.journal.log.after(None, 1000).entries
    went = [e.request_id for _, e in entries if e.kind is EventKind.DISPATCHED]
    assert went[len(RUNNING) :] == ["r3", "r0", "r1", "r2"]


async def test_one_that_an_operator_ends_leaves_the_queue_and_its_client_hears(
    cluster: Cluster,
) -> None:
    report = await carried_out(abort(cluster, "r0", AbortRequest(reason="too large")))
    assert (report.request_ids, report.instance_id) == (("r0",), None)
    assert await cluster.frontend.ended["r0"] == TOLD_TO_THE_CLIENT
    await until(lambda: cluster.held == ["r1", "r2", "r3"])
    await until(lambda: cluster.reserved == {"i-0": "r1"})
    assert cluster.state("r0") is RequestState.ABORTED
    await asyncio.wait_for(cluster.submitted["r0"], PATIENCE_S)
    await cluster.goes_on()
    await cluster.finished("r1", "r2", "r3")


async def test_a_dry_run_ends_nothing(cluster: Cluster) -> None:
    planned = abort(cluster, "r0", AbortRequest(dry_run=True))
    await planned.look()
    report = await planned.plan()
    assert (report.state, report.dry_run) == ("waiting", True)
    assert cluster.held == list(HELD)


async def test_one_whose_client_leaves_is_forgotten(cluster: Cluster) -> None:
    cluster.submitted["r1"].cancel()  # as the endpoint's app does
    cluster.frontend.router.abort(["r1"], RequestState.ABORTED, "the client left")
    await until(lambda: cluster.held == ["r0", "r2", "r3"])
    await cluster.goes_on()
    await cluster.finished("r0", "r2", "r3")


async def test_while_the_reserved_instance_drains_another_is_reserved(cluster: Cluster) -> None:
    assert cluster.reserved == {"i-0": "r0"}
    cluster.controller.drains.begin({"i-0": DRAIN})
    await until(lambda: cluster.reserved == {"i-1": "r0"})
    status = cluster.controller.scheduler.waiting_view().first()
    assert status is not None
    assert status.instance_id == "i-1"
    await cluster.goes_on("i-1")
    await cluster.finished(*HELD)
    assert {cluster.at(request_id) for request_id in HELD} == {"i-1"}


async def test_while_all_instances_drain_none_is_reserved_and_none_goes(cluster: Cluster) -> None:
    cluster.controller.drains.begin({"i-0": DRAIN, "i-1": DRAIN})
    await until(lambda: cluster.reserved == {})
    explained = await explain_request(cluster.controller, "r0")
    assert explained.waiting is not None
    assert "no instance takes requests" in explained.waiting.why
    await cluster.goes_on()
    await cluster.finished(*RUNNING)
    assert cluster.held == list(HELD)
    cluster.controller.drains.end("i-1", "undone", "ana")
    await cluster.finished(*HELD)


async def test_a_new_instance_takes_them_at_once(cluster: Cluster) -> None:
    plan = cluster.controller.scaling.plan(3, force=False)
    cluster.controller.scaling.carry_out(plan, Remove("op-1", 1000.0, actor="ana"))
    await until(lambda: "i-2" in cluster.controller.roster.members)
    cluster.join("i-2")
    await until(lambda: cluster.held == ["r3"])
    await until(lambda: [cluster.at(r) for r in ("r0", "r1", "r2")] == ["i-2"] * 3)
    await cluster.goes_on()
    await cluster.finished(*HELD)


async def test_what_a_reserved_instance_ran_when_it_died_goes_ahead_of_what_is_held(
    cluster: Cluster,
) -> None:
    cluster.network.lose(cluster.instances["i-0"].address)
    await until(lambda: cluster.held == ["a0", "b0", *HELD])
    assert set(cluster.reserved) == {"i-1"}
    await cluster.goes_on("i-1")
    await cluster.finished("a0", "b0", *HELD)


async def test_they_are_served_within_the_grace_of_down(cluster: Cluster) -> None:
    cluster.controller.stop(drain=True, grace_s=20.0)
    assert cluster.controller.stopping
    assert cluster.held == list(HELD)
    await cluster.goes_on()
    await cluster.finished(*HELD)


async def test_with_their_frontend_they_are_gone(cluster: Cluster) -> None:
    cluster.network.lose("mem://f-0")
    await until(lambda: cluster.held == [])
    assert cluster.reserved == {}
