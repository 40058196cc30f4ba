"""Rounds, orders and moves together: a real controller, real llumlets with engine threads."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.claims import Drain
from controller.core.record.event_log import EventKind
from controller.core.settings import ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from controller.sim.cluster import SimCluster
from controller.sim.setup import ClusterSetup
from tests.unit.rescheduling.test_resched_at_work import Ended
from tests.unit.runtime.controlled_cluster import ControlledCluster
from tests.unit.runtime.fakes import FakeNetwork
from tests.unit.runtime.members import repeat_often
from tests.unit.sim.runs import A10, policy, requests

# Steps take next to no time here, so no move is worth its cost.
CONFIG = ReschedulingConfig(interval_s=0.01, guard=False)
LENGTHS = {"r0": 65, "r1": 81, "r2": 113, "r3": 129, "r4": 145, "r5": 161}
"""49 blocks of 64, 40 steps; 64 without the shortest."""


class Cluster(ControlledCluster):
    """i-0 alone; the test starts i-1. No engine steps until it is told to."""

    def __init__(self, network: FakeNetwork) -> None:
        super().__init__(network, LiveConfig(rescheduling=CONFIG), holds=True)
        self.num_rounds = 0
        self._round = self.controller.rescheduler.round
        self.controller.rescheduler.round = self._counted
        self.join("i-0")

    def _counted(self) -> object:
        self.num_rounds += 1
        return self._round()

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
        return set(self.instances[instance_id].serving.requests)


@pytest.fixture
async def cluster(network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    repeat_often(monkeypatch)
    cluster = Cluster(network)
    yield cluster
    await cluster.all_finish()
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
    await dying.end()


# -- beside the simulated ones ------------------------------------------------------------------

ONE_ROUND = ReschedulingConfig(
    interval_s=3600.0, source_below_steps=48.0, destination_above_steps=100.0, guard=False
)
CROWD, FEW, NOTHING_MUCH = (161, 145, 129, 113, 81, 65), (33, 33, 33, 20, 20, 20), (4,) * 6
"""Prompts of six requests: 49 blocks of 64 leave 40 steps, 15 leave 130, and 6 leave 154."""
Moves = set[tuple[str, str, str]]


def in_turn(*prompts: tuple[int, ...]) -> list[int]:
    """The requests r-0, r-1 and so on, which go to the instances in turn."""
    return [num_tokens for turn in zip(*prompts, strict=True) for num_tokens in turn]


def simulated(prompts: list[int], num_instances: int, drained: str) -> Moves:
    """The moves of one round, once all requests have their first token."""
    profile = replace(A10, num_total_blocks=64, max_model_len=512, watermark_ratio=0.0)
    setup = ClusterSetup(profile, policy(ONE_ROUND, "round-robin"), num_instances)
    cluster = SimCluster(setup)
    cluster.outcome.rows = ended = Ended()

    if drained:
        cluster.events.at(0.2, lambda: cluster.drain(cluster.instances[drained]))
    cluster.events.at(0.3, lambda: cluster.emptying.round(helps=False))
    cluster.run(requests((0.0, num_tokens, 100) for num_tokens in prompts))
    return {(each.request_id, each.source_id, each.destination_id) for each in ended.moves()}


@pytest.mark.parametrize(
    ("prompts", "drained", "num_moves"),
    [
        (in_turn(CROWD, NOTHING_MUCH), "", 1),
        (in_turn(CROWD, NOTHING_MUCH, CROWD, FEW), "", 2),
        (in_turn(CROWD, CROWD, CROWD, FEW), "", 1),
        (in_turn(CROWD, FEW, NOTHING_MUCH), "i-1", 6),
        (in_turn(FEW, FEW, NOTHING_MUCH), "", 0),
    ],
    ids=["one source", "two pairs", "three sources for one", "a drain", "nothing to do"],
)
async def test_a_live_round_orders_the_moves_that_a_simulated_one_orders(
    network: FakeNetwork,
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[int],
    drained: str,
    num_moves: int,
) -> None:
    repeat_often(monkeypatch)
    num_instances = len(prompts) // 6
    config = LiveConfig(SchedulerConfig(policy="round-robin"), rescheduling=ONE_ROUND)
    cluster = ControlledCluster(network, config, holds=True, num_instances=num_instances)
    for number in range(num_instances):
        cluster.join(f"i-{number}")
    await cluster.until(lambda: len(cluster.frontend.known) == num_instances)
    for number, num_tokens in enumerate(prompts):
        await cluster.frontend.submit(f"r-{number}", num_tokens, 20)
    engines = [instance.engine for instance in cluster.instances.values()]
    await cluster.until(lambda: all(len(engine.waiting) == 6 for engine in engines))
    for engine in engines:
        engine.allow(1)
    records = cluster.controller.scheduler.instances.values()
    await cluster.until(lambda: all(each.snapshot.num_running == 6 for each in records))
    if drained:
        cluster.controller.drains.begin({drained: Drain("op-1", 0.0)})
        await cluster.until(lambda: cluster.instances[drained].serving.instance_moves.draining)
    cluster.controller.rescheduler.round()
    log = cluster.controller.operator_moves.log
    await cluster.until(lambda: log.num_by_outcome["migrated"] == num_moves)
    await cluster.all_finish()
    moves = {
        (each.record.request_id, each.record.source_id, each.record.destination_id)
        for each in log.recent
    }
    assert moves == simulated(prompts, num_instances, drained)
    assert len(moves) == num_moves
    await cluster.end()
