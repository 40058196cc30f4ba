"""Which instances are kept for which of the held requests.

first       the first one has an instance at once
others      each has one when it has waited `reserve_after_s`, while no more are kept than the share
            allows
more        what is left of `reserved_share` goes to the first, one more each `reserve_after_s`:
            requests move from one of its instances to the others, so that what they free comes
            together
best        it is the one that lacks the least. One that lacks much less later takes its place:
            on the kept one long requests may go on growing for minutes
ranks       a higher rank takes the instance of a lower one
"""

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from controller.core.admission.waiting_requests import Held, HeldQueue, Key
from controller.core.load.room import Room
from controller.core.settings import HoldingConfig
from controller.core.value import value

MAX_LOOKED_AT = 64
"""So many of the first held requests may have an instance kept for them."""
EXCHANGED_BELOW = 0.75
"""Another instance takes the place of a kept one if it lacks less than this share of what that one
lacks. Without it the first waited three times as long on S-L (decision 0031)."""


def kept_for(
    reserved: Mapping[str, Key],
    queue: HeldQueue,
    rooms: Mapping[str, Room],
    config: HoldingConfig,
    now_s: float,
) -> dict[str, Key]:
    """What is kept from now on, by instance id; `reserved` is what was until now."""
    first = queue.first()
    if first is None:
        return {}
    kept = _exchanged(reserved, queue, rooms)
    waited_s = now_s - first.since_s
    most = most_kept(config, len(rooms), waited_s)
    _yield_to(first, kept, queue, most)
    for held in islice(queue, MAX_LOOKED_AT):
        if len(kept) >= most:
            return kept
        has_turn = held is first or now_s - held.since_s >= config.reserve_after_s
        if has_turn and held.key not in kept.values():
            _keep_another(held, kept, rooms, most)
    own = max(1, int(config.reserved_share * len(rooms)))
    after_s = config.reserve_after_s
    num_wanted = min(own, 1 + int(waited_s / after_s)) if after_s else own
    for _ in range(num_wanted - sum(key == first.key for key in kept.values())):
        _keep_another(first, kept, rooms, most)
    return kept


def _keep_another(held: Held, kept: dict[str, Key], rooms: Mapping[str, Room], most: int) -> None:
    best = _least_lacking(rooms.values(), kept, held.demand_blocks)
    if best is not None and len(kept) < most:
        kept[best.instance_id] = held.key


def most_kept(config: HoldingConfig, num_instances: int, waited_s: float) -> int:
    doublings = min(waited_s / config.share_doubles_s, 64.0)
    share = min(1.0, config.reserved_share * 2.0**doublings)
    return max(1, int(share * num_instances))


def _least_lacking(rooms: Iterable[Room], kept: Collection[str], demand_blocks: int) -> Room | None:
    """Of the rooms that are open and large enough."""
    return min(
        (
            room
            for room in rooms
            if room.instance_id not in kept and room.capacity_blocks >= demand_blocks
        ),
        key=lambda room: (room.lacking_blocks(demand_blocks), room.instance_id),
        default=None,
    )


def _exchanged(
    reserved: Mapping[str, Key], queue: HeldQueue, rooms: Mapping[str, Room]
) -> dict[str, Key]:
    kept = dict(reserved)
    least = LeastInOpen.of(rooms, kept)
    for instance_id, key in reserved.items():
        held = queue.get(key)
        if held is None:
            continue
        lacking = rooms[instance_id].lacking_blocks(held.demand_blocks)
        if no_better_in_open(least, held.demand_blocks, lacking):
            continue  # To look for the best one each time took a quarter of a simulated run.
        best = _least_lacking(rooms.values(), kept, held.demand_blocks)
        if best and best.lacking_blocks(held.demand_blocks) < EXCHANGED_BELOW * lacking:
            del kept[instance_id]
            kept[best.instance_id] = key
            least = LeastInOpen.of(rooms, kept)
    return kept


def no_better_in_open(least: "LeastInOpen", demand_blocks: int, lacking_blocks: int) -> bool:
    """Whether a kept instance keeps its place, by what the open rooms lack at the least."""
    at_least = min(least.lacking_blocks + demand_blocks, least.claimed_blocks)
    return at_least >= EXCHANGED_BELOW * lacking_blocks


@value
class LeastInOpen:
    """An open room, large enough or not, lacks `lacking_blocks` and a request's demand at the
    least, or the `claimed_blocks` that make it idle."""

    lacking_blocks: float
    claimed_blocks: float

    @classmethod
    def of(cls, rooms: Mapping[str, Room], kept: Collection[str]) -> "LeastInOpen":
        found = [room for instance_id, room in rooms.items() if instance_id not in kept]
        return cls(
            min((room.lacking_blocks(0) for room in found), default=math.inf),
            min((room.claimed_blocks for room in found), default=math.inf),
        )


def _yield_to(first: Held, kept: dict[str, Key], queue: HeldQueue, most: int) -> None:
    """If all that may be kept is, and nothing for the first, the last of a lower rank loses its
    instance."""
    if len(kept) < most or first.key in kept.values():
        return
    found = ((queue.get(key), instance_id) for instance_id, key in kept.items())
    lower = [(held.order, i) for held, i in found if held is not None and held.rank < first.rank]
    if lower:
        del kept[max(lower)[1]]
