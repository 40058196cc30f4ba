"""The machine of a source: orders in, moves out. The test plays the instance. Then a drain's plan
is compared with the moves."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from controller.core.emptying import relieving
from controller.core.emptying.forecast import DrainForecast
from controller.core.emptying.openness import FRUITLESS_S, Avoided, fruitless_until_s
from controller.core.emptying.relief import Candidate
from controller.core.emptying.room_plan import PLAN_FAILED
from controller.core.emptying.rounds import (
    HeadOrder,
    InstanceLoad,
    Opening,
    ReliefOrder,
    RoomOrder,
    pair,
)
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceRef, InstanceSnapshot, Level
from controller.core.migration.refusals import MoveRefusal
from controller.core.settings import ReschedulingConfig
from tests.unit.core.core_builders import THREE_LEVELS, few_seeds
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
    """An instance, by default of 100 blocks, and the runner of its machine. `under_way`: by
    migration id."""

    block_size, block_bytes, step_time_s = BLOCK_SIZE, BLOCK_BYTES, STEP_TIME_S
    rate: float | None = BYTES_PER_S
    leaves_at_s: float | None = None
    max_bytes_per_s: float | None = None

    def __init__(
        self, *requests: Candidate, max_moves: int = 4, instance_id: str = "a", **more: int
    ) -> None:
        self.instance_id, self.more = instance_id, more
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
        return self.rate

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

    def seen(self) -> tuple[InstanceSnapshot, list[Candidate]]:
        moving = {each.candidate.request_id for each in self.under_way.values()}
        requests = [
            replace(each, outgoing=each.request_id in moving) for each in self.requests.values()
        ]
        found = instance(*requests, instance_id=self.instance_id, **self.more)
        return replace(found, draining=self.draining), requests

    def look(self) -> None:
        """The step under way ends."""
        if self.looks:
            self.looks = False
            self.tell(relieving.Looked(*self.seen()))

    def end(self, migration_id: str, code: str = "") -> None:
        begin = self.under_way.pop(migration_id)
        if not code:
            del self.requests[begin.candidate.request_id]
        self.tell(relieving.MoveEnded(migration_id, not code, code))

    def relieve(
        self,
        to: InstanceRef = B,
        config: ReschedulingConfig = MANY,
        *,
        taken_s: float = -1.0,
        there: InstanceSnapshot | None = None,
        levels: Sequence[Level] = DEFAULT_LEVELS,
    ) -> None:
        there = there or instance(instance_id=to.instance_id)
        order = ReliefOrder(to, there, 0.0, 1.0, 2.0, (), levels, config)
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


def test_of_a_plan_of_which_a_move_fails_the_others_are_cancelled() -> None:
    here = Played(*THREE)
    here.relieve()
    here.make_room(60, c=100)
    here.look()
    assert sorted(here.leaving()) == [("r0", "c"), ("r1", "c"), ("r2", "c")]
    first, *others = here.under_way
    here.end(first, "finished")
    assert here.cancelled == [], "it has made room all the same"
    here.end(others[0], "no_blocks")
    assert here.cancelled == others[1:]
    (told,) = here.told
    assert (told.code, told.num_moves, told.destination_id) == ("no_blocks", 3, "c")


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


# -- a drain's plan and the moves ----------------------------------------------------------


@dataclass
class Drain:
    """Of `source`, towards others; a move takes a round, and nothing else happens."""

    source: Played
    others: dict[str, Played]
    config: ReschedulingConfig
    now_s: float = 0.0
    fruitless: Avoided[tuple[str, str]] = field(default_factory=Avoided)
    gone_to: dict[str, str] = field(default_factory=dict)

    def round(self) -> int:
        """The number of moves that began."""
        source = self.source
        for migration_id, move in list(source.under_way.items()):
            to, request = self.others[move.destination.instance_id], move.candidate
            to.requests[request.request_id] = request
            assert to.seen()[0].arrivable_blocks >= 0, "more than fits"
            self.gone_to[request.request_id] = to.instance_id
            source.end(migration_id)
        source.now_s = self.now_s = self.now_s + self.config.interval_s
        there = {key: each.seen()[0] for key, each in self.others.items()}
        loads = [InstanceLoad.of(source.seen()[0], THREE_LEVELS, may_send=True, may_receive=True)]
        for each in there.values():
            loads.append(InstanceLoad.of(each, THREE_LEVELS, may_send=False, may_receive=True))
        pairs = pair(loads, self.config, set(self.fruitless.at(self.now_s)))
        if not pairs:
            source.tell(relieving.ReliefWithdrawn())
            return 0
        to_id = pairs[0].destination_id
        ref, now_s = InstanceRef(to_id, 1, "mem://"), self.now_s
        source.relieve(ref, self.config, taken_s=now_s, there=there[to_id], levels=THREE_LEVELS)
        source.look()
        source.reserved.update(dict.fromkeys(source.under_way, now_s))
        while source.told:
            told = source.told.pop()
            if isinstance(told, relieving.TellFruitless):
                until_s = fruitless_until_s(now_s, self.config.interval_s)
                self.fruitless.avoid((source.instance_id, told.destination.instance_id), until_s)
        return source.num_moves

    def run(self) -> None:
        """Until no destination that was left out would be taken again."""
        in_vain_s = 0.0
        while in_vain_s <= (2 + len(self.others)) * FRUITLESS_S:
            in_vain_s = 0.0 if self.round() else in_vain_s + self.config.interval_s


def some_requests(dice: random.Random, name: str, most: int, max_blocks: int) -> list[Candidate]:
    requests = list[Candidate]()
    for number in range(dice.randint(0, most)):
        num_blocks, rank = dice.randint(1, max_blocks), dice.choice((0, 0, 0, 1, 2))
        kind = queued if dice.random() < 0.25 else running
        request = kind(f"{name}-{number}", num_blocks, rank, arrival_time_s=dice.randint(0, 9))
        refusal = dice.choice((None, None, None, None, "multimodal"))
        num_tokens = request.num_tokens - dice.randrange(BLOCK_SIZE)
        requests.append(replace(request, num_tokens=num_tokens, refusal=refusal))
    return requests


def some_drain(dice: random.Random) -> Drain:
    instances = list[Played]()
    for number in range(dice.randint(1, 5)):
        total_blocks = dice.choice((40, 80, 160))
        requests = some_requests(dice, f"i-{number}", 12, max(4, total_blocks // 6))
        batch = [each for each in requests if not each.queued]
        while sum(each.num_blocks for each in batch) > total_blocks:
            requests.remove(batch.pop())
        size = {"total_blocks": total_blocks, "max_num_running": dice.choice((0, 8, 16))}
        max_moves = dice.randint(1, 4)
        there = Played(*requests, max_moves=max_moves, instance_id=f"i-{number}", **size)
        there.rate = there.step_time_s = None
        instances.append(there)
    above_steps = dice.choice((48.0, 48.0, 0.0, 120.0))
    config = ReschedulingConfig(
        source_below_steps=min(48.0, above_steps),
        destination_above_steps=above_steps,
        interval_s=dice.choice((0.1, 0.5)),
    )
    source, *others = instances
    source.draining = True
    return Drain(source, {each.instance_id: each for each in others}, config)


@pytest.mark.parametrize("seed", few_seeds(3, 10))
def test_each_request_goes_where_the_plan_says_in_1000_clusters(seed: int) -> None:
    num_gone = num_stayed = num_destinations = 0
    for number in range(100):
        drain = some_drain(random.Random(100 * seed + number))
        (here, requests), max_moves = drain.source.seen(), drain.source.max_moves
        there = [each.seen()[0] for each in drain.others.values()]
        forecast = DrainForecast(here, requests, there, THREE_LEVELS, drain.config, max_moves)
        while forecast.round():
            pass
        planned = forecast.departures({each.request_id: "" for each in requests})
        drain.run()
        room = [each.seen()[0].arrivable_blocks for each in drain.others.values()]
        for each in planned:
            if each.code == "no_blocks":
                assert max(room, default=0) < each.request.num_blocks, "it would have fitted"
        going = {each.request.request_id: each.destination_id for each in planned if not each.code}
        assert going == drain.gone_to, f"cluster {number}"
        num_gone += len(going)
        num_stayed += len(planned) - len(going)
        num_destinations += len(set(going.values()))
    assert num_gone > 150, "else this shows little"
    assert num_stayed > 40
    assert num_destinations > 40
