"""A status that leaves no more room than before starts no search, and decisions stay the same."""

import random
from unittest import mock

import pytest

from controller.core.admission.placement import Placement
from controller.core.admission.policies import SchedulerConfig
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import (
    ClosedBy,
    DispatchCancelled,
    Event,
    FrontendDied,
    InstanceDied,
    InstanceStarted,
    StatusReported,
    Ticked,
)
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import CORDONED, DRAINS, request, running, status

IDS = ("a", "b", "c", "d")
HOLDING = HoldingConfig(
    room_to_grow_tokens=32, reserved_share=0.5, reserve_after_s=1.0, share_doubles_s=20.0
)
full_place = Placement.place


def always_searching(placement, rooms, score, cached_of, now_s, **_):
    return full_place(placement, rooms, score, cached_of, now_s)


def event(dice: random.Random, number: int, sent: dict[str, int]) -> Event:
    instance_id = dice.choice(IDS)
    kind = dice.choices(
        ("status", "request", "tick", "cancel", "drain", "end", "died", "frontend"),
        (60, 20, 10, 3, 1, 2, 1, 1),
    )[0]
    match kind:
        case "status":
            return told(dice, instance_id, sent)
        case "request":
            return request(
                f"r{number}",
                frontend_id=dice.choice(("f", "g")),
                tokens=dice.randint(1, 900),
                rank=dice.choice((0, 0, 0, 1)),
                arrival=float(number),
            )
        case "tick":
            return Ticked()
        case "cancel":
            return DispatchCancelled(f"r{number - dice.randint(1, 20)}", "f")
        case "drain":
            return ClosedBy(instance_id, dice.choice((DRAINS, CORDONED)))
        case "end":
            return ClosedBy(instance_id)
        case "died":
            return InstanceDied(instance_id, 1)
        case _:
            return FrontendDied(dice.choice(("f", "g")))


def told(dice: random.Random, instance_id: str, sent: dict[str, int]) -> StatusReported:
    """Full, more often than not."""
    held = min(100, dice.choice((dice.randint(0, 100), dice.randint(80, 100))))
    requests = [running("x", held)] if held else []
    seen = dice.choice((sent[instance_id], max(0, sent[instance_id] - 1)))
    return status(instance_id, seen=seen, requests=requests, total_blocks=100)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_that_is_left_out_would_find_nothing(seed) -> None:
    dice, now_s = random.Random(seed), 0.0
    short, full = (GlobalScheduler(SchedulerConfig(holding=HOLDING)) for _ in range(2))
    sent = dict.fromkeys(IDS, 0)
    events: list[Event] = [InstanceStarted(each, 1) for each in IDS]
    num_waiting = 0
    for number in range(600):
        now_s += dice.choice((0.0, 0.02, 0.5))
        each = events[number] if number < len(events) else event(dice, number, sent)
        if isinstance(each, InstanceDied) and number % 5:
            continue
        found = short.handle(each, now_s)
        with (
            mock.patch.object(Placement, "place", always_searching),
            mock.patch.object(Placement, "is_settled", return_value=False),
        ):
            assert full.handle(each, now_s) == found
        assert short.placement.reserved == full.placement.reserved  # type: ignore[union-attr]
        assert short.help_blocked() == full.help_blocked()
        short.check()
        num_waiting += short.num_waiting
        for dispatch in found:
            sent[dispatch.instance_id] = dispatch.seq  # type: ignore[union-attr]
    assert num_waiting > 100
