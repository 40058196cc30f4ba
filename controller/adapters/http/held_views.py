"""What the controller holds, as wire models."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.api.wire.holding import (
    HeldHeadStatus,
    HeldPlaceStatus,
    HeldStatus,
    KeptForStatus,
)
from controller.core.holding.held_queue import Held
from controller.core.holding.view import HeldPlace, HeldView
from controller.core.load.snapshot import Level
from controller.runtime.controller.controller import Controller


@dataclass(frozen=True, slots=True)
class HeldNow:
    """`held`: None if nothing is."""

    held: HeldStatus | None
    kept_for: dict[str, KeptForStatus]


def held_now(controller: Controller) -> HeldNow:
    view = controller.scheduler.held_view(controller.now_s())
    return held_status(view, controller.live.scheduler.levels, time.time())


def held_status(view: HeldView, levels: Sequence[Level], now_s: float) -> HeldNow:
    """`now_s`: seconds since the epoch."""
    first = view.first()
    if first is None:
        return HeldNow(None, {})
    names = {level.rank: level.name for level in levels}
    counts = Counter(held.rank for held in view.entries)
    oldest_s = min(held.arrival_time_s for held in view.entries)
    head = first.held
    return HeldNow(
        HeldStatus(
            num_by_level={
                names.get(rank, str(rank)): number
                for rank, number in sorted(counts.items(), reverse=True)
            },
            demand_blocks=sum(held.demand_blocks for held in view.entries) or None,
            oldest_wait_s=round(max(0.0, now_s - oldest_s), 3),
            head=HeldHeadStatus(
                **dict(place_status(first)),
                request_id=head.request_id,
                frontend_id=head.key[0],
                level=names.get(head.rank, str(head.rank)),
                rank=head.rank,
                waited_s=_waited_s(head, now_s),
            ),
        ),
        {
            instance_id: _kept_for(found, names, now_s)
            for instance_id, key in view.kept.items()
            if (found := view.find(key)) is not None
        },
    )


def place_status(found: HeldPlace) -> HeldPlaceStatus:
    return HeldPlaceStatus(
        place=found.place,
        why=found.reason,
        demand_blocks=found.held.demand_blocks or None,
        instance_id=found.instance_id,
        lacking_blocks=found.lacking_blocks,
        overtaken_by=found.overtaken_by,
        num_overtaken=found.num_overtaken,
    )


def _kept_for(found: HeldPlace, names: Mapping[int, str], now_s: float) -> KeptForStatus:
    held = found.held
    return KeptForStatus(
        request_id=held.request_id,
        level=names.get(held.rank, str(held.rank)),
        demand_blocks=held.demand_blocks,
        lacking_blocks=found.lacking_blocks or 0,
        waited_s=_waited_s(held, now_s),
    )


def _waited_s(held: Held, now_s: float) -> float:
    return round(max(0.0, now_s - held.arrival_time_s), 3)
