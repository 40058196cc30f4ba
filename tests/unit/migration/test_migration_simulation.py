"""Histories under random faults, thousands of them by `make test-full`; each is told by its seed
alone."""

import pytest

from tests.unit.migration.simulation import HistoryError, Simulation, run_seed

pytestmark = pytest.mark.long

GROUP = 100
"""So many seeds take about a second."""


@pytest.mark.parametrize(
    "group", [3, *(pytest.param(group, marks=pytest.mark.full) for group in range(4, 40))]
)
def test_no_history_breaks_a_rule(group: int) -> None:
    """One that does is run again by `run_seed(seed)`. The groups before are those of the next
    test, which breaks no rule either."""
    for seed in range(group * GROUP, (group + 1) * GROUP):
        run_seed(seed)


def test_histories_are_not_all_alike() -> None:
    """Faults that always, or never, keep moves from their end would prove nothing."""
    closed: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    fences = {True: 0, False: 0}
    num_replays = 0
    for seed in range(300):
        simulation = run_seed(seed)
        for _, what, *rest in simulation.trace:
            if what == "closed":
                closed[rest[1]] = closed.get(rest[1], 0) + 1
            num_replays += what == "replay"
            if what == "fence" and rest[3] is not None:
                fences[rest[3]] += 1
        for (outcome,) in simulation.frontend.outcomes.values():
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert min(closed[outcome] for outcome in ("migrated", "kept", "resumed", "ended")) > 20
    assert min(outcomes[outcome] for outcome in ("finished", "aborted", "error")) > 20
    assert num_replays > 50
    assert min(fences.values()) > 5, "the frontend granted some fences, and refused some"


def test_the_same_seed_gives_the_same_history() -> None:
    for seed in range(5):
        first, second = run_seed(seed), run_seed(seed)
        assert first.trace == second.trace
        assert first.digest() == second.digest()
    assert len({run_seed(seed).digest() for seed in range(5)}) == 5


def test_a_history_that_goes_wrong_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_simulation: Simulation) -> None:
        raise AssertionError("two owners")

    monkeypatch.setattr(Simulation, "check_quiet", broken)
    with pytest.raises(HistoryError, match=r"^seed 1234: AssertionError\('two owners'\)"):
        run_seed(1234)
