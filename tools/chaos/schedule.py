"""Which faults come, drawn by a seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    KILL_INSTANCE = "kill an instance"
    KILL_TWO = "kill two instances"
    PAUSE_INSTANCE = "stop an instance for a moment"
    HANG_INSTANCE = "stop an instance until it is fenced"
    KILL_CONTROLLER = "kill the controller"
    PAUSE_CONTROLLER = "stop the controller for a moment"
    KILL_BOTH = "kill the controller and an instance"
    CONTROLLER_IN_REPLAY = "kill the controller while replays wait for an instance"
    KILL_FRONTEND = "kill a frontend"
    DRAIN = "drain an instance, and kill the controller meanwhile"
    SCALE = "scale, and kill the controller meanwhile"
    CUT_CABLE = "cut the cable for a moment"
    LOSE_CABLE = "cut the cable until the node is given up"
    SLOW_CABLE = "slow the cable down"
    KILL_NODE = "kill all that runs on the second node"


NEEDS_TWO_HOSTS = frozenset({Kind.CUT_CABLE, Kind.LOSE_CABLE, Kind.SLOW_CABLE, Kind.KILL_NODE})
WEIGHTS = {Kind.KILL_INSTANCE: 4, Kind.HANG_INSTANCE: 2}
"""Others have 1."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`after_s`: seconds from the turn's first stream. `choice`: from 0 to 1, by which the victim
    is found among those that are there by then."""

    number: int
    kind: Kind
    after_s: float
    choice: float


def faults(seed: int, kinds: Sequence[Kind], burst_s: float) -> Iterator[Fault]:
    """For ever. The same seed and kinds, the same faults."""
    dice = random.Random(seed)
    weights = [WEIGHTS.get(kind, 1) for kind in kinds]
    number = 0
    while True:
        number += 1
        (kind,) = dice.choices(kinds, weights)
        yield Fault(number, kind, dice.uniform(0.2, 0.8) * burst_s, dice.random())
