"""A drain's plan compared with the moves: in 1,000 seeded clusters the controller's pairing and the
machine at the source empty an instance in virtual time, and each request goes where the plan says.

The instances are lists of requests, counted anew in each round; a move takes a round, and nothing
else happens."""

import random
from dataclasses import dataclass, field, replace

import pytest

from controller.core.emptying import relieving
from controller.core.emptying.forecast import DrainForecast
from controller.core.emptying.openness import FRUITLESS_S, Avoided, fruitless_until_s
from controller.core.emptying.relief import Candidate
from controller.core.emptying.rounds import InstanceLoad, ReliefOrder, pair
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.settings import ReschedulingConfig
from tests.unit.core.core_builders import BLOCK_SIZE, THREE_LEVELS
from tests.unit.rescheduling.relief_builders import instance

SOURCE = "i-0"


@dataclass
class Instance:
    instance_id: str
    total_blocks: int
    max_num_running: int
    requests: list[Candidate]

    def snapshot(self) -> InstanceSnapshot:
        return instance(
            *self.requests,
            instance_id=self.instance_id,
            total_blocks=self.total_blocks,
            max_num_running=self.max_num_running,
            draining=self.instance_id == SOURCE,
        )


@dataclass
class Drain:
    """It is what the machine at the source sees of its instance, too."""

    instances: dict[str, Instance]
    config: ReschedulingConfig
    max_moves: int
    instance_id: str = SOURCE
    block_size: int = BLOCK_SIZE
    block_bytes: int = 1
    leaves_at_s: float | None = None
    max_bytes_per_s: float | None = None
    step_time_s: float | None = None
    now_s: float = 0.0
    under_way: dict[str, relieving.BeginMove] = field(default_factory=dict)
    fruitless: Avoided[tuple[str, str]] = field(default_factory=Avoided)
    gone_to: dict[str, str] = field(default_factory=dict)
    must_look: bool = False

    def __post_init__(self) -> None:
        self.machine = relieving.RelievingSource(self, "epoch")

    @property
    def num_moves(self) -> int:
        return len(self.under_way)

    def bytes_per_s(self, _destination_id: str) -> float | None:
        return None

    def leaving_for(self) -> list[str]:
        return [move.destination.instance_id for move in self.under_way.values()]

    def reserved_s(self, _migration_id: str) -> float | None:
        """Since the beginning of the round in which it began."""
        return self.now_s

    def do(self, instructions: list[relieving.Instruction]) -> None:
        self.machine.check()
        for each in instructions:
            match each:
                case relieving.Look():
                    self.must_look = True
                case relieving.TellFruitless(destination=to):
                    until_s = fruitless_until_s(self.now_s, self.config.interval_s)
                    self.fruitless.avoid((SOURCE, to.instance_id), until_s)
                case relieving.BeginMove(migration_id=migration_id):
                    self.under_way[migration_id] = each
                    self.do(self.machine.handle(relieving.MoveBegan(migration_id), self.now_s))

    def round(self) -> int:
        """The number of moves that began."""
        for migration_id, move in list(self.under_way.items()):
            del self.under_way[migration_id]
            to, request = move.destination.instance_id, move.candidate
            here, there = self.instances[SOURCE].requests, self.instances[to].requests
            here.remove(next(each for each in here if each.request_id == request.request_id))
            there.append(replace(request, outgoing=False))
            assert self.instances[to].snapshot().arrivable_blocks >= 0, "more than fits"
            self.gone_to[request.request_id] = to
            self.do(self.machine.handle(relieving.MoveEnded(migration_id, moved=True), self.now_s))
        self.now_s += self.config.interval_s
        snapshots = {key: each.snapshot() for key, each in self.instances.items()}
        loads = [
            InstanceLoad.of(each, THREE_LEVELS, may_send=key == SOURCE, may_receive=True)
            for key, each in snapshots.items()
        ]
        pairs = pair(loads, self.config, set(self.fruitless.at(self.now_s)))
        if not pairs:
            self.do(self.machine.handle(relieving.ReliefWithdrawn(), self.now_s))
            return 0
        to = pairs[0].destination_id
        order = ReliefOrder(
            InstanceRef(to, 1, "mem://"),
            snapshots[to],
            0.0,
            pairs[0].source_freeness,
            pairs[0].destination_freeness,
            (),
            THREE_LEVELS,
            self.config,
        )
        self.do(self.machine.handle(relieving.ReliefGiven("round", order, self.now_s), self.now_s))
        if self.must_look:
            self.must_look = False
            looked = relieving.Looked(snapshots[SOURCE], list(self.instances[SOURCE].requests))
            self.do(self.machine.handle(looked, self.now_s))
        return len(self.under_way)

    def run(self) -> None:
        """Until no destination that was left out would be taken again."""
        in_vain_s = 0.0
        while in_vain_s <= (1 + len(self.instances)) * FRUITLESS_S:
            in_vain_s = 0.0 if self.round() else in_vain_s + self.config.interval_s


def some_requests(dice: random.Random, name: str, most: int, max_blocks: int) -> list[Candidate]:
    requests = list[Candidate]()
    for number in range(dice.randint(0, most)):
        num_blocks = dice.randint(1, max_blocks)
        is_queued = dice.random() < 0.25
        held = 0 if is_queued else num_blocks
        requests.append(
            Candidate(
                f"{name}-{number}",
                dice.choice((0, 0, 0, 1, 2)),
                num_blocks * BLOCK_SIZE - dice.randrange(BLOCK_SIZE),
                held,
                held,
                is_queued,
                arrival_time_s=float(dice.randint(0, 9)),
                refusal=dice.choice((None, None, None, None, "multimodal")),
            )
        )
    return requests


def some_cluster(dice: random.Random) -> Drain:
    instances: dict[str, Instance] = {}
    for number in range(dice.randint(1, 5)):
        instance_id, total_blocks = f"i-{number}", dice.choice((40, 80, 160))
        requests = some_requests(dice, instance_id, 12, max(4, total_blocks // 6))
        running = [each for each in requests if not each.queued]
        while sum(each.num_blocks for each in running) > total_blocks:
            requests.remove(running.pop())
        places = dice.choice((0, 8, 16))
        instances[instance_id] = Instance(instance_id, total_blocks, places, requests)
    above_steps = dice.choice((48.0, 48.0, 0.0, 120.0))
    config = ReschedulingConfig(
        source_below_steps=min(48.0, above_steps),
        destination_above_steps=above_steps,
        interval_s=dice.choice((0.1, 0.5)),
    )
    return Drain(instances, config, dice.randint(1, 4))


@pytest.mark.parametrize("seed", range(10))
def test_each_request_goes_where_the_plan_says(seed: int) -> None:
    num_gone = num_stayed = num_destinations = 0
    for number in range(100):
        drain = some_cluster(random.Random(100 * seed + number))
        snapshots = [each.snapshot() for each in drain.instances.values()]
        requests = tuple(drain.instances[SOURCE].requests)
        forecast = DrainForecast(
            snapshots[0], requests, snapshots[1:], THREE_LEVELS, drain.config, drain.max_moves
        )
        while forecast.round():
            pass
        planned = forecast.departures({each.request_id: "" for each in requests})
        drain.run()
        room = [
            each.snapshot().arrivable_blocks
            for key, each in drain.instances.items()
            if key != SOURCE
        ]
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
