"""Why a queue head waits."""

from dataclasses import replace

import pytest

from controller.core.admission.placement import QueueReason, queue_reason
from controller.core.load.snapshot import InstanceSnapshot, QueueHead


def instance(free: int, demand: int = 0, running: int = 1, watermark: int = 0) -> InstanceSnapshot:
    return InstanceSnapshot(
        instance_id=f"i-{free}",
        incarnation=1,
        block_size=16,
        num_total_blocks=100,
        num_free_blocks=free,
        watermark_blocks=watermark,
        max_num_running=8,
        num_running=running,
        queue_head=QueueHead("r", 0, demand, 0.0) if demand else None,
    )


@pytest.mark.parametrize(
    ("here", "elsewhere", "why"),
    [
        (instance(50), instance(50), None),
        (instance(50, demand=50), instance(0), QueueReason.NEXT_STEP),
        (instance(50, demand=50, running=8), instance(50), QueueReason.BATCH_FULL),
        (instance(20, demand=50, running=8), instance(0), QueueReason.BATCH_FULL),
        (instance(20, demand=50), instance(30), QueueReason.FRAGMENTED),
        (instance(20, demand=50), instance(29), QueueReason.MEMORY),
        (instance(50, demand=50, watermark=1), instance(0), QueueReason.MEMORY),
        (instance(50, demand=50, watermark=1), instance(1), QueueReason.FRAGMENTED),
        (instance(0, demand=5, watermark=9), instance(4), QueueReason.MEMORY),
    ],
)
def test_why(here: InstanceSnapshot, elsewhere: InstanceSnapshot, why: QueueReason | None) -> None:
    assert queue_reason(here, [here, elsewhere]) is why


def test_a_batch_of_unknown_size_is_not_called_full() -> None:
    here = replace(instance(50, demand=50, running=99), max_num_running=0)
    assert queue_reason(here, [here]) is QueueReason.NEXT_STEP


def test_room_on_an_instance_that_takes_nothing_does_not_count() -> None:
    here = instance(20, demand=50)
    assert queue_reason(here, []) is QueueReason.MEMORY
