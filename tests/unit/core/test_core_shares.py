"""Which model gives an instance to one that has no room for its own."""

import random
from typing import Any

import pytest

from controller.core.fleet.autoscaler import Check, Outcome, ScaleDecision, ScaleReason
from controller.core.fleet.shares import PAUSE_S, Give, ModelNow, Shares, SharesSeen


def checked(
    outcome: Outcome = Outcome.NOTHING, num_added: int = 0, less: float | None = 500.0
) -> Check:
    decision = ScaleDecision(ScaleReason.IN_RANGE, 1, 600.0, 600.0, less, num_added=num_added)
    return Check("c", 0.0, decision, outcome, "")


SHORT = checked(Outcome.BLOCKED, num_added=1, less=10.0)


def model(name: str, **changes: Any) -> ModelNow:
    facts = {"num_planned": 2, "min_instances": 1, "up_below_steps": 160.0, "last": checked()}
    return ModelNow(name, **facts | changes)


def gives(*models: ModelNow) -> list[Give]:
    return Shares().handle(SharesSeen(models), 0.0)


def test_the_freest_that_can_do_without_one_gives() -> None:
    found = gives(model("a", last=SHORT), model("b"), model("c", last=checked(less=900.0)))
    assert found == [Give("c", "a")]


@pytest.mark.parametrize(
    "donor",
    [
        {"min_instances": 2},
        {"is_automatic": False},
        {"last": None},
        {"last": checked(less=160.0)},
        {"last": checked(less=None)},
        {"last": checked(Outcome.DONE, num_added=1, less=900.0)},
        {"last": SHORT},
        {"num_leaving": 1},
    ],
    ids=str,
)
def test_nobody_gives_what_is_needed_or_is_an_operators(donor: dict[str, Any]) -> None:
    assert gives(model("a", last=SHORT), model("b", **donor)) == []


def test_one_that_an_operator_holds_gets_nothing() -> None:
    assert gives(model("a", last=SHORT, is_automatic=False), model("b")) == []


def test_one_goes_at_a_time() -> None:
    shares, seen = Shares(), SharesSeen([model("a", last=SHORT), model("b", num_planned=5)])
    assert len(shares.handle(seen, 0.0)) == 1
    assert shares.handle(seen, PAUSE_S - 1) == []
    assert len(shares.handle(seen, PAUSE_S)) == 1
    assert shares.view() == Give("b", "a")


@pytest.mark.parametrize("seed", range(50))
def test_no_model_goes_below_its_minimum_and_none_gives_to_itself(seed: int) -> None:
    chance, shares = random.Random(seed), Shares()
    planned = {name: chance.randint(1, 4) for name in "abc"}
    minimum = {name: chance.randint(1, planned[name]) for name in "abc"}
    for now_s in range(0, 2000, 7):
        models = [
            model(
                name,
                num_planned=planned[name],
                min_instances=minimum[name],
                last=chance.choice([SHORT, checked(less=chance.uniform(0, 1000))]),
            )
            for name in "abc"
        ]
        for give in shares.handle(SharesSeen(models), now_s):
            planned[give.name] -= 1
        shares.check()
        assert all(planned[name] >= minimum[name] for name in "abc"), seed
