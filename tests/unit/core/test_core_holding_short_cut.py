"""A status that leaves no more room than before starts no search, and decisions stay the same. Each
request is answered once, and none is lost."""

import random
from unittest import mock

import pytest

from controller.core import scheduler_events as events
from controller.core.admission.placement import Placement
from controller.core.admission.policies import SchedulerConfig
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import any_event, scheduler_with

HOLDING = HoldingConfig(
    room_to_grow_tokens=32, reserved_share=0.5, reserve_after_s=1.0, share_doubles_s=20.0
)
full_place = Placement.place


def always_searching(placement, rooms, score, cached_of, now_s, **_):
    return full_place(placement, rooms, score, cached_of, now_s)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_that_is_left_out_would_find_nothing(seed) -> None:
    dice, now_s = random.Random(seed), 0.0
    config = SchedulerConfig(holding=HOLDING)
    short, full = (scheduler_with(config, a=0, b=0, c=0, d=0) for _ in range(2))
    waits, num_waiting = dict[str, str](), 0
    """By request, its frontend."""
    for number in range(600):
        now_s += dice.choice((0.0, 0.02, 0.5))
        each = any_event(dice, short, number, "abcd")
        match each:
            case events.DispatchRequested():
                waits[each.request_id] = each.frontend_id
            case events.DispatchCancelled() if waits.get(each.request_id) == each.frontend_id:
                del waits[each.request_id]
            case events.FrontendDied(frontend_id):
                waits = {key: each for key, each in waits.items() if each != frontend_id}
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
        for answer in found:
            assert waits.pop(answer.request_id) == answer.frontend_id, "sent or refused once"
        assert short.num_waiting == len(waits), "none is lost"
    assert num_waiting > 100
