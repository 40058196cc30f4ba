"""Rounds, orders and moves together: a real controller, real llumlets with engine threads."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from controller.core.record.event_log import EventKind
from controller.core.settings import ReschedulingConfig
from tests.unit.runtime.controlled_cluster import ControlledCluster
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import PATIENCE_S, FakeNetwork
from tests.unit.runtime.members import Instance, repeat_often

# Steps take next to no time here, so no move is worth its cost.
CONFIG = ReschedulingConfig(interval_s=0.01, guard=False)
LENGTHS = {"r0": 65, "r1": 81, "r2": 113, "r3": 129, "r4": 145, "r5": 161}
"""49 blocks of 64, 40 steps; 64 without the shortest."""


class Cluster(ControlledCluster):
    """i-0 alone; the test starts i-1. No engine steps until it is told to."""

    def __init__(self, network: FakeNetwork) -> None:
        super().__init__(network, CONFIG)
        self.num_rounds = 0
        self._round = self.controller.rescheduler.round
        self.controller.rescheduler.round = self._counted
        self.join("i-0")

    def _counted(self) -> object:
        self.num_rounds += 1
        return self._round()

    def join(self, instance_id: str) -> Instance:
        instance = super().join(instance_id)
        instance.engine.hold(blocks_thread=False)
        return instance

    async def crowd(self) -> None:
        await self.until(lambda: self.frontend.known == ["i-0"])
        engine = self.instances["i-0"].engine
        for request_id, num_prompt_tokens in LENGTHS.items():
            await self.frontend.submit(request_id, num_prompt_tokens, 20)
        await self.until(lambda: len(engine.waiting) == len(LENGTHS))
        engine.allow(1)
        await self.until(lambda: all(self.frontend.tokens[r] for r in LENGTHS))

    async def rounds(self, count: int) -> None:
        goal = self.num_rounds + count
        await self.until(lambda: self.num_rounds >= goal)

    def at(self, instance_id: str) -> set[str]:
        return set(self.instances[instance_id].llumlet.serving.requests)

    async def all_finish(self) -> None:
        for instance in self.instances.values():
            instance.engine.go_on()
        ends = await asyncio.wait_for(
            asyncio.gather(*self.frontend.ended.values()), timeout=PATIENCE_S
        )
        assert set(ends) == {"finished"}
        for request_id in LENGTHS:
            assert self.frontend.tokens[request_id] == tokens_of(request_id, 20)


@pytest.fixture
async def cluster(network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    repeat_often(monkeypatch)
    cluster = Cluster(network)
    yield cluster
    await cluster.end()


async def test_a_new_instance_fills_until_its_source_is_none(cluster: Cluster) -> None:
    await cluster.crowd()
    await cluster.rounds(5)
    assert cluster.controller.operator_moves.log.num_by_outcome["migrated"] == 0, "nowhere to go"
    cluster.join("i-1")
    log = cluster.controller.operator_moves.log
    await cluster.until(lambda: log.num_by_outcome["migrated"])
    await cluster.rounds(20)
    assert cluster.at("i-1") == {"r0"}
    assert log.num_by_outcome["migrated"] == 1, "and nothing goes back or on"
    await cluster.all_finish()
    counts = cluster.controller.journal.counts
    await cluster.until(lambda: counts[EventKind.MIGRATED] == 1)
    assert counts[EventKind.MIGRATION_FAILED] == 0
    assert counts[EventKind.EVICTED] == 0


async def test_turned_off_and_on_again(cluster: Cluster) -> None:
    rescheduler = cluster.controller.rescheduler
    rescheduler.config = ReschedulingConfig(interval_s=0.01, guard=False, enabled=False)
    await cluster.crowd()
    cluster.join("i-1")
    await cluster.until(lambda: cluster.frontend.known == ["i-0", "i-1"])
    await cluster.rounds(10)
    assert cluster.at("i-0") == set(LENGTHS)
    rescheduler.config = CONFIG
    await cluster.until(lambda: cluster.at("i-1"))
    await cluster.all_finish()


async def test_when_its_destination_dies_the_requests_stay(cluster: Cluster) -> None:
    await cluster.crowd()
    cluster.join("i-1")
    dying = cluster.instances["i-1"]
    dying.transfer.holds = lambda stage_id: True
    source = cluster.instances["i-0"].llumlet
    await cluster.until(lambda: source.serving and source.serving.instance_moves.in_flight())
    cluster.network.lose(dying.address)
    del cluster.instances["i-1"]
    await cluster.until(lambda: cluster.controller.operator_moves.log.num_by_outcome["kept"])
    await cluster.rounds(5)
    assert cluster.at("i-0") == set(LENGTHS)
    await cluster.all_finish()
    await dying.end()
