"""Moves by hand: an instance has at most so many, each comes in its turn, and each one ends."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from controller.core.emptying import by_hand
from controller.core.emptying.openness import Cooling
from controller.core.load.closed import Closed
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.refusals import REASONS
from tests.unit.runtime.fakes import idle_snapshot


def move(number: int, source: str, destination: str) -> by_hand.QueuedMove:
    wanted = by_hand.MoveByHand(f"r-{number}", source, 4, "by hand")
    return by_hand.QueuedMove(f"m-{number}", wanted, destination, 0.0)


def begun(queue: by_hand.MoveQueue, max_moves: int, **reported: int) -> list[str]:
    named = {name.replace("_", "-"): num for name, num in reported.items()}
    found = queue.begin(lambda id_: named.get(id_, 0), max_moves)
    return [each.migration_id for each in found]


def test_moves_between_other_instances_pass_by_and_none_is_overtaken_at_its_own() -> None:
    """Else a move between two busy instances might never find both with room."""
    queue = by_hand.MoveQueue()
    for number, between in enumerate((("i-0", "i-1"), ("i-0", "i-2"), ("i-3", "i-1"))):
        assert queue.join(move(number, *between))
    assert begun(queue, 1, i_1=1) == [], "what an instance reports counts too"
    queue.join(move(3, "i-4", "i-5"))
    assert begun(queue, 2, i_1=2) == ["m-3"]
    assert begun(queue, 1) == ["m-0"]
    assert begun(queue, 1) == []
    queue.leave("m-0")
    assert begun(queue, 1) == ["m-1", "m-2"]


def test_it_has_an_end() -> None:
    queue = by_hand.MoveQueue()
    assert all(queue.join(move(number, "i-0", "i-1")) for number in range(by_hand.MAX_WAITING))
    assert not queue.join(move(99, "i-0", "i-1"))
    assert len(queue.waiting) == by_hand.MAX_WAITING


# -- the machine ---------------------------------------------------------------------------

LEVELS = (Level("normal", 0, 0),)
CODES = (
    *(code for code, each in REASONS.items() if each.cools),
    "no_blocks",
    "too_many_moves",
    "finished",
    "in_prefill",
)


class World:
    """Instances that come and go, sources that answer in any way, and callers that leave."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.serving = set("abcd")
        self.closed: dict[str, Closed] = {}
        self.asked: dict[str, by_hand.AskSource] = {}
        self.timers: dict[str, float] = {}
        self.done: dict[str, Sequence[by_hand.Attempt]] = {}
        self.given_up: set[str] = set()
        self.named: dict[str, str | None] = {}
        self.machine = by_hand.MovesByHand(self, Cooling(), LEVELS, 2, "e")

    def destinations(self, now_s: float, source_id: str) -> Sequence[InstanceSnapshot]:
        assert now_s == self.now_s
        return [
            idle_snapshot(each)
            for each in sorted(self.serving - self.closed.keys())
            if not self.machine.cooling.remaining_s(each, now_s, source_id)
        ]

    def closed_by(
        self, instance_id: str, now_s: float, source_id: str | None = None
    ) -> tuple[Closed, ...]:
        found = [] if instance_id in self.serving else [Closed.NOT_SERVING]
        if instance_id in self.closed:
            found.append(self.closed[instance_id])
        if self.machine.cooling.remaining_s(instance_id, now_s, source_id):
            found.append(Closed.COOLING)
        return tuple(found)

    def num_moves(self, instance_id: str) -> int:
        ends = (a.move.instance_ids for a in self.asked.values())
        return sum(instance_id in each for each in ends)

    def take(self, event: by_hand.Event) -> None:
        for instruction in self.machine.handle(event, self.now_s):
            match instruction:
                case by_hand.AskSource(order_id, move):
                    assert order_id not in self.asked, "asked twice at a time"
                    assert set(move.instance_ids) <= self.serving, "asked for one that is gone"
                    for each in self.closed_by(move.destination_id, self.now_s):
                        assert each in (Closed.RESERVED, Closed.COOLING), "asked for a closed one"
                        assert move.destination_id == self.named.get(order_id), "it was chosen"
                    here = self.closed_by(move.wanted.source_id, self.now_s)
                    assert not any(each.stops_sending for each in here)
                    self.asked[order_id] = instruction
                case by_hand.WakeAt(order_id, time_s):
                    self.timers[order_id] = time_s
                case by_hand.Done(order_id, attempts):
                    assert order_id not in self.done, "done twice"
                    self.done[order_id] = attempts
                    self.timers.pop(order_id, None)
        self.machine.check()
        counts = Counter(end for a in self.asked.values() for end in a.move.instance_ids)
        assert max(counts.values(), default=0) <= max(2, self.machine.max_moves), "too many"

    def order(self, ordered: by_hand.Ordered) -> None:
        self.named[ordered.migration_id] = ordered.destination_id
        self.take(ordered)

    def answer(self, order_id: str) -> None:
        asked, draw = self.asked.pop(order_id), self.random
        move = asked.move
        kind = draw.choice(["migrated", "kept", "resumed", "refused", "silent", "died"])
        if kind == "silent":
            return self.take(by_hand.SourceSilent(move.migration_id))
        if kind == "died":
            return self.take(by_hand.SourceDied(move.migration_id))
        if kind == "refused":
            return self.take(by_hand.SourceAnswered(move.migration_id, draw.choice(CODES)))
        code = "" if kind == "migrated" else draw.choice(CODES)
        ids = (move.migration_id, move.wanted.request_id, *move.instance_ids)
        record = MoveRecord(*ids, "by hand", kind, code, 60, 0, 0.05)
        self.take(by_hand.MoveEnded(record, "by_hand"))
        return self.take(by_hand.SourceAnswered(move.migration_id, code, record))

    def step(self) -> None:
        draw = self.random
        self.now_s += draw.choice([0.0, 0.05, 1.0])
        for order_id, time_s in list(self.timers.items()):
            if time_s <= self.now_s and self.timers.get(order_id) == time_s:
                del self.timers[order_id]
                self.take(by_hand.Woken(order_id, time_s))
        if self.asked and draw.random() < 0.5:
            self.answer(draw.choice(sorted(self.asked)))
        elif draw.random() < 0.2:
            self.serving ^= {draw.choice("abcd")}
            self.take(by_hand.Looked())
        elif draw.random() < 0.2:
            one = draw.choice("abcd")
            if self.closed.pop(one, None) is None:
                self.closed[one] = draw.choice([*Closed][1:-1])
            self.take(by_hand.Looked())
        elif draw.random() < 0.1:
            self.machine.max_moves = draw.choice([0, 1, 2])
            self.take(by_hand.Looked())
        elif draw.random() < 0.2 and self.timers:
            order_id = draw.choice(sorted(self.timers))
            self.asked.pop(order_id, None)
            self.timers.pop(order_id)
            self.given_up.add(order_id)
            self.take(by_hand.GivenUp(order_id))
        else:
            known = [a.move.migration_id for a in self.asked.values()] or ["m-e-1"]
            self.take(by_hand.Timed(draw.choice(known), 0.01, 0.001, 0.01))


@pytest.mark.parametrize(("named", "codes"), [("b", ["closed"]), (None, ["closed", ""])])
def test_a_destination_that_is_cordoned_while_a_move_waits(named, codes) -> None:
    world = World(0)
    world.machine.max_moves = 1
    first, second = (by_hand.MoveByHand(f"r-{number}", "a", 4, "by hand") for number in range(2))
    world.closed = dict.fromkeys("cd", Closed.CORDONED)
    world.order(by_hand.Ordered("m-1", first, "b", 60.0))
    world.order(by_hand.Ordered("m-2", second, named, 60.0))
    assert [each.destination_id for each in world.machine.waiting] == ["b"]
    world.closed = {"b": Closed.CORDONED}
    world.asked.pop("m-1")
    world.take(by_hand.SourceAnswered("m-1", "finished"))
    if named is None:
        move = world.asked.pop("m-2").move
        assert move.destination_id in "cd", "the machine chose b, so it chooses again"
        ids = (move.migration_id, "r-1", *move.instance_ids)
        record = MoveRecord(*ids, "by hand", "migrated", "", 60, 0, 0.05)
        world.take(by_hand.Timed(move.migration_id, 0.01, 0.001, 0.01))
        world.take(by_hand.SourceAnswered(move.migration_id, "", record))
    assert [each.code for each in world.done["m-2"]] == codes


@pytest.mark.parametrize("seed", range(200))
def test_every_order_ends_whatever_happens(seed: int) -> None:
    world = World(seed)
    orders = []
    for number in range(12):
        source, named = world.random.sample("abcd", 2)
        wanted = by_hand.MoveByHand(f"r-{number}", source, 4, "by hand")
        to = named if world.random.random() < 0.5 else None
        orders.append(world.machine.next_migration_id())
        world.order(by_hand.Ordered(orders[-1], wanted, to, world.now_s + 20.0))
        world.step()
    for _ in range(2_000):
        if len(world.done.keys() | world.given_up) == len(orders):
            break
        world.step()
    assert world.done.keys() | world.given_up == set(orders), f"seed {seed}: one never ends"
    for attempts in world.done.values():
        assert len(attempts) <= by_hand.MAX_TRIES
        assert all(each.another_may_take_it for each in attempts[:-1])
    assert world.machine.waiting == ()
