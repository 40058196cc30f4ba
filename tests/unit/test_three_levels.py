"""Three levels by configuration, one with a negative rank, everywhere that levels are named."""

import asyncio
import tomllib

from controller.adapters.http.cluster_view import cluster_status
from controller.adapters.http.live_settings import live_config
from controller.adapters.http.requests import RequestsQuery, list_requests
from controller.adapters.prometheus import render
from controller.api.settings.settings import Settings
from controller.core.load.snapshot import InstanceSnapshot, QueueHead
from controller.core.migration.move_records import MoveLog
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import DispatchRequested, InstanceStarted, StatusReported
from controller.runtime.frontend.request_book import RequestBook
from tests.unit.control_support import LABELS, Cluster

SETTINGS = Settings.model_validate(
    tomllib.loads(
        """
        [[priority]]
        name = "normal"
        rank = 0

        [[priority]]
        name = "urgent"
        rank = 5
        target_load_tokens = 320

        [[priority]]
        name = "batch"
        rank = -2
        """
    )
)
CONFIG = live_config(SETTINGS)


def snapshot(instance_id: str, num_free_blocks: int, by_rank: dict[int, int]) -> InstanceSnapshot:
    """With 100 blocks."""
    return InstanceSnapshot(
        instance_id,
        1,
        16,
        100,
        num_free_blocks,
        num_running=sum(by_rank.values()),
        num_running_by_rank=by_rank,
    )


def placed(scheduler: GlobalScheduler, rank: int) -> str:
    (dispatch,) = scheduler.handle(DispatchRequested(f"r{rank}", "f", 160, rank, 0.0), 0.0)
    return dispatch.instance_id


def test_dispatch_keeps_each_level_s_headroom() -> None:
    def scheduler() -> GlobalScheduler:
        found = GlobalScheduler(CONFIG.scheduler)
        loads = (("a", 60, {5: 2}), ("b", 50, {0: 1}), ("c", 5, {-2: 4}))
        for each in (snapshot(*load) for load in loads):
            found.handle(InstanceStarted(each.instance_id, 1), 0.0)
            found.handle(StatusReported(each, 0), 0.0)
        return found

    assert placed(scheduler(), 5) == "a", "urgent ones gather"
    assert placed(scheduler(), 0) == "b", "and nobody goes to them while there is another place"
    assert placed(scheduler(), -2) == "b"
    assert placed(scheduler(), 3) == "b", "a rank that no level has"


def test_what_is_held_goes_by_rank() -> None:
    scheduler = GlobalScheduler(CONFIG.scheduler)
    for arrival_s, rank in enumerate((-2, 0, 5, -2, 5)):
        request = DispatchRequested(f"r{arrival_s}", "f", 16, rank, float(arrival_s))
        assert scheduler.handle(request, 0.0) == []
    scheduler.handle(InstanceStarted("a", 1), 1.0)
    released = scheduler.handle(StatusReported(snapshot("a", 100, {}), 0), 1.0)
    assert [each.request_id for each in released] == ["r2", "r4", "r1", "r0", "r3"]


async def test_listings_and_metrics_name_them() -> None:
    cluster = Cluster()
    cluster.controller.configure(CONFIG)
    cluster.up()
    cluster.hello("f-0", incarnation=1, ttft_p99_by_level_s={"urgent": 0.5})
    cluster.report(
        num_free_blocks=40,
        num_running=6,
        num_running_by_rank={-2: 3, 0: 2, 5: 1},
        ttft_p99_by_rank_s={5: 0.25, -2: 9.0},
        num_queued=3,
        num_queued_by_rank={-2: 1, 0: 2},
        queue_head=QueueHead("q", -2, 3, 0.0),
    )
    status = cluster_status(cluster.controller, LABELS, 1.0)
    (instance,) = status.instances
    assert instance.num_running_by_level == {"urgent": 1, "normal": 2, "batch": 3}
    assert instance.num_waiting_by_level == {"normal": 2, "batch": 1}
    assert instance.headroom_blocks == 100 - 320 // 16
    assert instance.headroom_by_level_blocks == {"urgent": 80}
    assert instance.ttft_p99_by_level_s == {"urgent": 0.25, "batch": 9.0}
    assert instance.queue_head is not None
    assert instance.queue_head.level == "batch"
    assert [
        (
            level.name,
            level.rank,
            level.num_running_reqs,
            level.num_waiting_reqs,
            level.headroom_blocks,
            level.ttft_p99_s,
        )
        for level in status.levels
    ] == [("normal", 0, 2, 2, 0, None), ("urgent", 5, 1, 0, 80, 0.5), ("batch", -2, 3, 1, 0, None)]
    text = render(status, {}, MoveLog()).decode()
    name = "llumctl_instance_level_running_requests"
    for level, num in (("urgent", 1), ("normal", 2), ("batch", 3)):
        assert f'{name}{{instance_id="i-0",level="{level}"}} {num}.0' in text

    names = {level.rank: level.name for level in CONFIG.scheduler.levels}
    book = RequestBook("f-0", names)
    book.arrived(DispatchRequested("r-1", "f-0", 10, -2, 1.0), "c-1", None)
    book.level_changed("r-1", 5, "op-1", "ann", "")
    book.arrived(DispatchRequested("r-2", "f-0", 10, -2, 2.0), "c-2", None)
    cluster.mailbox.engine_state["mem://f-0"] = book
    found = await asyncio.wait_for(list_requests(cluster.controller, RequestsQuery()), 5.0)
    assert {each.id: each.level for each in found.requests} == {"r-1": "urgent", "r-2": "batch"}
