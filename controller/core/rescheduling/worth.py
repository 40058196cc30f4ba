"""What a move costs and what it wins, both in seconds.

    cost      the time of the copy: bytes / measured bandwidth of the link; nothing for a queued
              request, nor where no bandwidth was measured yet
    gain      + how long the source's batch lives on what the move frees: tokens freed / requests
                in the batch * time of a step
              + of the head of the source's queue, the wait that it is spared, in so far as the
                move frees what it lacks
              - how far the destination falls below its threshold: steps below it * time of a step

A move is worth it if its gain lasts longer than the copy takes. The length of the request is on
both sides, so link, batch and shared blocks decide: on an A10 with LLaMA-7B a block of 16 tokens
takes 3.5 ms to copy, and a batch of 40 lives on it for 16 / 40 of a step of 80 ms, 32 ms.
"""

from collections.abc import Iterable, Mapping

from controller.core.load.freeness import batch_size
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import Number
from controller.core.rescheduling.candidate import Candidate
from controller.core.value import value


@value
class Link:
    """The link from a source to others. `bytes_per_s` is None as long as nothing was copied."""

    block_bytes: int
    bytes_per_s: float | None

    def copy_time_s(self, num_blocks: int) -> float:
        if not self.bytes_per_s:
            return 0.0
        return num_blocks * self.block_bytes / self.bytes_per_s


@value
class HeadWait:
    """What the head of the source's queue lacks, and how long until that is free anyway."""

    lacking_blocks: int = 0
    wait_s: float = 0.0


@value
class Worth:
    copy_time_s: float
    relief_s: float
    head_wait_s: float
    destination_loss_s: float

    @property
    def gain_s(self) -> float:
        return self.relief_s + self.head_wait_s - self.destination_loss_s

    @property
    def costs_more(self) -> bool:
        return self.copy_time_s >= self.gain_s

    def numbers(self) -> Mapping[str, Number]:
        return {
            "expected_copy_time_s": self.copy_time_s,
            "gain_s": self.gain_s,
            "relief_s": self.relief_s,
            "head_wait_s": self.head_wait_s,
            "destination_loss_s": self.destination_loss_s,
        }


def head_wait(
    source: InstanceSnapshot, staying: Iterable[Candidate], step_time_s: float
) -> HeadWait:
    """Assumes that the running requests end at their limits and none grows: a guess, and so only
    compared with the time of a copy. Nothing is known of requests without a limit."""
    head = source.queue_head
    if head is None:
        return HeadWait()
    lacking = head.demand_blocks - source.admissible_blocks
    if lacking <= 0:
        return HeadWait()
    ending = sorted(
        (c.num_tokens_left, c.num_freed_blocks)
        for c in staying
        if not c.queued and c.num_tokens_left is not None
    )
    wait_s, num_freed = 0.0, 0
    for num_tokens_left, num_blocks in ending:
        if num_freed >= lacking:
            break
        num_freed += num_blocks
        wait_s = num_tokens_left * step_time_s
    return HeadWait(lacking, wait_s)


def weigh(
    candidate: Candidate,
    source: InstanceSnapshot,
    head: HeadWait,
    link: Link,
    step_time_s: float,
    destination_steps_below: float,
) -> Worth:
    """`source` is the instance before this move. `destination_steps_below`: how far the destination
    is below its threshold after it; negative is above."""
    bs = source.block_size
    if candidate.queued:
        freed, spared = candidate.demand_blocks(bs), 1.0
    else:
        freed = candidate.num_freed_blocks
        spared = min(1.0, freed / head.lacking_blocks) if head.lacking_blocks else 0.0
    return Worth(
        copy_time_s=link.copy_time_s(candidate.num_blocks),
        relief_s=bs * freed / batch_size(source) * step_time_s,
        head_wait_s=spared * head.wait_s,
        destination_loss_s=max(0.0, destination_steps_below) * step_time_s,
    )
