"""A round of a real controller with real llumlets, beside a simulated one."""

from dataclasses import replace

import pytest

from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.claims import Drain
from controller.core.settings import ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from controller.sim.cluster import SimCluster
from controller.sim.setup import ClusterSetup
from tests.unit.rescheduling.test_resched_at_work import Ended
from tests.unit.runtime.controlled_cluster import ControlledCluster
from tests.unit.runtime.fakes import FakeNetwork
from tests.unit.runtime.members import repeat_often
from tests.unit.sim.runs import A10, policy, requests

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
