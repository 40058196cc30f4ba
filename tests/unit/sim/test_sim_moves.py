"""Moves in virtual time: the machines of both ends keep their invariants after each event, and
however a move ends, its request ends once and every block is freed."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.core.migration.destination import DestinationState
from controller.core.migration.source import SourceState
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Outcome
from controller.sim.setup import ClusterSetup, Fault
from controller.sim.sim_moves import SimMove
from tests.unit.sim.runs import MOVE, SMALL, policy, requests
from tests.unit.sim.test_sim_cluster import check


def watched(cluster: SimCluster, rows, look: Callable[[], None]) -> Outcome:
    """The outcome of a run. The machines of both ends are checked and `look` looks before each
    event; engines are checked between their steps."""
    run = cluster.events.run

    def run_watched(is_over: Callable[[], bool]) -> None:
        def looked() -> bool:
            for move in cluster.links.under_way:
                move.machine.check()
                if move.arrival is not None:
                    move.arrival.machine.check()
            look()
            return is_over()

        run(looked)

    def check_engines() -> None:
        for instance in list(cluster.instances.values()):  # a check may let one go
            if instance.alive:
                instance.between_steps(instance.engine.check)
        cluster.events.after(0.1, check_engines)

    cluster.events.at(0.0, check_engines)
    cluster.events.run = run_watched  # type: ignore[method-assign]
    outcome = cluster.run(requests(rows))
    ended_s = outcome.duration_s
    cluster.events.run(lambda: cluster.events.now_s > ended_s + 15.0)
    return outcome


def check_end(cluster: SimCluster, outcome: Outcome, num_requests: int) -> None:
    assert len(outcome.rows) + outcome.num_failed == num_requests
    assert not cluster.links.under_way
    check(cluster)
    for instance in cluster.instances.values():
        if instance.alive:
            assert not instance.moves.outgoing
            assert not instance.moves.incoming


def history(seed: int) -> Outcome:
    rng = random.Random(seed)
    rows = sorted((rng.uniform(0, 12), rng.randint(1, 500), rng.randint(1, 300)) for _ in range(70))
    faults = [
        Fault(rng.uniform(0, 12), "slow-links", f"i-{n}", rng.choice([2, 20, 80])) for n in range(4)
    ]
    if rng.random() < 0.5:
        faults.append(Fault(rng.uniform(2, 12), "drain", f"i-{rng.randint(0, 3)}"))
    setup = ClusterSetup(
        SMALL,
        policy(replace(MOVE, source_below_steps=60.0, destination_above_steps=60.0)),
        5,
        prefix_caching=rng.random() < 0.5,
        mode=rng.choice(["chunked", "prefill-first"]),
        faults=tuple(faults),
    )
    cluster = SimCluster(setup)

    def do_harm() -> None:
        for move in list(cluster.links.under_way):
            if rng.random() < 0.05:
                move.cancel("cancelled")
        living = [each for each in cluster.instances.values() if each.alive]
        if cluster.links.under_way and len(living) > 2 and rng.random() < 0.1:
            move = next(iter(cluster.links.under_way))
            end = rng.choice([move.source, move.destination])
            if end.alive:
                cluster.kill(end)
        cluster.events.after(0.3, do_harm)

    cluster.events.at(0.0, do_harm)
    outcome = watched(cluster, rows, lambda: None)
    check_end(cluster, outcome, len(rows))
    return outcome


@pytest.mark.long
def test_invariants_hold_after_each_event_whatever_becomes_of_the_moves() -> None:
    outcomes = [history(seed) for seed in range(12)]
    assert sum(each.num_moved for each in outcomes) > 100
    seen = set().union(*(each.num_failed_moves for each in outcomes))
    wanted = "no_blocks finished evicted admitted destination_died source_died cancelled too_slow"
    assert seen >= set(wanted.split())


When = Callable[[SimMove], bool]


def killed_when(when: When, end: str) -> tuple[Outcome, SimMove]:
    """One end of the one move dies as soon as `when` is true of it. Two requests are at the source,
    of which one moves, and one at the destination."""
    cluster = SimCluster(ClusterSetup(SMALL, policy(MOVE, "round-robin"), 2))
    killed: list[SimMove] = []

    def look() -> None:
        for move in list(cluster.links.under_way):
            if not killed and when(move):
                killed.append(move)
                cluster.kill(getattr(move, end))

    rows = [(0.0, 400, 200), (0.0, 100, 300), (0.01, 400, 200)]
    outcome = watched(cluster, rows, look)
    check_end(cluster, outcome, len(rows))
    (move,) = killed
    return outcome, move


def is_in(state: SourceState, there: DestinationState | None = None) -> When:
    def when(move: SimMove) -> bool:
        return move.machine.state is state and (
            there is None or (move.arrival is not None and move.arrival.machine.state is there)
        )

    return when


COPYING, SUSPENDED = is_in(SourceState.COPYING), is_in(SourceState.SUSPENDED)
RECEIVING, HOLDING, APPLYING, COMMITTED = (
    is_in(SourceState.COMMITTING, there)
    for there in (
        DestinationState.RECEIVING,
        DestinationState.HOLDING,
        DestinationState.APPLYING,
        DestinationState.COMMITTED,
    )
)
DEATHS = {
    "while it is copied, of the source": (COPYING, "source", 0, 2),
    "while it is suspended, of the source": (SUSPENDED, "source", 0, 2),
    "while it is copied, of the destination": (COPYING, "destination", 0, 1),
    "while it is suspended, of the destination": (SUSPENDED, "destination", 0, 1),
    "of the source with its commit on the way": (RECEIVING, "source", 0, 2),
    "of the source with its commit not yet taken": (HOLDING, "source", 0, 2),
    "of the source with its commit taken": (APPLYING, "source", 1, 1),
    "of the destination before its word is heard": (COMMITTED, "destination", 0, 1),
    "of the destination afterwards": (is_in(SourceState.MIGRATED), "destination", 1, 2),
}


@pytest.mark.parametrize(("when", "end", "num_moved", "num_failed"), DEATHS.values(), ids=DEATHS)
def test_after_a_death_the_request_is_at_one_end_or_lost_with_it(
    when: When, end: str, num_moved: int, num_failed: int
) -> None:
    """Until the frontend has heard of the destination, the source gets the request back."""
    outcome, move = killed_when(when, end)
    assert (outcome.num_moved, outcome.num_failed) == (num_moved, num_failed)
    assert bool(move.run.finished_s) is (num_failed == 1)
    if when in (COPYING, SUSPENDED):
        assert move.failure == f"{end}_died"
    if end == "destination" and not num_moved:
        assert move.machine.state in (SourceState.STAYED, SourceState.RESUMED)
        assert not move.run.moves
