"""One move under all that can happen to it, in any order: Hypothesis chooses what comes next, and
shrinks failures to a few steps. `test_migration_simulation` has whole clusters."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.migration import source as src
from controller.core.migration.source import SourceState
from tests.unit.migration.move_pair import ENDED, KEPT, LOST, MOVED, RESUMED, SOURCE, Pair

MESSAGES = ("to_source", "to_destination")
DEATHS = {"source dies": Pair.source_dies, "destination dies": Pair.destination_dies}
STEPS = [
    *["next"] * 4,
    *["any", "lost", "twice", "time passes", "long", "stall", "slow", "frontend"],
    *["no blocks", "evicted", "rank", "cancelled", "client leaves"],
    *DEATHS,
]
STAYS = (SourceState.STAYED, SourceState.RESUMED, SourceState.ENDED)
"""The move is over and has no part in a change of the request's rank."""


@given(st.data())
def test_whatever_happens_one_side_has_the_request_and_nothing_is_left(data: st.DataObject) -> None:
    pair, rank, died = Pair(), 0, ""
    for what in data.draw(st.lists(st.sampled_from(STEPS), max_size=40)):
        messages = [place for place, each in enumerate(pair.todo) if each[0] in MESSAGES]
        match what:
            case "next":
                pair.step()
            case "any" | "lost" | "twice" if messages:
                place = data.draw(st.sampled_from(messages))
                pair.todo.rotate(-place)
                first = pair.todo.popleft()
                pair.todo.rotate(place)
                if what != "lost":
                    pair.todo.appendleft(first)
                if what == "twice":
                    pair.todo.append(first)
            case "time passes" | "long":
                pair.pass_time(0.4 if what == "time passes" else 12.0)
            case "stall":
                pair.stalled = not pair.stalled
            case "slow":
                pair.slow = not pair.slow
            case "frontend":
                pair.frontend_stalled = not pair.frontend_stalled
            case "no blocks":
                pair.no_blocks_from_stage = 1
            case "evicted" if pair.at_source == "batch" and pair.source_alive:
                pair.evict()
            case "rank" if pair.source_alive and pair.source.state not in STAYS:
                rank += 1
                pair.tell_source(src.PriorityChanged(rank))
            case "cancelled":
                pair.tell_source(src.MoveCancelled("drain_cancelled"))
            case "client leaves" if pair.client == "reads":
                pair.client_leaves()
            case "source dies" | "destination dies" if not died:
                died = what
                DEATHS[what](pair)
    pair.stalled = pair.slow = pair.frontend_stalled = False
    pair.settle()
    outcome = pair.outcome
    assert outcome in (KEPT, RESUMED, MOVED, ENDED, LOST)
    if outcome == LOST:
        assert died, "lost without a death"
    if outcome in (KEPT, RESUMED, MOVED):
        there = pair.source_rank if pair.at_source else pair.destination_rank
        assert there == rank or died == "source dies"
    if outcome == MOVED and pair.source_alive:
        assert pair.source.state is SourceState.MIGRATED
        assert pair.ownership.owner != SOURCE
