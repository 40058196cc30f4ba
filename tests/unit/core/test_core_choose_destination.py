"""Which one of any instances a request moves to."""

from dataclasses import replace

from controller.core.emptying.relief import choose_destination, lacks
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot
from controller.core.migration.refusals import MoveRefusal
from tests.unit.core.core_builders import running, snapshot_of


def named(instance_id: str, held_blocks: int) -> InstanceSnapshot:
    return snapshot_of([running("r", held_blocks)], instance_id=instance_id)


def test_what_it_lacks() -> None:
    some = replace(snapshot_of([running("r", 40)], watermark_blocks=5), max_num_running=1)
    assert lacks(some, 56) is MoveRefusal.NO_BLOCKS
    assert lacks(some, 55) is MoveRefusal.NO_SLOT
    assert lacks(replace(some, max_num_running=2), 55) is None
    assert lacks(replace(some, max_num_running=0), 55) is None, "nobody said how many fit"
    assert lacks(replace(some, num_free_blocks=0), 0) is None, "a queued request needs nothing"
    filling = replace(snapshot_of([running("r", 40)]), fill_blocks=30)
    assert lacks(filling, 31) is MoveRefusal.NO_BLOCKS, "what running prefills still take"
    assert lacks(filling, 30) is None


def test_the_freest_with_room_that_does_not_drain() -> None:
    there = [named("i-1", 60), named("i-2", 50), named("i-3", 40)]
    assert choose_destination(there, DEFAULT_LEVELS, 50) == "i-3"
    assert choose_destination(there, DEFAULT_LEVELS, 61) is None
    there[2] = replace(there[2], max_num_running=1)  # its batch is full
    assert choose_destination(there, DEFAULT_LEVELS, 50) == "i-2"
    there[1] = replace(there[1], draining=True)
    assert choose_destination(there, DEFAULT_LEVELS, 40) == "i-1"
    assert choose_destination(there, DEFAULT_LEVELS, 41) is None
