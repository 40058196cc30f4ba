"""How long the scheduler's pure core takes: decisions, rounds, and the choice of one move.

No processes, no messages: values in, values out, one thread. Times are of single calls.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.relief import Candidate, ReliefView, next_move
from controller.core.emptying.rounds import InstanceLoad, pair
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot, QueueHead, blocks_for
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import DispatchRequested, InstanceStarted, StatusReported
from controller.core.settings import ReschedulingConfig

# An A10 with LLaMA-7B near the knee of M-M: a step takes 50 ms, each ends with a status, and 16
# instances get 7.5 requests per second. So between two decisions 43 statuses come from somewhere,
# whatever the number of instances.
STATUSES_PER_DECISION = round(20 / (7.5 / 16))
BLOCKS_PER_REQUEST = 40
NUM_PROMPT_TOKENS = 256
ALL_SEEN = 1 << 60
# So fast that a move is worth it even from a batch of 1,024: the choice is to end at the first.
LINK_BYTES_PER_S = 100e9
LEVELS = DEFAULT_LEVELS
CONFIG = ReschedulingConfig()


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds, of each call; `statuses_s` are per status. Of a decision: `warm` with no status
    since the last one, `cold` with one from every instance, `as_it_runs` with as many as come."""

    num_instances: int
    num_running: int
    warm_s: list[float]
    as_it_runs_s: list[float]
    cold_s: list[float]
    statuses_s: list[float]
    round_s: list[float]


@dataclass(frozen=True, slots=True)
class ReliefTimes:
    """Seconds. `chosen`: the first in turn may move. `refused`: none may, so all are tried."""

    num_candidates: int
    chosen_s: list[float]
    refused_s: list[float]


def core_times(num_instances: int, num_running: int, repeats: int) -> CoreTimes:
    bed = _Bed(num_instances, num_running)
    kinds = {"warm": 0, "as it runs": STATUSES_PER_DECISION, "cold": -1}
    decisions_s: dict[str, list[float]] = {kind: [] for kind in kinds}
    statuses_s: list[float] = []
    for _ in range(repeats):
        for kind, num_statuses in kinds.items():
            statuses = bed.statuses(num_statuses)
            if statuses:
                statuses_s.append(_timed(partial(bed.report, statuses)) / len(statuses))
            decisions_s[kind].append(_timed(partial(bed.decide, bed.request())))
    rounds_s = []
    for _ in range(repeats):
        bed.report(bed.statuses(-1))
        rounds_s.append(_timed(bed.round))
    return CoreTimes(
        num_instances,
        num_running,
        decisions_s["warm"],
        decisions_s["as it runs"],
        decisions_s["cold"],
        statuses_s,
        rounds_s,
    )


def relief_times(num_candidates: int, repeats: int) -> ReliefTimes:
    chosen = _relief_view(num_candidates, None)
    refused = _relief_view(num_candidates, "prefill")
    assert next_move(chosen).chosen is not None
    assert len(next_move(refused).refused) == num_candidates
    return ReliefTimes(
        num_candidates,
        [_timed(partial(next_move, chosen)) for _ in range(repeats)],
        [_timed(partial(next_move, refused)) for _ in range(repeats)],
    )


class _Bed:
    """A scheduler whose instances have all reported, and statuses for it to get."""

    def __init__(self, num_instances: int, num_running: int) -> None:
        self._dice = random.Random(1)
        self._scheduler = GlobalScheduler(SchedulerConfig())
        self._pool = [
            [_status(index, num_running, self._dice) for _ in range(4)]
            for index in range(num_instances)
        ]
        self._numbers = count()
        for index in range(num_instances):
            self._scheduler.handle(InstanceStarted(f"i-{index}", 1), 0.0)
        self.report(self.statuses(-1))

    def statuses(self, number: int) -> list[StatusReported]:
        """Of instances taken at random; -1: one of each."""
        of = self._pool if number < 0 else self._dice.choices(self._pool, k=number)
        return [self._dice.choice(statuses) for statuses in of]

    def request(self) -> DispatchRequested:
        return DispatchRequested(f"r-{next(self._numbers)}", "f-0", NUM_PROMPT_TOKENS, 0, 0.0)

    def report(self, statuses: list[StatusReported]) -> None:
        for status in statuses:
            self._scheduler.handle(status, 1.0)

    def decide(self, request: DispatchRequested) -> None:
        assert self._scheduler.handle(request, 1.0)

    def round(self) -> None:
        loads = [
            InstanceLoad.of(record.snapshot, LEVELS, may_send=True, may_receive=record.schedulable)
            for record in self._scheduler.instances.values()
            if record.snapshot is not None
        ]
        assert pair(loads, CONFIG)


def _status(index: int, num_running: int, dice: random.Random) -> StatusReported:
    """Every second one is about full, the others nearly half empty, so that each round has pairs;
    one in three has requests of high priority."""
    total_blocks = num_running * BLOCKS_PER_REQUEST * 2
    free_blocks = dice.randint(0, total_blocks // 10) + (index % 2) * (total_blocks // 3)
    num_high = num_running // 10 if dice.random() < 1 / 3 else 0
    num_queued = dice.randint(0, 2)
    head = QueueHead("q", 0, BLOCKS_PER_REQUEST, 0.0) if num_queued else None
    snapshot = InstanceSnapshot(
        f"i-{index}",
        1,
        16,
        total_blocks,
        free_blocks,
        watermark_blocks=total_blocks // 100,
        fill_blocks=dice.randint(0, 20),
        max_num_running=4 * num_running,
        num_running=num_running,
        num_running_by_rank={0: num_running - num_high, 1: num_high} if num_high else {0: 1},
        num_queued=num_queued,
        queued_demand_blocks=num_queued * BLOCKS_PER_REQUEST,
        queue_head=head,
    )
    return StatusReported(snapshot, ALL_SEEN)


def _relief_view(num_candidates: int, refusal: str | None) -> ReliefView:
    """A full instance, and an empty one of the same size."""
    dice = random.Random(1)
    tokens = [dice.randint(64, 1200) for _ in range(num_candidates)]
    blocks = [blocks_for(n, 16) for n in tokens]
    candidates = [
        Candidate(f"r-{n}", 0, tokens[n], blocks[n], blocks[n], queued=False, refusal=refusal)
        for n in range(num_candidates)
    ]
    size = sum(blocks)
    source = InstanceSnapshot("i-0", 1, 16, size, 0, num_running=num_candidates)
    destination = InstanceSnapshot("i-1", 1, 16, size, size)
    return ReliefView(
        source,
        candidates,
        destination,
        (),
        LEVELS,
        CONFIG,
        524_288 * 16,
        LINK_BYTES_PER_S,
        step_time_s=0.05,
    )


def _timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def sizes(largest: int) -> Iterator[int]:
    return (size for size in (16, 64, 256, 1024) if size <= largest)
