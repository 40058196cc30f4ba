"""The policy at work in simulated clusters: it does what it is for, and then rests."""

import random
from dataclasses import dataclass

from controller.core.emptying.openness import FRUITLESS_S
from controller.core.settings import ReschedulingConfig
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Rows
from controller.sim.request_run import RequestRun
from controller.sim.setup import ClusterSetup, Fault
from controller.sim.workload.trace import Trace, TraceRequest
from tests.unit.sim.runs import A10, STAY, policy

MOVE = ReschedulingConfig()
NEXT_TO_NOTHING = (1, 1)
"""Prompt and output tokens."""


@dataclass(frozen=True)
class Moved:
    request_id: str
    source_id: str
    destination_id: str
    time_s: float


class Ended(Rows):
    """The requests themselves too, by id."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, RequestRun] = {}

    def add(self, run: RequestRun) -> None:
        super().add(run)
        self.runs[run.request.request_id] = run

    @property
    def num_evictions(self) -> float:
        return sum(self.columns["num_evictions"])

    def moves_of(self, request_id: str) -> list[Moved]:
        run = self.runs[request_id]
        ways = [*(left for left, _ in run.moves), run.instance_id]
        return [
            Moved(request_id, source_id, to, time_s)
            for (source_id, time_s), to in zip(run.moves, ways[1:], strict=True)
        ]

    def moves(self) -> list[Moved]:
        return [moved for request_id in self.runs for moved in self.moves_of(request_id)]


def play(
    trace: list[TraceRequest], num_instances: int, config: ReschedulingConfig, *faults: Fault
) -> Ended:
    """Requests go to the instances in turn."""
    setup = ClusterSetup(A10, policy(config, "round-robin"), num_instances, faults=faults)
    cluster = SimCluster(setup)
    cluster.outcome.rows = ended = Ended()
    cluster.run(Trace("test", trace))
    for instance in cluster.instances.values():
        instance.engine.check()
    return ended


def placed(*lists: list[tuple[int, ...]], rest_at_s: float = 0.0) -> list[TraceRequest]:
    """What the first instance, the second one and so on gets, at once: of prompt tokens, output
    tokens and rank. r-0, r-1 and so on are in turn theirs."""
    longest = max(len(each) for each in lists)
    padded = [[*each, *[NEXT_TO_NOTHING] * (longest - len(each))] for each in lists]
    return [TraceRequest(rest_at_s, *each) for turn in zip(*padded, strict=True) for each in turn]


# -- what it is for ---------------------------------------------------------------------------


def test_an_overloaded_instance_is_relieved_before_it_evicts() -> None:
    """Twelve requests outgrow one instance of four: 12 x 1,200 tokens of 13,616."""
    crowded = placed([(600, 600)] * 12, [], [], [])
    assert play(crowded, 4, STAY).num_evictions > 0
    ended = play(crowded, 4, MOVE)
    assert ended.num_evictions == 0
    moved = ended.moves()
    assert {each.source_id for each in moved} == {"i-0"}
    assert 0 < len(moved) <= 4, "no more than it takes"


# -- pairs between which nothing moves --------------------------------------------------------


def test_a_lone_high_request_does_not_keep_the_best_destination_for_itself() -> None:
    """It is over its target load by itself, so its instance is the lowest for ever, and it stays.
    The other one is full and has one destination only."""
    ended = play(placed([(2000, 3000, 1)], [(900, 600)] * 12, []), 3, MOVE)
    moved = ended.moves()
    assert {(each.source_id, each.destination_id) for each in moved} == {("i-1", "i-2")}
    assert ended.num_evictions == 0


def test_a_draining_instance_tries_the_next_one_where_the_freest_has_no_room() -> None:
    """In blocks, of 851: i-1 has one request of 700, i-2 ten of 50; one of 200 is to leave i-0."""
    blocks = [(num * 16 - 40, 500) for num in (200, 700, 50)]
    trace = placed([blocks[0]], [blocks[1]], [blocks[2]] * 10)
    ended = play(trace, 3, MOVE, Fault(3.0, "drain", "i-0"))
    first = ended.moves_of("r-0")[0]
    assert (first.source_id, first.destination_id) == ("i-0", "i-2")
    assert first.time_s < 3.0 + 2 * FRUITLESS_S


# -- and then it rests --------------------------------------------------------------------------


def under_constant_load(seed: int, per_s: float, config: ReschedulingConfig) -> Ended:
    """For a minute, on four instances. 2 requests per second bring them near the thresholds, where
    moves are the most."""
    rng = random.Random(seed)
    shapes = [(rng.randint(50, 900), rng.randint(300, 900)) for _ in range(int(60 * per_s))]
    trace = [TraceRequest(number / per_s, *shape) for number, shape in enumerate(shapes)]
    return play(trace, 4, config)


def soon_back(ended: Ended) -> list[Moved]:
    """Moves to an instance that the request had left less than 10 s before."""
    found = []
    for request_id in ended.runs:
        moves = ended.moves_of(request_id)
        for number, back in enumerate(moves):
            found += [
                back
                for away in moves[:number]
                if away.source_id == back.destination_id and back.time_s < away.time_s + 10.0
            ]
    return found


def test_a_cluster_with_room_rests_and_one_near_the_thresholds_moves_nobody_back() -> None:
    """The guard is for that, and without it this test would see it."""
    assert not under_constant_load(0, 1.0, MOVE).moves()
    guarded = under_constant_load(0, 2.0, MOVE)
    assert guarded.moves()
    assert not soon_back(guarded)
    assert max(guarded.columns["num_moves"]) <= MOVE.max_moves_per_minute
    unguarded = under_constant_load(0, 2.0, ReschedulingConfig(guard=False))
    assert soon_back(unguarded)
    assert len(guarded.moves()) < len(unguarded.moves())
