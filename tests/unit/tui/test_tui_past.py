"""The past of the cluster: told by the controller or a recording, or derived from statuses."""

from itertools import pairwise
from pathlib import Path

from controller.api.wire.history import HistoryReport
from controller.api.wire.status import InstanceStatus
from controller.api.wire.stream import HistoryFrame, StatusFrame
from tests.unit.tui.tui_support import FakeSource, after, replaying, watching
from tools import synthetic_cluster as synthetic
from tui.past import Past
from tui.session import PAST_AGAIN_S, PAST_EVERY_S
from tui.state import Arrived, DashboardState, HistoryArrived, Stopped, reduce

START_S = synthetic.START_S


def told(*reports: HistoryReport, state: DashboardState | None = None) -> DashboardState:
    return reduce(state or DashboardState(), [HistoryArrived(reports, 0.0)])


def test_what_is_told_is_kept_for_a_quarter_of_an_hour_and_continued() -> None:
    found = told(synthetic.history(1200)).past
    assert len(found.points) == 900
    assert found.is_told
    assert found.last_s == START_S
    first = found.points[0]
    assert (first.num_moved, first.levels["high"].num_waiting) == (0.0, 0.0)
    assert first.levels["high"].ttft_p99_s is not None
    more = synthetic.history(3, START_S + 2)
    later = told(more, state=told(synthetic.history(1200))).past
    assert len(later.points) == 900
    assert later.last_s == START_S + 2
    assert all(before.time_s < each.time_s for before, each in pairwise(later.points))
    assert told(HistoryReport(), state=told(more)).past.points == told(more).past.points


def test_columns_that_are_missing_or_short_are_unknown() -> None:
    whole = synthetic.history(4)
    cut = whole.model_copy(update={"cluster": {"kv_held_share": (0.5,)}, "span_s": ()})
    points = told(cut).past.points
    assert [each.kv_held for each in points] == [0.5, None, None, None]
    assert {(each.kv_wanted, each.num_moved, each.span_s) for each in points} == {(None, 0.0, 1.0)}


def frame(at_s: float, evictions: int, moved_s: tuple[float, ...] = ()) -> StatusFrame:
    items: tuple[InstanceStatus, ...] = (synthetic.instance("i-0", num_evictions=evictions),)
    status = synthetic.cluster(items, START_S + at_s)
    (ended, *_) = synthetic.moving(status).ended_moves
    moves = tuple(ended.model_copy(update={"ended_s": START_S + each}) for each in moved_s)
    return StatusFrame(
        time_s=START_S + at_s, status=status.model_copy(update={"ended_moves": moves})
    )


def test_points_are_derived_from_statuses_each_second_unless_they_are_told() -> None:
    frames = [frame(0, 5), frame(0.5, 6), frame(1, 7, (0.7,)), frame(4, 7, (3.0, 2.0, 0.7))]
    points = after(frames).past.points
    assert [each.time_s - START_S for each in points] == [0, 1, 4]
    assert [each.num_evicted for each in points] == [0, 2, 0]
    assert [each.num_moved for each in points] == [0, 1, 2]
    assert points[1].kv_held == 550 / 990
    assert points[1].levels["normal"].ttft_p99_s == 1.9
    assert told(synthetic.history(3), state=after(frames)).past.points[0].time_s == START_S - 2
    assert len(told(state=after(frames)).past.points) == 3, "this controller tells nothing"
    known = told(synthetic.history(3))
    assert reduce(known, [Arrived(frame(9, 8), 0.0)]).past is known.past
    back = reduce(after(frames), [Arrived(frame(-60, 8), 0.0)]).past
    assert [each.time_s - START_S for each in back.points] == [-60]


def test_the_trends_of_instances_begin_with_what_is_told() -> None:
    status = frame(0, 5)
    report = synthetic.history(90, instances=1)
    for found in (
        told(report, state=after([status])),
        after([HistoryFrame(time_s=START_S, history=report), status]),
    ):
        samples = found.histories["i-0"].samples
        assert len(samples) == 60
        assert [each.freeness_steps for each in samples[-2:]] == [300.0 - 88, 521.0]
        assert len(found.histories["i-0"].changes) == 1


async def test_the_history_is_asked_for_once_and_then_while_graphs_are_shown() -> None:
    source = FakeSource()
    source.history = (synthetic.history(300), synthetic.history(60, instances=16))
    async with watching((), (80, 24), source) as bed:
        assert source.asked_after_s == [], "nobody is heard yet"
        await bed.feed(synthetic.overloaded(2))
        await bed.wait(PAST_EVERY_S)
        assert source.asked_after_s == [None]
        await bed.resize(120, 36)
        await bed.sees("KV held #", "P99 TTFT H1.2s N10s")
        await bed.wait(PAST_EVERY_S)
        assert source.asked_after_s == [None, START_S, START_S]
        await bed.hear(Stopped("stopped by ana", source.clock_s))
        await bed.wait(PAST_AGAIN_S)
        assert len(source.asked_after_s) == 3


async def test_a_controller_without_a_history_is_asked_seldom() -> None:
    async with watching(3, (120, 36)) as bed:
        await bed.wait(PAST_EVERY_S)
        assert bed.source.asked_after_s == [None]
        await bed.wait(PAST_AGAIN_S)
        assert bed.source.asked_after_s == [None, None]
        assert len(bed.app.session.state.past.points) == 3


async def test_a_replay_begins_with_the_recorded_past(tmp_path: Path) -> None:
    history = HistoryFrame(time_s=START_S, history=synthetic.history(300))
    async with replaying(tmp_path, [history, *synthetic.frames(10)], at_s=5.0) as replay:
        past = replay.app.session.state.past
        assert past.points[0].time_s == START_S - 299
        assert past.last_s == START_S + 5
        assert not past.is_told
        await replay.sees("KV held #")
        await replay.press("full_stop", "comma")
        assert replay.app.session.state.past == past


def test_a_past_is_empty_at_first() -> None:
    assert Past().last_s == float("-inf")
