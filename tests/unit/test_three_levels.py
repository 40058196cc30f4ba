"""Three levels by configuration, one with a negative rank, in listings and metrics. How they are
served: tests/unit/core/test_core_scheduler.py."""

import asyncio

from controller.adapters.http.cluster_view import cluster_status
from controller.adapters.http.live_settings import live_config
from controller.adapters.http.requests import RequestsQuery, list_requests
from controller.adapters.prometheus import ClusterMetrics, render
from controller.api.settings.settings import Settings
from controller.core.load.snapshot import QueueHead
from controller.core.migration.move_records import MoveLog
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.frontend.request_book import RequestBook
from tests.unit.control.control_support import LABELS, Cluster

NORMAL, URGENT, BATCH = 0, 5, -2
LEVELS = [
    {"name": "normal", "rank": NORMAL},
    {"name": "urgent", "rank": URGENT, "target_load_tokens": 320},
    {"name": "batch", "rank": BATCH},
]
CONFIG = live_config(Settings.model_validate({"priority": LEVELS}))


async def test_listings_and_metrics_name_them() -> None:
    cluster = Cluster()
    cluster.controller.configure(CONFIG)
    cluster.up()
    cluster.hello("f-0", incarnation=1, ttft_p99_by_level_s={"urgent": 0.5})
    cluster.report(
        num_free_blocks=40,
        num_running=6,
        num_running_by_rank={BATCH: 3, NORMAL: 2, URGENT: 1},
        ttft_p99_by_rank_s={URGENT: 0.25, BATCH: 9.0},
        num_queued=3,
        num_queued_by_rank={BATCH: 1, NORMAL: 2},
        queue_head=QueueHead("q", BATCH, 3, 0.0),
    )
    status = cluster_status(cluster.controller, LABELS, 1.0)
    (instance,) = status.instances
    assert instance.num_running_by_level == {"urgent": 1, "normal": 2, "batch": 3}
    assert instance.num_waiting_by_level == {"normal": 2, "batch": 1}
    assert instance.ttft_p99_by_level_s == {"urgent": 0.25, "batch": 9.0}
    assert instance.queue_head is not None
    assert instance.queue_head.level == "batch"
    listed = [
        (each.name, each.rank, each.num_running_reqs, each.headroom_blocks, each.ttft_p99_s)
        for each in status.levels
    ]
    urgent = ("urgent", URGENT, 1, 80, 0.5)
    assert listed == [("normal", NORMAL, 2, 0, None), urgent, ("batch", BATCH, 3, 0, None)]
    text = render({"": ClusterMetrics(status, {}, MoveLog())}).decode()
    name = 'llumctl_instance_level_running_requests{instance_id="i-0",level="batch"}'
    assert f"{name} 3.0" in text

    book = RequestBook("f-0", {level.rank: level.name for level in CONFIG.scheduler.levels})
    for request_id in ("r-1", "r-2"):
        book.arrived(DispatchRequested(request_id, "f-0", 10, BATCH, 1.0), request_id, None)
    book.level_changed("r-1", URGENT, "op-1", "ann", "")
    cluster.mailbox.engine_state["mem://f-0"] = book
    found = await asyncio.wait_for(list_requests(cluster.controller, RequestsQuery()), 5.0)
    assert {each.id: each.level for each in found.requests} == {"r-1": "urgent", "r-2": "batch"}
