"""The machine of the rounds, in a cluster that the test plays."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from controller.core.emptying import rounds as relief_rounds
from controller.core.emptying.openness import Cooling
from controller.core.emptying.room_plan import MakeRoom, MoveHead
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceRef, InstanceSnapshot
from controller.core.migration.refusals import MoveRefusal
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
        self.unlike_to: dict[str, str] = {}
        self.full: set[str] = set()
        self.wanted: list[MoveHead | MakeRoom] = []

    def statuses(self, _now_s: float) -> Sequence[InstanceSnapshot]:
        return list(self.instances.values())

    def status_age_s(self, _instance_id: str, _now_s: float) -> float:
        return 0.0

    def closed_to_moves(self, now_s: float) -> Collection[str]:
        return self.reserved | set(self.cooling.destinations(now_s))

    def unlike(self, source_id: str, destination_id: str) -> MoveRefusal | None:
        differ = self.unlike_to.get(source_id) == destination_id
        return MoveRefusal.VLLM_VERSION if differ else None

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


def test_who_is_paired_left_out_and_withdrawn() -> None:
    cluster = Played()
    rounds = relief_rounds.ReliefRounds(cluster, cluster.cooling, RULES, "x")
    for instance_id, num_free_blocks in (("a", 0), ("b", 90), ("c", 50)):
        cluster.batch(instance_id, num_free_blocks)

    def orders(now_s: float) -> dict[str, str]:
        found = {}
        for told in rounds.handle(relief_rounds.RoundDue(), now_s):
            found[told.source_id] = "withdrawn"
            if isinstance(told, relief_rounds.OrderRelief):
                found[told.source_id] = told.order.destination.instance_id
                assert told.order.snapshot is cluster.instances[found[told.source_id]]
        rounds.check()
        return found

    assert orders(0.0) == {"a": "b"}
    rounds.handle(relief_rounds.PairFruitless(("a", 2), ("b", 1)), 0.0)
    assert orders(0.1) == {"a": "b"}, "of another incarnation"
    rounds.handle(relief_rounds.PairFruitless(("a", 1), ("b", 1)), 0.1)
    assert orders(0.2) == {"a": "c"}
    assert orders(1.2) == {"a": "b"}
    cluster.unlike_to = {"a": "b"}
    assert orders(1.2) == {"a": "c"}, "no request can move there"
    cluster.unlike_to = {}
    cluster.cooling.failed("a", "b", 1.2)
    assert orders(1.3) == {"a": "c"}
    cluster.reserved = {"c"}
    assert orders(1.4) == {"a": "withdrawn"}
    assert orders(1.5) == {}
    cluster.reserved = set()
    assert orders(1.6) == {"a": "c"}
    del cluster.instances["a"]
    rounds.handle(relief_rounds.InstanceGone("a"), 1.7)
    assert orders(1.8) == {}, "one that is gone is told nothing"
    cluster.batch("a", 50, draining=True)
    cluster.batch("d", 0)
    disabled = replace(RULES, config=replace(CONFIG, enabled=False))
    rounds.handle(relief_rounds.RulesChanged(disabled), 2.0)
    assert orders(2.0) == {"a": "c"}, "only one that drains"
