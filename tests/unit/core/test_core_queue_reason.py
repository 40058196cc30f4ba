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


FULL = instance(50, demand=50, running=8)


@pytest.mark.parametrize(
    ("here", "elsewhere", "why"),
    [
        (instance(50), instance(50), None),
        (instance(50, demand=50), instance(0), QueueReason.NEXT_STEP),
        (FULL, instance(50), QueueReason.BATCH_FULL),
        (instance(20, demand=50, running=8), instance(0), QueueReason.BATCH_FULL),
        (instance(20, demand=50), instance(30), QueueReason.FRAGMENTED),
        (instance(20, demand=50), instance(29), QueueReason.MEMORY),
        (instance(50, demand=50, watermark=1), instance(0), QueueReason.MEMORY),
        (instance(50, demand=50, watermark=1), instance(1), QueueReason.FRAGMENTED),
        (instance(0, demand=5, watermark=9), instance(4), QueueReason.MEMORY),
        # A batch of unknown size is not called full.
        (replace(FULL, max_num_running=0), instance(0), QueueReason.NEXT_STEP),
    ],
)
def test_why(here: InstanceSnapshot, elsewhere: InstanceSnapshot, why: QueueReason | None) -> None:
    assert queue_reason(here, [here, elsewhere]) is why
    if why is QueueReason.FRAGMENTED:
        assert queue_reason(here, []) is QueueReason.MEMORY, "they take nothing"
