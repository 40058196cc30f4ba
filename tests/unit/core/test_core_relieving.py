"""The machine of a source: orders in, moves out. The test plays the instance."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from controller.core.emptying import relieving
from controller.core.emptying.relief import Candidate
from controller.core.emptying.room_plan import PLAN_FAILED
from controller.core.emptying.rounds import HeadOrder, Opening, ReliefOrder, RoomOrder
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceRef
from controller.core.migration.refusals import MoveRefusal
from controller.core.settings import ReschedulingConfig
from tests.unit.rescheduling.relief_builders import (
    BLOCK_BYTES,
    BLOCK_SIZE,
    BYTES_PER_S,
    STEP_TIME_S,
    instance,
    queued,
    running,
)

CONFIG = ReschedulingConfig(guard=False)
MANY = replace(CONFIG, source_below_steps=2000.0, destination_above_steps=2000.0)
"""An instance is a source for as long as a request is there."""
B, C = InstanceRef("b", 1, "b:1"), InstanceRef("c", 1, "c:1")


class Played:
    """An instance of 100 blocks, and the runner of its machine. `under_way`: by migration id."""

    instance_id, block_size, block_bytes, step_time_s = "a", BLOCK_SIZE, BLOCK_BYTES, STEP_TIME_S
    leaves_at_s: float | None = None
    max_bytes_per_s: float | None = None

    def __init__(self, *requests: Candidate, max_moves: int = 4) -> None:
        self.requests = {each.request_id: each for each in requests}
        self.max_moves = max_moves
        self.draining = False
        self.now_s = 0.0
        self.under_way: dict[str, relieving.BeginMove] = {}
        self.reserved: dict[str, float] = {}
        self.told: list[relieving.Instruction] = []
        self.cancelled: list[str] = []
        self.looks = False
        self.refuses: Callable[[relieving.BeginMove], str] = lambda begin: ""
        self.machine = relieving.RelievingSource(self, "x")

    @property
    def num_moves(self) -> int:
        return len(self.under_way)

    def bytes_per_s(self, _destination_id: str) -> float | None:
        return BYTES_PER_S

    def leaving_for(self) -> Sequence[str]:
        return [begin.destination.instance_id for begin in self.under_way.values()]

    def reserved_s(self, migration_id: str) -> float | None:
        return self.reserved.get(migration_id)

    def tell(self, event: relieving.Event) -> None:
        instructions = self.machine.handle(event, self.now_s)
        self.machine.check()
        for instruction in instructions:
            match instruction:
                case relieving.Look():
                    assert not self.looks, "looks twice"
                    self.looks = True
                case relieving.BeginMove():
                    self._begin(instruction)
                case relieving.CancelMove(migration_id=migration_id):
                    assert migration_id in self.under_way
                    self.cancelled.append(migration_id)
                case _:
                    self.told.append(instruction)

    def _begin(self, begin: relieving.BeginMove) -> None:
        request_id = begin.candidate.request_id
        assert request_id in self.requests
        if refusal := self.refuses(begin):
            self.tell(relieving.MoveRefused(begin.migration_id, refusal))
            return
        moving = {each.candidate.request_id for each in self.under_way.values()}
        assert request_id not in moving, "it moves already"
        assert self.num_moves < self.max_moves
        self.under_way[begin.migration_id] = begin
        self.tell(relieving.MoveBegan(begin.migration_id))

    def look(self) -> None:
        """The step under way ends."""
        if self.looks:
            self.looks = False
            moving = {each.candidate.request_id for each in self.under_way.values()}
            requests = [
                replace(each, outgoing=each.request_id in moving) for each in self.requests.values()
            ]
            self.tell(
                relieving.Looked(replace(instance(*requests), draining=self.draining), requests)
            )

    def end(self, migration_id: str, code: str = "") -> None:
        begin = self.under_way.pop(migration_id)
        if not code:
            del self.requests[begin.candidate.request_id]
        self.tell(relieving.MoveEnded(migration_id, not code, code))

    def relieve(
        self, to: InstanceRef = B, config: ReschedulingConfig = MANY, *, taken_s: float = -1.0
    ) -> None:
        there = instance(instance_id=to.instance_id)
        order = ReliefOrder(to, there, 0.0, 1.0, 2.0, (), DEFAULT_LEVELS, config)
        self.tell(relieving.ReliefGiven("round-1", order, taken_s))

    def make_room(self, lacking_blocks: int, request_id: str = "held", **spare: int) -> None:
        openings = tuple(Opening(InstanceRef(i, 1, f"{i}:1"), n) for i, n in spare.items())
        order = RoomOrder("round-1", request_id, "f-0", 0, lacking_blocks, openings, CONFIG)
        self.tell(relieving.RoomGiven(order))

    def leaving(self) -> list[tuple[str, str]]:
        return [
            (begin.candidate.request_id, begin.destination.instance_id)
            for begin in self.under_way.values()
        ]


THREE = (running("r0", 20), running("r1", 25), running("r2", 30))


def test_one_look_is_for_all_orders_and_each_request_leaves_once() -> None:
    here = Played(*THREE)
    here.relieve()
    here.make_room(15, c=100)
    here.relieve()
    here.look()
    assert here.leaving() == [("r0", "c"), ("r1", "b"), ("r2", "b")]


def test_a_relief_goes_on_when_a_move_of_it_has_ended_well_though_it_is_counted_by_then() -> None:
    here = Played(*THREE, max_moves=1)
    here.relieve()
    here.look()
    (first,) = here.under_way
    here.reserved[first] = here.now_s = 1.0
    here.relieve(taken_s=1.0)
    assert not here.looks, "no other move may begin"
    here.end(first)
    here.look()
    assert here.leaving() == [("r1", "b")]
    here.end(*here.under_way, "no_blocks")
    assert not here.looks, "the next order is soon enough"


def test_a_drain_that_is_taken_back_ends_its_moves_though_their_blocks_are_counted() -> None:
    here = Played(*THREE)
    here.draining = True
    here.relieve()
    here.look()
    here.now_s = 1.0
    here.reserved = dict.fromkeys(here.under_way, 0.5)
    here.relieve(taken_s=0.9)
    here.tell(relieving.DrainEnded())
    assert here.cancelled == list(here.under_way)
    assert len(here.cancelled) == 3


def test_of_a_plan_of_which_a_move_may_not_begin_none_goes_on() -> None:
    here = Played(*THREE)
    here.refuses = lambda begin: MoveRefusal.MOVING if len(here.under_way) == 1 else ""
    here.make_room(60, c=100)
    here.look()
    assert here.cancelled == list(here.under_way)
    assert len(here.cancelled) == 1
    (told,) = here.told
    assert (told.code, told.num_moves) == ("moving", 3)


def test_a_request_that_may_not_begin_leaves_its_turn_to_the_next_one() -> None:
    here = Played(*THREE)
    here.refuses = lambda begin: "unknown" if begin.candidate.request_id == "r0" else ""
    here.relieve()
    here.look()
    assert here.leaving() == [("r1", "b"), ("r2", "b")]


def test_an_order_is_fruitless_once_and_only_if_nothing_came_of_it() -> None:
    here = Played(*(replace(each, refusal="multimodal") for each in THREE))
    for _ in range(2):
        here.relieve()
        here.look()
        here.tell(relieving.RoomGiven(HeadOrder("round-1", "r9", C, CONFIG)))
        here.look()
    fruitless = [told for told in here.told if isinstance(told, relieving.TellFruitless)]
    assert fruitless == [relieving.TellFruitless("round-1", B)] * 2
    refused = [
        told.refused.request_id for told in here.told if isinstance(told, relieving.TellNotMoved)
    ]
    assert refused == ["r0", "r1"], "two a second"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_no_request_leaves_twice(seed: int) -> None:
    dice = random.Random(seed)
    requests = [running(f"r{i}", dice.randint(1, 9), rank=dice.choice((0, 0, 1))) for i in range(9)]
    waiting = [queued(f"q{i}", dice.randint(1, 30), arrival_time_s=i) for i in range(4)]
    here = Played(*requests, *waiting, max_moves=dice.randint(1, 5))

    def refusal(_begin: relieving.BeginMove) -> str:
        if here.num_moves >= here.max_moves:
            return MoveRefusal.TOO_MANY_MOVES
        return dice.choice(("", "", "", "", MoveRefusal.MOVING))

    def end_one() -> None:
        migration_id = dice.choice(list(here.under_way))
        code = dice.choice(("", "", "no_blocks", "finished", "evicted"))
        if migration_id in here.cancelled:
            code = PLAN_FAILED
        here.end(migration_id, code)

    def order_room() -> None:
        spare = {i: dice.randint(0, 40) for i in dice.sample("bc", dice.randint(1, 2))}
        here.make_room(dice.randint(1, 40), dice.choice(("held", "", "q0")), **spare)

    here.refuses = refusal
    actions: list[Callable[[], object]] = [
        lambda: here.relieve(dice.choice((B, C)), taken_s=here.now_s - dice.random()),
        lambda: here.tell(relieving.ReliefWithdrawn()),
        order_room,
        lambda: here.tell(
            relieving.RoomGiven(HeadOrder("round-1", dice.choice(("q0", "q1")), B, CONFIG))
        ),
        here.look,
        here.look,
        lambda: end_one() if here.under_way else None,
        lambda: end_one() if here.under_way else None,
        lambda: here.reserved.update(dict.fromkeys(here.under_way, here.now_s)),
        lambda: (
            here.tell(relieving.PeerLost(dice.choice((B, C)).__eq__))
            if dice.random() < 0.2
            else None
        ),
        lambda: here.tell(relieving.DrainEnded()) if dice.random() < 0.2 else None,
        lambda: here.tell(relieving.Fenced()) if dice.random() < 0.05 else None,
        lambda: setattr(here, "draining", dice.random() < 0.3),
    ]
    for step in range(300):
        here.now_s += dice.expovariate(10.0)
        dice.choice(actions)()
        here.machine.check()
        if step % 20 == 0 and len(here.requests) < 9:
            request = running(f"s{step}", dice.randint(1, 9))
            here.requests[request.request_id] = request
