"""What the controller holds, as wire models."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.api.wire.holding import (
    HeldHeadStatus,
    HeldPlaceStatus,
    HeldStatus,
    KeptForStatus,
)
from controller.core.admission.waiting_reasons import HeldPlace, HeldView
from controller.core.admission.waiting_requests import Held
from controller.core.load.snapshot import Level
from controller.runtime.controller.cluster import ControllerProcess


@dataclass(frozen=True, slots=True)
class HeldNow:
    """`held`: None if nothing is."""

    held: HeldStatus | None
    kept_for: dict[str, KeptForStatus]


def held_now(controller: ControllerProcess) -> HeldNow:
    view = controller.scheduler.held_view(controller.now_s())
    return held_status(view, controller.live.scheduler.levels, time.time())


def held_status(view: HeldView, levels: Sequence[Level], now_s: float) -> HeldNow:
    """`now_s`: seconds since the epoch."""
    first, oldest = view.first(), view.oldest()
    if first is None or oldest is None:
        return HeldNow(None, {})
    names = {level.rank: level.name for level in levels}
    return HeldNow(
        HeldStatus(
            num_by_level={names.get(rank, str(rank)): number for rank, number, _ in view.ranks()},
            demand_blocks=view.demand_blocks or None,
            oldest_wait_s=_waited_s(oldest.held, now_s),
            head=_one(first, names, now_s),
            oldest=None if oldest.place == 1 else _one(oldest, names, now_s),
        ),
        {
            instance_id: KeptForStatus(
                request_id=held.request_id,
                level=names.get(held.rank, str(held.rank)),
                demand_blocks=held.demand_blocks,
                lacking_blocks=lacking_blocks,
                waited_s=_waited_s(held, now_s),
            )
            for instance_id, held, lacking_blocks in view.kept_for()
        },
    )


def _one(found: HeldPlace, names: Mapping[int, str], now_s: float) -> HeldHeadStatus:
    held = found.held
    return HeldHeadStatus(
        **dict(place_status(found)),
        request_id=held.request_id,
        frontend_id=held.key[0],
        level=names.get(held.rank, str(held.rank)),
        rank=held.rank,
        waited_s=_waited_s(held, now_s),
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


def _waited_s(held: Held, now_s: float) -> float:
    return round(max(0.0, now_s - held.arrival_time_s), 3)
