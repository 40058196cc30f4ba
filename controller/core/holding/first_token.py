"""To which of the instances on which a request fits it goes: one of those where its first token
comes soonest, and of these the freest. Where memory is short even on the freest, to that one.

Freeness is about memory alone. Where every instance has room, it hardly tells one with a long
prompt to compute from one with none, nor one that has the request's beginning in its prefix cache:
on the Mooncake trace the mean TTFT was 1.46 s by freeness alone and is 0.59 s so (decision 0032).
"""

from collections.abc import Callable, Iterable, Sequence

from controller.core.holding.config import HoldingConfig
from controller.core.load.room import Room

Score = Callable[[str, int], float]
"""Of (instance id, rank): larger is better."""
Cached = Callable[[str], int]
"""Of an instance id: how many tokens of the request the prefix cache there is expected to have."""

ROOMY = 0.5
"""An instance with at least this share of its memory to spare, the request taken in, is not short
of memory."""


def best_fitting(
    rooms: Iterable[Room],
    demand_blocks: int,
    rank: int,
    score: Score,
    cached: Cached,
    config: HoldingConfig,
) -> Room | None:
    """Of the rooms in which such a request fits, the one that it goes to; ties by id."""
    fitting = [room for room in rooms if demand_blocks <= room.spare_blocks]
    freest = _freest(fitting, rank, score)
    by_time = config.by_prefill or config.by_prefix
    if freest is None or not by_time or not _is_roomy(freest, demand_blocks):
        return freest
    roomy = [room for room in fitting if _is_roomy(room, demand_blocks)]
    soonest = _soonest(roomy, cached, config)
    return freest if any(room is freest for room in soonest) else _freest(soonest, rank, score)


def _freest(rooms: Iterable[Room], rank: int, score: Score) -> Room | None:
    return min(
        rooms,
        key=lambda room: (-score(room.instance_id, rank), room.instance_id),
        default=None,
    )


def _is_roomy(room: Room, demand_blocks: int) -> bool:
    return room.spare_blocks - demand_blocks >= ROOMY * room.capacity_blocks


def _soonest(rooms: Sequence[Room], cached: Cached, config: HoldingConfig) -> list[Room]:
    """The rooms where fewest tokens are computed before the first one comes out, and those where
    `prefill_slack_tokens` more are at most. The prompt's length is the same everywhere and so is
    left out."""
    ahead = [
        (room.prefill_tokens if config.by_prefill else 0)
        - (cached(room.instance_id) if config.by_prefix else 0)
        for room in rooms
    ]
    most = min(ahead) + config.prefill_slack_tokens
    return [room for room, tokens in zip(rooms, ahead, strict=True) if tokens <= most]
