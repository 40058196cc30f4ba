"""The machine of the rounds, with random events in a cluster that the test plays."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from controller.core.emptying import rounds as relief_rounds
from controller.core.emptying.openness import Cooling
from controller.core.emptying.room_plan import MakeRoom, MoveHead
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceRef, InstanceSnapshot
from controller.core.settings import ReschedulingConfig
from tests.unit.rescheduling.relief_builders import instance, running

CONFIG = ReschedulingConfig()
RULES = relief_rounds.RoundRules(CONFIG, DEFAULT_LEVELS)


class Played:
    """A cluster. `wanted`: for blocked requests, in each round."""

    def __init__(self) -> None:
        self.instances: dict[str, InstanceSnapshot] = {}
        self.incarnations: dict[str, int] = {}
        self.reserved: set[str] = set()
        self.cooling = Cooling()
        self.full: set[str] = set()
        self.wanted: list[MoveHead | MakeRoom] = []

    def statuses(self, _now_s: float) -> Sequence[InstanceSnapshot]:
        return list(self.instances.values())

    def status_age_s(self, _instance_id: str, _now_s: float) -> float:
        return 0.0

    def closed_to_moves(self, now_s: float) -> Collection[str]:
        return self.reserved | set(self.cooling.destinations(now_s))

    def help_blocked(self, may_move: Callable[[str, str], bool]) -> Sequence[MoveHead | MakeRoom]:
        found = list[MoveHead | MakeRoom]()
        for each in self.wanted:
            if isinstance(each, MakeRoom):
                spare = {i: n for i, n in each.spare_blocks.items() if may_move(each.source_id, i)}
                found.append(replace(each, spare_blocks=spare))
        return found

    def has_moves_left(self, instance_id: str) -> bool:
        return instance_id not in self.full

    def ref(self, instance_id: str) -> InstanceRef | None:
        if instance_id not in self.instances:
            return None
        return InstanceRef(instance_id, self.incarnations.get(instance_id, 1), f"{instance_id}:1")

    def frontend_of(self, _order: MakeRoom) -> str:
        return "f-0"

    def batch(self, instance_id: str, num_free_blocks: int, *, draining: bool = False) -> None:
        requests = [running(f"{instance_id}-r", 100 - num_free_blocks)]
        found = replace(instance(*requests, instance_id=instance_id), draining=draining)
        self.instances[instance_id] = found


def test_room_is_ordered_towards_those_that_may_take_a_move_and_only_while_enabled() -> None:
    cluster = Played()
    cooling = cluster.cooling
    for instance_id in "abcd":
        cluster.batch(instance_id, 10)
    cluster.full.add("b")
    cooling.failed("a", "c", 0.0)
    cluster.wanted = [MakeRoom("a", "r", 0, 5, {"b": 9, "c": 9, "d": 9})]
    rounds = relief_rounds.ReliefRounds(cluster, cooling, RULES, "x")
    (room,) = rounds.handle(relief_rounds.RoundDue(), 1.0)
    assert [each.destination.instance_id for each in room.order.openings] == ["d"]
    assert (room.order.round_id, room.order.frontend) == ("round-x-1", "f-0")
    rounds.handle(
        relief_rounds.RulesChanged(replace(RULES, config=replace(CONFIG, enabled=False))), 1.0
    )
    assert rounds.handle(relief_rounds.RoundDue(), 1.1) == []


@pytest.mark.parametrize("seed", range(40))
def test_each_instance_is_in_one_pair_and_who_is_left_out_gets_no_order(seed: int) -> None:
    dice, cluster, now_s = random.Random(seed), Played(), 0.0
    cooling = cluster.cooling
    rounds = relief_rounds.ReliefRounds(cluster, cooling, RULES, "x")
    ordered: dict[str, str] = {}
    fruitless: dict[tuple[str, str], float] = {}
    for _ in range(200):
        now_s += dice.uniform(0.0, 0.2)
        one, other = dice.sample("abcdef", 2)
        match dice.randrange(9):
            case 0 | 1 | 2:
                draining = one in rounds.rules.evacuated or dice.random() < 0.2
                cluster.batch(one, dice.choice((0, 1, 2, 50, 90)), draining=draining)
            case 3:
                cluster.instances.pop(one, None)
                cluster.incarnations[one] = cluster.incarnations.get(one, 1) + 1
                rounds.handle(relief_rounds.InstanceGone(one), now_s)
                ordered.pop(one, None)
            case 4:
                cluster.reserved ^= {one}
            case 5:
                incarnation = cluster.incarnations.get(one, 1) - (dice.random() < 0.3)
                there = other, cluster.incarnations.get(other, 1)
                rounds.handle(relief_rounds.PairFruitless((one, incarnation), there), now_s)
                present = {one, other} <= cluster.instances.keys()
                if present and incarnation == cluster.incarnations.get(one, 1):
                    fruitless[one, other] = now_s + 1.0
            case 6:
                cooling.failed(one, other, now_s)
            case 7:
                evacuated = frozenset(one)  # which drains at once
                cluster.batch(one, 50, draining=True)
                rounds.handle(
                    relief_rounds.RulesChanged(replace(rounds.rules, evacuated=evacuated)), now_s
                )
            case _:
                pass
        cooling_pairs = set(cooling.pairs(now_s))
        closed = cluster.closed_to_moves(now_s)
        before, ordered = ordered, {}
        withdrawn = set[str]()
        for told in rounds.handle(relief_rounds.RoundDue(), now_s):
            match told:
                case relief_rounds.OrderRelief(source_id=source_id, order=order):
                    ordered[source_id] = order.destination.instance_id
                    assert order.snapshot is cluster.instances[order.destination.instance_id]
                case relief_rounds.WithdrawRelief(source_id=source_id):
                    withdrawn.add(source_id)
        rounds.check()
        assert withdrawn == before.keys() - ordered.keys(), f"seed {seed}"
        assert not closed & set(ordered.values()), f"seed {seed}"
        left_out = cooling_pairs | {both for both, until_s in fruitless.items() if until_s > now_s}
        assert not left_out & set(ordered.items()), f"seed {seed}"
