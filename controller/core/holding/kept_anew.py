"""When `kept_for` has to be asked again, after it changed nothing.

While requests are held each status may ask it, and most statuses only tell of decoding: to ask at
each took a tenth of a simulated run. Until the queue changes or a room lacks less, these count:

    turns     one more may be kept, or a request has waited long enough for one: known in advance
    open      an open room that lacks more makes an exchange less likely
    kept      a kept room that lacks more may be exchanged, if it lacks too much by now
"""

import math
from collections.abc import Mapping
from itertools import islice

from controller.core.admission.waiting_requests import HeldQueue, Key
from controller.core.holding.kept import (
    MAX_LOOKED_AT,
    LeastInOpen,
    most_kept,
    no_better_in_open,
)
from controller.core.load.room import Room
from controller.core.settings import HoldingConfig
from controller.core.value import value

ROUNDING_S = 1e-6
"""Turns are looked at a little before they come, as sums of times are rounded."""


@value
class Settled:
    """`rooms` and `demands` are of the kept instances, by id, `least` of the open ones."""

    until_s: float
    rooms: Mapping[str, Room]
    demands: Mapping[str, int]
    least: LeastInOpen

    @classmethod
    def of(
        cls,
        kept: Mapping[str, Key],
        queue: HeldQueue,
        rooms: Mapping[str, Room],
        config: HoldingConfig,
        now_s: float,
    ) -> "Settled":
        """`kept_for` gave `kept` just now, and was given the same."""
        held = ((instance_id, queue.get(key)) for instance_id, key in kept.items())
        return cls(
            _next_turn_s(len(kept), queue, len(rooms), config, now_s),
            {instance_id: rooms[instance_id] for instance_id in kept},
            {instance_id: each.demand_blocks for instance_id, each in held if each is not None},
            LeastInOpen.of(rooms, kept),
        )

    def lasts(self, rooms: Mapping[str, Room], now_s: float) -> bool:
        """Whether `kept_for` would change nothing now."""
        if now_s >= self.until_s:
            return False
        for instance_id, known in self.rooms.items():  # each status comes here: no `all`
            room = rooms[instance_id]
            if room is not known and not self._keeps_place(instance_id, room):
                return False
        return True

    def _keeps_place(self, instance_id: str, room: Room) -> bool:
        demand = self.demands[instance_id]
        return no_better_in_open(self.least, demand, room.lacking_blocks(demand))


def _next_turn_s(
    num_kept: int, queue: HeldQueue, num_instances: int, config: HoldingConfig, now_s: float
) -> float:
    first = queue.first()
    if first is None:
        return math.inf
    waited_s, after_s = now_s - first.since_s, config.reserve_after_s
    share, most = config.reserved_share, most_kept(config, num_instances, waited_s)
    turns_s = [math.inf]
    if share > 0 and most < num_instances:
        num_doublings = math.log2((most + 1) / (share * num_instances))
        turns_s.append(first.since_s + config.share_doubles_s * num_doublings)
    if num_kept < most and after_s:
        turns_s.append(first.since_s + after_s * (1 + int(waited_s / after_s)))
        looked_at = (held.since_s + after_s for held in islice(queue, MAX_LOOKED_AT))
        turns_s += (turn_s for turn_s in looked_at if turn_s > now_s - ROUNDING_S)
    return min(turns_s) - ROUNDING_S
