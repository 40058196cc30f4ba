"""What a frontend does with requests that the controller held for want of room, once it is gone:
they go in order, and only as far as the last known free blocks allow.

All at once they would fill the queues of instances at which nothing fits, which is what late
binding avoids. A frontend knows the instances' last statuses and its own requests: what ends of
those makes room again. Of what was free each frontend takes its share.
"""

from collections.abc import Iterable, Mapping

from controller.core.load.room import Room
from controller.core.load.snapshot import InstanceSnapshot, blocks_for
from controller.core.scheduler_events import DispatchRequested

AT_LEAST_EVERY_S = 1.0
"""The first goes so often even where nothing seems to fit: other frontends' requests end unseen."""


class PacedRelease:
    """`snapshots` are the last known, `own_blocks` what this frontend's requests took then, by
    instance; `room_to_grow_tokens` is the controller's last setting. Times are the caller's."""

    def __init__(
        self,
        snapshots: Iterable[InstanceSnapshot],
        own_blocks: Mapping[str, int],
        num_frontends: int,
        room_to_grow_tokens: int,
        now_s: float,
    ) -> None:
        self._block_size = 1
        self._room: dict[str, int] = {}
        """What this frontend's requests may take of each instance, in blocks."""
        for snapshot in snapshots:
            self._block_size = snapshot.block_size
            room = Room.of(snapshot, room_to_grow_tokens)
            share = max(0, room.spare_blocks) // max(1, num_frontends)
            self._room[snapshot.instance_id] = share + own_blocks.get(snapshot.instance_id, 0)
        self._released_s = now_s

    def due(
        self,
        waiting: Iterable[DispatchRequested],
        own_blocks: Mapping[str, int],
        alive: Iterable[str],
        now_s: float,
    ) -> list[tuple[str, str]]:
        """(request id, instance id) of those that go now, in order. `own_blocks`: what this
        frontend's requests take now; `alive`: the instances that may get requests. Mutates."""
        free = {i: self._room.get(i, 0) - own_blocks.get(i, 0) for i in alive}
        found: list[tuple[str, str]] = []
        if not free:
            return found
        for each in sorted(waiting, key=lambda each: each.order):
            demand_blocks = blocks_for(each.num_prompt_tokens, self._block_size)
            freest = max(sorted(free), key=free.__getitem__)
            overdue = now_s - self._released_s >= AT_LEAST_EVERY_S
            if free[freest] < demand_blocks and not overdue:
                break
            free[freest] -= demand_blocks
            self._released_s = now_s
            found.append((each.request_id, freest))
        return found
