"""Histories under random faults, each told by its seed alone. `make fault-histories` runs 10,000 on
all cores, in twenty minutes on two; one that breaks a rule is run again by
`python -m tools.fault_histories SEED`."""

from collections import Counter

import pytest

from tools.fault_histories.simulation import HistoryError, Simulation, run_seed

pytestmark = pytest.mark.long

GROUP = 100
"""So many seeds take about a dozen seconds."""


def test_no_history_breaks_a_rule_and_they_are_not_all_alike() -> None:
    """Faults that always, or never, keep moves from their end would prove nothing."""
    happened, closed, why = Counter[str](), Counter[str](), Counter[str]()
    outcomes = Counter[str]()
    for seed in range(GROUP):
        simulation = run_seed(seed)
        for _, what, *rest in simulation.trace:
            happened[what] += 1
            if what == "closed":
                closed[rest[1]] += 1
            elif what == "chosen" and not rest[3]:
                why[rest[2]] += 1
            elif what == "start" and rest[0] == "controller":
                happened["a controller"] += 1
        for ended in simulation.outcomes.values():
            outcomes.update(outcome for outcome, _ in ended)
    assert min(closed[outcome] for outcome in ("migrated", "kept", "resumed", "ended")) >= 5
    assert min(outcomes[outcome] for outcome in ("finished", "aborted", "error")) >= 5
    assert outcomes["refused"] >= 1, "a few in a hundred histories"
    assert min(why[reason] for reason in ("drain", "balance", "before eviction")) >= 5
    assert why["room"] + why["blocked head"] >= 1
    ordered = ("by hand", "drain", "restart", "evacuate", "scale", "roll", "undrain")
    assert min(happened[order] for order in ordered) >= 5
    for fault in ("crash", "pause", "hang", "fenced", "notice", "connection broken", "replay"):
        assert happened[fault] >= 5
    assert happened["a controller"] >= GROUP + 20


@pytest.mark.full
@pytest.mark.parametrize("group", range(1, 10))
def test_no_history_breaks_a_rule(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        run_seed(seed)


def test_an_attempt_that_comes_after_a_later_one() -> None:
    """The first attempt was on its way for six seconds. Meanwhile the request was replayed
    elsewhere and moved to where the first attempt then came."""
    run_seed(29516)


def test_the_same_seed_gives_the_same_history() -> None:
    for seed in range(3):
        first, second = run_seed(seed), run_seed(seed)
        assert first.trace == second.trace
        assert first.digest() == second.digest()
    assert len({run_seed(seed).digest() for seed in range(3)}) == 3


def test_a_history_that_goes_wrong_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_simulation: Simulation) -> None:
        raise AssertionError("two owners")

    monkeypatch.setattr(Simulation, "check_quiet", broken)
    with pytest.raises(HistoryError, match=r"^seed 1234: AssertionError\('two owners'\)"):
        run_seed(1234)
