"""Which one of any instances a request moves to."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying.relief import choose_destination, lacks
from controller.core.load.freeness import freeness
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot
from controller.core.migration.refusals import MoveRefusal
from tests.unit.core.core_builders import queued, running, snapshot_of, snapshots


def named(instance_id: str, held_blocks: int) -> InstanceSnapshot:
    return snapshot_of([running("r", held_blocks)], instance_id=instance_id)


def test_what_it_lacks() -> None:
    some = replace(snapshot_of([running("r", 40)], watermark_blocks=5), max_num_running=1)
    assert lacks(some, 56) is MoveRefusal.NO_BLOCKS
    assert lacks(some, 55) is MoveRefusal.NO_SLOT
    assert lacks(replace(some, max_num_running=2), 55) is None
    assert lacks(replace(some, max_num_running=0), 55) is None, "nobody said how many fit"


def test_what_running_prefills_still_take_is_no_room() -> None:
    """The other kinds of room that a request could move into are counted in `Room`."""
    filling = replace(snapshot_of([running("r", 40)]), fill_blocks=30)
    assert lacks(filling, 31) is MoveRefusal.NO_BLOCKS
    assert lacks(filling, 30) is None
    assert choose_destination([filling, named("i-9", 60)], DEFAULT_LEVELS, 40) == "i-9"


def test_a_queued_request_needs_nothing_to_queue_elsewhere() -> None:
    full = replace(snapshot_of([running("r", 100), queued("s", 9)]), max_num_running=1)
    assert lacks(full, 0) is None
    assert choose_destination([full], DEFAULT_LEVELS, 0) == "a"


@given(st.lists(snapshots(), max_size=6), st.integers(0, 60), st.integers(0, 5))
def test_nobody_freer_has_room(drawn, num_blocks, num_draining) -> None:
    found = [
        replace(each, instance_id=f"i-{index}", draining=index < num_draining)
        for index, each in enumerate(drawn)
    ]
    may = {
        each.instance_id: freeness(each, DEFAULT_LEVELS)
        for each in found
        if not each.draining and lacks(each, num_blocks) is None
    }
    chosen = choose_destination(found, DEFAULT_LEVELS, num_blocks)
    assert (chosen is None) == (not may)
    if chosen is not None:
        assert all((-may[chosen], chosen) <= (-score, name) for name, score in may.items())
