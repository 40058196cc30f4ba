"""Controller, router and two llumlets together, with real encodings and engine threads."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from controller.core.fleet.cluster_spec import ExitReason
from controller.core.settings import ReplayConfig, ReschedulingConfig
from controller.runtime.controller.roster import LiveConfig
from tests.unit.runtime.controlled_cluster import ControlledCluster
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import PATIENCE_S, FakeNetwork
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


def lengths(n: int) -> tuple[int, int]:
    return 4 + 37 * n % 90, 3 + 23 * n % 60


async def test_many_requests_each_with_exactly_its_tokens(cluster: ControlledCluster) -> None:
    frontend = cluster.frontend
    ends = await asyncio.wait_for(
        asyncio.gather(*[frontend.request(f"r{n}", *lengths(n)) for n in range(60)]), PATIENCE_S
    )
    assert set(ends) == {"finished"}
    for n in range(60):
        assert frontend.tokens[f"r{n}"] == tokens_of(f"r{n}", lengths(n)[1])
    assert frontend.router.num_live_reqs == 0
    records = cluster.controller.scheduler.instances
    await cluster.until(
        lambda: all(
            record.unreported.num_requests == 0 and record.snapshot.num_free_blocks == 64
            for record in records.values()
        )
    )
    assert all(record.last_dispatch_seq > 10 for record in records.values()), "both took part"


async def test_an_instance_s_death_replays_its_own_requests_and_no_other(
    cluster: ControlledCluster,
) -> None:
    frontend, dying = cluster.frontend, cluster.instances["i-0"]
    for instance in cluster.instances.values():
        instance.engine.hold()
    work = [
        asyncio.create_task(frontend.request(f"r{n}", num_prompt_tokens=8, max_tokens=30))
        for n in range(20)
    ]
    await cluster.until(lambda: len(frontend.router.routes.machine.live) == 20)
    for instance in cluster.instances.values():
        instance.engine.allow(10)
    await cluster.until(lambda: sum(map(len, frontend.tokens.values())) >= 50)
    lost = {
        r
        for r in list(frontend.router.routes.machine.live)
        if (route := frontend.router.routes.machine.live.get(r))
        and route.ownership.owner.instance_id == "i-0"
    }
    cluster.network.lose(dying.address)
    cluster.instances["i-1"].engine.go_on()
    ends = await asyncio.wait_for(asyncio.gather(*work), PATIENCE_S)
    assert set(ends) == {"finished"}
    for request_id, tokens in frontend.tokens.items():
        assert tokens == tokens_of(request_id, 30)
    assert 0 < len(lost) < 20
    found = await cluster.controller.queries.requests(["f-0"])
    assert {r.request_id for r in found.requests if r.num_replays} == lost
    assert {r.num_replays for r in found.requests} == {0, 1}
    replays = cluster.controller.replays
    await cluster.until(lambda: replays.last_minute(cluster.controller.now_s())[0] == len(lost))
    assert {reason for _, reason in replays.counts()} == {ExitReason.DEATH}
    assert {each.destination_id for each in replays.recent} <= {"i-0", "i-1"}
    assert all(each.source_id == "i-0" for each in replays.recent)
    assert not replays.under_way
    await dying.end()
    cluster.instances["i-0"] = Instance(cluster.network, "i-0", process=1)
    records = cluster.controller.scheduler.instances
    await cluster.until(lambda: records["i-0"].incarnation == 2 and records["i-0"].snapshot)
    await cluster.until(lambda: frontend.known == ["i-0", "i-1"])
    again = await asyncio.gather(*[frontend.request(f"again{n}", 8, 5) for n in range(8)])
    assert set(again) == {"finished"}


async def test_without_a_controller_requests_go_on_and_new_ones_run(
    cluster: ControlledCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.core.admission.asking.CONTROLLER_SILENCE_S", 0.05)
    frontend = cluster.frontend
    for instance in cluster.instances.values():
        instance.engine.hold()
    before = [asyncio.create_task(frontend.request(f"a{n}", 8, 30)) for n in range(6)]
    await cluster.until(lambda: len(frontend.router.routes.machine.live) == 6)
    cluster.running.cancel()
    cluster.network.lose(CONTROLLER)
    for instance in cluster.instances.values():
        instance.engine.go_on()
    after = [asyncio.create_task(frontend.request(f"b{n}", 8, 30)) for n in range(6)]
    ends = await asyncio.wait_for(asyncio.gather(*before, *after), PATIENCE_S)
    assert set(ends) == {"finished"}
    assert all(frontend.tokens[r] == tokens_of(r, 30) for r in frontend.tokens)


async def test_what_happened_is_told_everywhere(cluster: ControlledCluster) -> None:
    assert await cluster.frontend.request("r", 20, 30) == "finished"
    journal = cluster.controller.journal

    def kinds() -> list[str]:
        entries = journal.log.after(None, 1000).entries
        return [event.kind.value for _, event in entries if event.request_id == "r"]

    await cluster.until(lambda: "finished" in kinds())
    assert sorted(kinds()) == ["admitted", "dispatched", "finished"]
    found = await cluster.controller.queries.requests(["f-0"], matching="r", history=True)
    (record,) = found.requests
    assert (record.state.value, record.num_output_tokens) == ("finished", 30)
    history = [event.kind.value for event in record.history]
    assert history == ["dispatched", "admitted", "finished"]
    assert record.history[1].cause_id.startswith(f"step-{record.instance_id}-1-")
    serving = cluster.instances[str(record.instance_id)].llumlet.serving
    p99_s = serving.emission._ttft.percentiles(0.99, 0.0).all_s
    assert p99_s is not None


@pytest.mark.parametrize(("max_replays", "kind"), [(0, "failed"), (3, "replayed")])
async def test_requests_that_are_lost_with_their_instance_share_its_cause(
    cluster: ControlledCluster, max_replays: int, kind: str
) -> None:
    frontend = cluster.frontend
    frontend.router.routes.machine.replays.config = ReplayConfig(max_replays)
    for instance in cluster.instances.values():
        instance.engine.hold()
    running = [asyncio.create_task(frontend.request(f"r{n}", 8, 5)) for n in range(4)]
    await cluster.until(lambda: len(frontend.router.routes.machine.live) == 4)
    cluster.network.lose(cluster.instances["i-0"].address)
    cluster.instances["i-1"].engine.go_on()
    await asyncio.wait_for(asyncio.gather(*running), PATIENCE_S)

    def causes() -> dict[str, list[str]]:
        by_kind: dict[str, list[str]] = {}
        for _, event in cluster.controller.journal.log.after(None, 1000).entries:
            by_kind.setdefault(event.kind.value, []).append(event.cause_id)
        return by_kind

    num_finished = 4 if max_replays else 2
    await cluster.until(lambda: len(causes().get("finished", [])) == num_finished)
    await cluster.until(lambda: len(causes().get(kind, [])) == 2)
    assert set(causes()[kind]) == set(causes()["instance_died"]) == {"lost-i-0-1"}
