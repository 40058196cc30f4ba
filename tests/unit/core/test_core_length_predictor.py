"""Output lengths, predicted from what a client's earlier requests did."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.prediction.length_predictor import LengthPredictor, LengthPredictorConfig


def predictor(
    *ended: tuple[str, Sequence[int]],
    share: float = 0.5,
    client_window: int = 5,
    all_window: int = 100,
    max_clients: int = 3,
) -> LengthPredictor:
    """Windows of 5 samples, of which two are enough, and three clients."""
    config = LengthPredictorConfig(share, client_window, all_window, 2, max_clients)
    made = LengthPredictor(config)
    for client, lengths in ended:
        for length in lengths:
            made.observe(client, length)
    made.check()
    return made


def test_nothing_is_known_at_first() -> None:
    assert predictor().predict("a") is None
    assert predictor(("a", [100])).predict("a") is None, "one request says too little"


def test_a_request_of_an_unknown_client_is_compared_with_all() -> None:
    made = predictor(("a", [10, 20]))
    made.observe(None, 30)
    made.check()
    assert made.predict(None) == 20
    assert made.predict("a", 20) is None, "one that went on longer says too little"


def test_the_median_of_the_clients_own_requests() -> None:
    made = predictor(("a", [30, 10, 20]), ("b", [500, 600, 700, 800]))
    assert made.predict("a") == 20
    assert made.predict("b") == 600, "the lower one of the two in the middle"


def test_another_quantile() -> None:
    lengths = ("a", [50, 10, 40, 20, 30])
    assert predictor(lengths, share=0.8).predict("a") == 40
    assert predictor(lengths, share=0.81).predict("a") == 50
    assert predictor(lengths, share=1.0).predict("a") == 50
    assert predictor(lengths, share=0.0).predict("a") == 10


def test_an_unknown_client_is_like_all_others() -> None:
    made = predictor(("a", [10, 20, 30]), ("b", [500, 600]), ("c", [40]))
    assert made.predict("z") == 30
    assert made.predict("c") == 30, "one request of its own is too little"


def test_only_the_last_ones_count() -> None:
    made = predictor(("a", [900, 900, 900, 1, 2, 3, 4, 5]))
    assert made.predict("a") == 3
    of_all = predictor(("a", [900, 900, 1, 2, 3]), all_window=3)
    assert of_all.predict("z") == 2


def test_a_request_that_goes_on_is_compared_with_longer_ones() -> None:
    made = predictor(("a", [10, 20, 30, 40, 50]), ("b", [700, 800]))
    assert made.predict("a", 15) == 30  # of 20, 30, 40, 50
    assert made.predict("a", 20) == 40  # of 30, 40, 50: 20 is behind it
    assert made.predict("a", 30) == 40  # of 40, 50
    assert made.predict("a", 40) == 700, "one alone is too little, so all clients': 50, 700, 800"
    assert made.predict("a", 700) is None


def test_its_limit_is_known() -> None:
    made = predictor(("a", [100, 200, 300]))
    assert made.predict("a", 0, 150) == 150
    assert made.predict("a", 0, 250) == 200
    assert predictor().predict("a", 0, 150) is None


def test_the_client_that_was_quiet_for_longest_is_forgotten() -> None:
    made = predictor(("a", [10, 10]), ("b", [20, 20]), ("c", [30, 30]), ("a", [10]))
    made.observe("d", 40)
    made.check()
    assert made.predict("a") == 10
    assert made.predict("c") == 30
    # What is forgotten is the client, not what it did: 10 10 10 20 20 30 30 40.
    assert made.predict("b") == 20
    for _ in range(3):
        made.observe("c", 30)
    assert made.predict("b") == 30


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"share": 1.01}, "share"),
        ({"share": float("nan")}, "share"),
        ({"client_window": 0}, "client_window"),
        ({"all_window": 0}, "all_window"),
        ({"min_samples": 0}, "min_samples"),
        ({"max_clients": 0}, "max_clients"),
    ],
)
def test_a_configuration_that_is_wrong(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        LengthPredictorConfig(**config)


@given(
    ended=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 50)), max_size=60),
    so_far=st.integers(0, 50),
    share=st.floats(0, 1),
)
def test_against_a_plain_list(ended: list[tuple[str, int]], so_far: int, share: float) -> None:
    made = predictor(share=share, max_clients=5, all_window=20)
    for client, length in ended:
        made.observe(client, length)
        made.check()
    for client in "abcde":
        own = [length for who, length in ended if who == client][-5:]
        longer = [each for each in own if each > so_far]
        if len(longer) < 2:
            longer = [length for _, length in ended[-20:] if length > so_far]
        found = made.predict(client, so_far)
        if len(longer) < 2:
            assert found is None
            continue
        assert found in longer
        assert sum(each <= found for each in longer) >= share * len(longer)
        smaller = sum(each < found for each in longer)
        assert smaller == 0 or smaller < share * len(longer)
