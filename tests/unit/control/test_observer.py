"""The observer: the history, the verdict and the alarms that it makes of what members say, and how
clients get them."""

import math
from collections.abc import Sequence

import httpx
import pytest

from controller.adapters.http.observer import Observer, present_of, seen_of
from controller.api.settings.settings import ConsoleTable
from controller.api.wire.history import HistoryReport
from controller.api.wire.status import AttachedStatus, ClusterStatus
from controller.core.load.snapshot import QueueHead
from controller.core.record.alarm_book import QUIET_S
from controller.core.record.event_log import EventKind
from controller.core.record.history import Sample
from controller.core.record.verdict import RAISED_AFTER_S
from controller.core.record.windows import ServedInAll, bucket_of
from controller.ports.processes import LauncherLoss
from tests.unit.control.control_support import AUTHORIZED, Cluster, Listener, listening

LIMITS = ConsoleTable(alarm_waiting_reqs=20)
MAX_LOOKS = int(QUIET_S) + 2


class Store:
    def __init__(self, kept: Sequence[Sample] = ()) -> None:
        self.kept = list(kept)

    def load(self) -> list[Sample]:
        return list(self.kept)

    def keep(self, sample: Sample) -> None:
        self.kept.append(sample)


class Bed:
    """An observer whose looks the test makes. Its statuses are a second apart."""

    def __init__(self, num_instances: int = 2, store: Store | None = None) -> None:
        self.cluster = Cluster(num_instances)
        self.cluster.up()
        self.time_s = 5000.0
        self.observer = Observer([self.cluster.controller], self._status, LIMITS, store)

    def _status(self) -> ClusterStatus:
        up = {"uptime_s": 60.0, "cluster_uptime_s": 70.0}
        return self.cluster.view().model_copy(update={"time_s": self.time_s, **up})

    def look(self, times: float = 1) -> ClusterStatus:
        for _ in range(int(times)):
            self.time_s += 1.0
            self.observer.look(1.0)
        return self.observer.with_findings(self._status())

    def serves(self, num: int, ttft_s: float = 0.2) -> None:
        """The frontend has served `num` requests."""
        served = ServedInAll(num, num, 50 * num, {"normal": {bucket_of(ttft_s): num}})
        self.cluster.hello("f-0", incarnation=1, served=served)

    def is_full(self, instance_id: str = "i-0") -> None:
        head = QueueHead("r", 0, 60, arrival_time_s=1.0)
        self.cluster.report(
            instance_id,
            num_free_blocks=1,
            num_running=9,
            num_queued=30,
            num_queued_by_rank={0: 30},
            queued_demand_blocks=900,
            queue_head=head,
        )

    def told(self, *kinds: EventKind) -> list[str]:
        page = self.cluster.controller.journal.log.after(None, 1000)
        return [f"{e.kind} {e.reason}" for _, e in page.entries if e.kind in kinds]


@pytest.fixture
async def bed() -> Bed:
    return Bed()


async def test_a_look_puts_what_members_say_into_the_history(bed: Bed) -> None:
    bed.serves(5)
    bed.look()
    bed.serves(8)
    bed.cluster.report(num_running=3, num_running_by_rank={0: 3}, num_free_blocks=50)
    bed.look()
    sample = bed.observer.history.latest
    assert sample is not None
    assert sample.counts["num_arrived"] == 3
    assert sample.counts["num_output_tokens"] == 150
    assert sample.gauges["num_running_reqs"] == 3
    assert sample.gauges["kv_held_share"] == pytest.approx(50 / 200)
    assert sample.levels["normal"].num_running == 3
    assert sample.levels["normal"].ttft == {bucket_of(0.2): 3}
    freeness, held, _, running, _, ttft_s = sample.instances()["i-0"]
    assert (freeness, held, running) == (pytest.approx(16 * 50 / 3, rel=1e-3), 0.5, 3)
    assert math.isnan(ttft_s)


async def test_the_output_of_the_last_minute_and_of_each_point(bed: Bed) -> None:
    assert bed.observer.with_findings(bed.cluster.view()).tokens_per_s is None
    bed.serves(5)
    bed.look()
    bed.serves(8)
    found = bed.look(2)
    assert found.tokens_per_s == pytest.approx(50.0), "150 tokens in 3 s"
    assert found.tokens_per_instance_hour == pytest.approx(50.0 * 3600 / 2)
    assert bed.look(70).tokens_per_s == 0.0


async def test_the_verdict_and_the_alarms_are_in_the_status_and_in_the_log(bed: Bed) -> None:
    assert bed.look().verdict is not None
    for instance_id in ("i-0", "i-1"):
        bed.is_full(instance_id)
    found = bed.look(RAISED_AFTER_S + 1)
    assert found.verdict is not None
    assert found.verdict.word == "overloaded"
    assert found.verdict.order is not None
    assert found.verdict.order.deed == "add"
    assert {each.subject: each.ended_s for each in found.alarms} == {"i-0": None, "i-1": None}
    assert bed.told(EventKind.VERDICT)[0].startswith("verdict overloaded: 60 wait on 2 of 2")
    assert bed.told(EventKind.ALARM_RAISED)[0].startswith("alarm_raised 30 wait, head for ")
    for instance_id in ("i-0", "i-1"):
        bed.cluster.report(instance_id)
    found = bed.look(MAX_LOOKS)
    assert found.verdict is not None
    assert found.verdict.word == "ok"
    assert [each.ended_s is not None for each in found.alarms] == [True, True]
    assert len(bed.told(EventKind.ALARM_CLEARED)) == 2
    assert len(bed.told(EventKind.VERDICT)) == 2


async def test_a_member_that_is_gone_makes_the_cluster_degraded_at_once(bed: Bed) -> None:
    bed.look()
    bed.cluster.mailbox.lose("mem://i-1")
    found = bed.look()
    assert found.verdict is not None
    assert found.verdict.why == "i-1 died and starts again, 1 of 2 serve"


async def test_what_is_gone_does_not_come_back_while_no_process_can_be_started(bed: Bed) -> None:
    bed.look()
    bed.cluster.mailbox.lose("mem://i-1")
    bed.cluster.launcher.loss = lambda: LauncherLoss("Ray's head is gone", 9.0, None)
    found = bed.look().verdict
    assert found is not None
    assert found.why == "i-1 died, Ray's head is gone, 1 of 2 serve"
    assert (found.severity, found.order) == ("bad", None)


async def test_the_next_controller_has_the_samples_that_were_kept() -> None:
    store = Store()
    bed = Bed(store=store)
    bed.look(25)
    assert len(store.kept) == 2
    after = Bed(store=Store(store.kept))
    after.time_s = 5100.0
    after.look()
    samples = after.observer.history.since(0.0)
    assert [each.span_s for each in samples] == [10.0, 10.0, 1.0]


async def test_the_history_over_http() -> None:
    async with listening(2) as (listener, client):
        observer = _observer(listener)
        for _ in range(3):
            observer.look(1.0)
        report = await _history(client, "points=2")
        assert len(report.time_s) <= 2
        assert sum(each or 0 for each in report.span_s) == 3.0
        assert report.cluster["num_serving"][-1] == 2.0
        assert set(report.levels) == {"normal", "high"}
        assert report.levels["high"].ttft_p99_s[-1] is None
        assert report.instances == {}
        whole = await _history(client, "instances=true")
        assert whole.instances["i-1"]["kv_held_share"][-1] == 0.0
        newest_s = whole.time_s[-1]
        assert (await _history(client, f"after_s={newest_s}")).time_s == ()
        for wrong in ("points=0", "last_s=-1", "what=1"):
            answer = await client.get(f"/v1/history?{wrong}", headers=AUTHORIZED)
            assert answer.status_code == 400, wrong


async def _history(client: httpx.AsyncClient, query: str) -> HistoryReport:
    answer = await client.get(f"/v1/history?{query}", headers=AUTHORIZED)
    assert answer.status_code == 200
    return HistoryReport.model_validate_json(answer.content)


def _observer(listener: Listener) -> Observer:
    found = listener.api.observer
    assert isinstance(found, Observer)
    return found


async def test_what_is_kept_for_a_request_is_no_room(bed: Bed) -> None:
    """Neither is what a draining instance has."""
    bed.look()
    status = bed.cluster.view()
    sample = bed.observer.history.latest
    assert sample is not None
    assert set(present_of(status, sample).room_blocks) == {"i-0", "i-1"}
    closed = status.instances[0].model_copy(update={"closed_by": ("draining",)})
    status = status.model_copy(update={"instances": (closed, status.instances[1])})
    assert set(present_of(status, sample).room_blocks) == {"i-1"}
    server = AttachedStatus(
        url="http://s", kind="vllm", model="m", max_model_len=9, capacity_tokens=9
    )
    attached = status.instances[1].model_copy(update={"attached": server})
    beside = status.model_copy(update={"instances": (closed, attached)})
    assert present_of(beside, sample).room_blocks == {}, "requests cannot move there"
    assert not present_of(beside, sample).attached_only
    alone = status.model_copy(update={"instances": (attached,)})
    assert present_of(alone, sample).attached_only
    assert seen_of(status, {}, {}).gauges["num_instances"] == 2.0
