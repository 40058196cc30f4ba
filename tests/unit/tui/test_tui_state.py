"""The reducer: frames go in, and the dashboard's state comes out."""

from datetime import UTC

import pytest

from controller.api.wire.requests import Event
from controller.api.wire.status import InstanceState
from controller.api.wire.stream import EventFrame, PingFrame, StatusFrame
from tools import synthetic_cluster as synthetic
from tui.panes.events import history_rows
from tui.state import MAX_EVENTS, MAX_RARE, Arrived, DashboardState, Heard, Lost, reduce


def status(at_s: float, *instances: object) -> Arrived:
    found = synthetic.cluster(instances, at_s)
    return Arrived(StatusFrame(time_s=at_s, status=found), at_s)


def event(at_s: float, kind: str = "admitted", request_id: str | None = None) -> Arrived:
    found = Event(kind=kind, time_s=at_s, cause_id="c", request_id=request_id)
    return Arrived(EventFrame(time_s=at_s, event=found), at_s)


def test_a_minute_of_freeness_is_kept_but_none_of_a_draining_instance() -> None:
    """A clock that is set back begins the trend anew."""
    found = [synthetic.instance("i-0", freeness_steps=float(second)) for second in range(99)]
    found.append(synthetic.instance("i-0", InstanceState.DRAINING, freeness_steps=9.0))
    heard = [status(float(second), item) for second, item in enumerate(found)]
    state = reduce(DashboardState(), heard)
    samples = state.histories["i-0"].samples
    assert [sample.time_s for sample in samples] == [float(second) for second in range(40, 100)]
    assert [sample.freeness_steps for sample in samples[-2:]] == [98.0, None]
    back = reduce(state, [status(50.0, synthetic.instance("i-0"))]).histories["i-0"]
    assert [sample.time_s for sample in back.samples] == [50.0]
    assert [each.minute for each in back.minutes] == [0]


def test_the_kv_use_of_each_minute_of_the_last_hour_is_kept() -> None:
    heard = [
        status(20.0 * place, synthetic.instance("i-0", kv_cache_usage=place % 3 / 2))
        for place in range(3 * 80)
    ]
    heard.append(status(4800.0, synthetic.instance("i-0", kv_cache_usage=None)))
    minutes = reduce(DashboardState(), heard).histories["i-0"].minutes
    assert [each.minute for each in minutes] == list(range(21, 80))
    assert {each.mean for each in minutes} == {0.5}


def test_changes_of_state_are_kept_and_details_renewed() -> None:
    """What was so before the view began is not said to have become so."""
    starting = InstanceState.STARTING
    heard = [
        status(1.0, synthetic.instance("i-0", starting, detail="importing")),
        status(2.0, synthetic.instance("i-0", starting, detail="loading weights")),
        status(3.0, synthetic.instance("i-0")),
        status(4.0, synthetic.instance("i-0", incarnation=2)),
        status(5.0),
        status(6.0),
    ]
    state = reduce(DashboardState(), heard)
    changes = state.histories["i-0"].changes
    assert [(change.time_s, change.state, change.incarnation) for change in changes] == [
        (1.0, starting, 1),
        (3.0, InstanceState.ACTIVE, 1),
        (4.0, InstanceState.ACTIVE, 2),
        (5.0, None, 2),
    ]
    assert changes[0].detail == "loading weights"
    assert [change.was_so for change in changes] == [True, False, False, False]
    told = [row.detail for row in history_rows(state, "i-0", UTC)]
    assert [text for text in told if "already so" in text] == [told[-1]]


def test_heard_at_once_or_one_by_one_is_the_same() -> None:
    heard = [Arrived(frame, frame.time_s) for frame in synthetic.frames(20)]
    state = DashboardState()
    for item in heard:
        state = reduce(state, [item])
    assert state == reduce(DashboardState(), heard)
    left = [status(1.0, synthetic.instance("i-0")), status(2.0), status(3600.0)]
    assert "i-0" in reduce(DashboardState(), left).histories
    assert "i-0" not in reduce(DashboardState(), [*left, status(3603.0)]).histories, "long ago"


PING_12, PING_15 = (Arrived(PingFrame(time_s=at_s), at_s) for at_s in (12.0, 15.5))
GONE = Lost("gone", 10.1)
STALE = {
    "an idle stream that pings is not stale": ([status(10.0), PING_12], 14.9, 5.0, False),
    "no ping": ([status(10.0), PING_12], 15.1, 5.0, True),
    "pings, but statuses that do not come": ([status(10.0), PING_15], 15.6, 1.0, True),
    "statuses that come seldom": ([status(10.0), PING_15], 15.6, 2.0, False),
    "a lost stream is stale at once": ([status(10.0), GONE], 10.2, 1.0, True),
    "and well with the next frame": ([status(10.0), GONE, PING_12], 12.1, 1.0, False),
    "before the first frame nothing is stale": ([], 99.0, 1.0, False),
    "unless it is lost": ([GONE], 10.1, 1.0, True),
}


@pytest.mark.parametrize(("heard", "now_s", "every_s", "is_stale"), STALE.values(), ids=STALE)
def test_what_is_stale(heard: list[Heard], now_s: float, every_s: float, is_stale: bool) -> None:
    assert reduce(DashboardState(), heard).is_stale(now_s, every_s) is is_stale


def test_ages_are_by_our_clock_and_times_by_the_controllers() -> None:
    frame = StatusFrame(time_s=1000.0, status=synthetic.cluster((), 1000.0))
    state = reduce(DashboardState(), [Arrived(frame, 5.0)])
    assert state.age_s(7.5) == 2.5
    assert state.controller_time_s(7.5) == 1002.5
    assert DashboardState().age_s(9.0) is None


def test_the_last_events_are_kept_and_no_routine_pushes_out_what_is_rare() -> None:
    rare = [event(1.0, "instance_died"), event(2.0, "operator"), event(3.0, "failed", "r1")]
    routine = [event(4.0, "admitted", f"r{n}") for n in range(3 * MAX_EVENTS)]
    state = reduce(DashboardState(), [*rare, *routine])
    kinds = [entry.event.kind for entry in state.entries if entry.event]
    assert kinds[:4] == ["instance_died", "operator", "failed", "admitted"]
    assert len(kinds) == MAX_EVENTS + 3
    assert (state.entries[3].seq, state.num_entries) == (2 * MAX_EVENTS + 3, 3 * MAX_EVENTS + 3)
    refused = [event(5.0, "rejected", f"r{n}") for n in range(3 * MAX_RARE)]
    state = reduce(state, refused)
    kinds = [entry.event.kind for entry in state.entries if entry.event]
    assert kinds[:3] == ["instance_died", "operator", "admitted"]
    assert kinds.count("rejected") == MAX_RARE
    assert [entry.seq for entry in state.entries] == sorted(entry.seq for entry in state.entries)


def test_routine_events_are_counted_over_whole_seconds() -> None:
    heard = [event(10 + second / 4, "dispatched") for second in range(100)]
    heard += [event(30 + second, "finished") for second in range(5)]
    heard.append(event(35.0, "operator"))
    state = reduce(DashboardState(), sorted(heard, key=lambda item: item.at_s))
    assert state.rates() == {"dispatched": 4.0, "finished": 1.0}
    state = reduce(state, [status(37.5)])
    assert state.rates() == {"dispatched": 2.4, "finished": 0.6}
    assert reduce(state, [status(60.0)]).rates() == {}
    assert reduce(state, [event(5.0, "evicted"), status(6.0)]).rates() == {"evicted": 0.2}


def test_events_of_the_past_count_in_their_own_seconds() -> None:
    """After connecting, the last thousand events come at once, although they are of many
    seconds."""
    way = {"kind": "migrated", "cause_id": "c", "labels": {"from": "i-0", "to": "i-1"}}
    past = [
        Arrived(EventFrame(time_s=100.0, event=Event(time_s=float(second), **way)), 100.0)
        for second in range(10, 100)
    ]
    state = reduce(DashboardState(), past)
    assert state.rates() == {"migrated": 1.0}
    state = reduce(state, [status(100.5)])
    assert [way.time_s for way in state.ways] == [float(second) for second in range(41, 100)]


def test_an_alarm_lasts_until_a_figure_is_well_below_its_limit() -> None:
    state = DashboardState()
    found: list[int] = []
    for second, ttft_s in enumerate((9.9, 10.0, 9.9, 8.1, 7.9, 9.9)):
        item = synthetic.instance("i-0", ttft_p99_s=ttft_s)
        state = reduce(state, [status(float(second), item)])
        found.append(len(state.alarms))
    assert found == [0, 1, 1, 1, 0, 0]
