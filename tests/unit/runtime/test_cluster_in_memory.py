"""Controller, router and two llumlets together, with real encodings and engine threads."""

from collections.abc import AsyncIterator

import pytest

from controller.core.fleet.cluster_spec import ExitReason
from controller.core.settings import ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from tests.unit.runtime.controlled_cluster import ControlledCluster
from tests.unit.runtime.fakes import FakeNetwork
from tests.unit.runtime.members import CONTROLLER, Instance, repeat_often


@pytest.fixture
async def cluster(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ControlledCluster]:
    repeat_often(monkeypatch)
    cluster = ControlledCluster(network, LiveConfig(rescheduling=ReschedulingConfig(enabled=False)))
    for instance_id in ("i-0", "i-1"):
        cluster.join(instance_id)
    await cluster.until(lambda: cluster.frontend.known == ["i-0", "i-1"])
    yield cluster
    cluster.controller.scheduler.check()
    await cluster.end()


async def test_many_requests_each_with_exactly_its_tokens(cluster: ControlledCluster) -> None:
    frontend = cluster.frontend
    for n in range(60):
        await frontend.submit(f"r{n}", 4 + 37 * n % 90, 3 + 23 * n % 60)
    await cluster.finished(*(f"r{n}" for n in range(60)))
    assert frontend.router.num_live_reqs == 0
    records = cluster.controller.scheduler.instances.values()
    await cluster.until(lambda: all(not each.unreported.num_requests for each in records))
    await cluster.until(lambda: all(each.snapshot.num_free_blocks == 64 for each in records))
    assert all(each.last_dispatch_seq > 10 for each in records), "both took part"


def hold(cluster: ControlledCluster) -> None:
    for instance in cluster.instances.values():
        instance.engine.hold()


async def test_an_instance_s_death_replays_its_own_requests_and_no_other(
    cluster: ControlledCluster,
) -> None:
    frontend, dying = cluster.frontend, cluster.instances["i-0"]
    hold(cluster)
    ids = await cluster.run("r", 20)
    for instance in cluster.instances.values():
        instance.engine.allow(10)
    await cluster.until(lambda: sum(map(len, frontend.tokens.values())) >= 50)
    records = (frontend.book.find(each) for each in ids)
    lost = {each.request_id for each in records if each.instance_id == "i-0"}
    cluster.network.lose(dying.address)
    cluster.go_on("i-1")
    await cluster.finished(*ids)
    assert 0 < len(lost) < 20
    found = await cluster.controller.queries.requests(["f-0"])
    assert {r.request_id: r.num_replays for r in found.requests} == {r: r in lost for r in ids}
    replays = cluster.controller.replays
    await cluster.until(lambda: replays.last_minute(cluster.controller.now_s())[0] == len(lost))
    assert {reason for _, reason in replays.counts()} == {ExitReason.DEATH}
    assert {each.source_id for each in replays.recent} == {"i-0"}
    assert not replays.under_way
    await dying.end()
    cluster.instances["i-0"] = Instance(cluster.network, "i-0", process=1)
    records = cluster.controller.scheduler.instances
    await cluster.until(lambda: records["i-0"].incarnation == 2 and records["i-0"].snapshot)
    await cluster.until(lambda: frontend.known == ["i-0", "i-1"])
    await cluster.finished(*await cluster.run("again", 8, 5))


async def test_without_a_controller_requests_go_on_and_new_ones_run(
    cluster: ControlledCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.core.admission.asking.CONTROLLER_SILENCE_S", 0.05)
    hold(cluster)
    before = await cluster.run("a", 6)
    cluster.running.cancel()
    cluster.network.lose(CONTROLLER)
    cluster.go_on()
    await cluster.finished(*before, *await cluster.run("b", 6))
