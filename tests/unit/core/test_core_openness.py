"""What is avoided for a while, above all destinations that failed. `test_core_scheduler` asks who
is open in random histories."""

from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.openness import Avoided, Cooling, Openness
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import MoveRefusal
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import InstanceStarted, StatusReported


def test_one_that_failed_cools_for_its_source_only() -> None:
    cooling = Cooling(30.0)
    for number in (1, 1, 3):  # though its link may be what is broken
        cooling.failed("i-0", f"i-{number}", 100.0)
    assert cooling.remaining_s("i-1", 100.0, "i-0") == 30.0
    assert cooling.remaining_s("i-1", 129.5, "i-0") == 0.5
    assert cooling.remaining_s("i-1", 130.0, "i-0") == 0.0
    for destination_id, source_id in (("i-1", "i-2"), ("i-1", None), ("i-2", "i-0")):
        assert cooling.remaining_s(destination_id, 100.0, source_id) == 0.0
    assert list(cooling.pairs(129.5)) == [("i-0", "i-1"), ("i-0", "i-3")]
    assert list(cooling.pairs(130.0)) == []


def test_one_that_failed_with_two_sources_or_died_cools_for_all() -> None:
    cooling = Cooling(30.0)
    cooling.failed("i-0", "i-1", 100.0)
    cooling.failed("i-2", "i-1", 120.0)
    assert cooling.remaining_s("i-1", 125.0) == cooling.remaining_s("i-1", 125.0, "i-3") == 25.0
    assert cooling.remaining_s("i-1", 150.0) == 0.0
    cooling.failed("i-0", "i-1", 150.0)
    assert cooling.remaining_s("i-1", 150.0) == 0.0, "two that lie far apart are single ones"
    cooling.failed("i-0", "i-1", 160.0)
    assert cooling.remaining_s("i-1", 180.0, "i-0") == 10.0, "another one begins anew"
    cooling.died("i-1", 190.0)
    assert (cooling.remaining_s("i-1", 200.0), cooling.remaining_s("i-2", 200.0)) == (20.0, 0.0)


def test_avoided_until_a_moment_with_why() -> None:
    avoided: Avoided[str] = Avoided()
    avoided.avoid("r-1", 10.0, "evicted")
    avoided.avoid("r-2", 9.0)
    assert (avoided.why("r-1", 9.5), avoided.remaining_s("r-1", 9.5)) == ("evicted", 0.5)
    assert list(avoided.at(9.5)) == ["r-1"]
    assert (avoided.why("r-1", 10.0), avoided.remaining_s("r-1", 10.0)) == ("", 0.0)
    assert not avoided.at(10.0)


def test_only_engines_that_are_alike_exchange_requests() -> None:
    scheduler = GlobalScheduler(SchedulerConfig())
    for number, vllm in enumerate(("1", "1", "2")):
        started = InstanceStarted(f"i-{number}", 1, f"runner=v1 vllm={vllm}")
        scheduler.handle(started, 0.0)
        snapshot = InstanceSnapshot(f"i-{number}", 1, 16, 100, 100)
        scheduler.handle(StatusReported(snapshot, 0), 0.0)
    openness = Openness(scheduler, Cooling())
    assert openness.unlike("i-0", "i-1") is None
    assert openness.unlike("i-0", "i-2") is MoveRefusal.VLLM_VERSION
    assert openness.unlike("i-0", "unknown") is None
    there = openness.destinations(0.0, "i-0")
    assert [each.instance_id for each in there] == ["i-0", "i-1"]
    openness.allow_inexact = True
    assert openness.unlike("i-0", "i-2") is None
