"""What `python -m tools.chaos` holds against a cluster."""

import random

from controller.api.token_sequence import start, token
from tools.chaos import streams
from tools.chaos.__main__ import growth


def test_an_emulated_answer_is_right_only_if_it_is_whole_and_in_order() -> None:
    request = streams.emulated(random.Random(1), 5)
    begin, number = start(request.body["prompt"]), request.body["max_tokens"]
    right = [token(begin, position) for position in range(number)]
    assert request.wrong(right) is None
    for wrong in (right[:-1], [*right, right[-1]], [right[1], right[0], *right[2:]]):
        assert request.wrong(wrong) is not None


def test_memory_that_grows_is_told_and_a_young_process_is_not() -> None:
    sizes = [
        {"f-0 1": (10 << 20, 50 + n), "f-1 2": (n * (20 << 20), 50), "i-0 3": (10 << 20, 50)}
        for n in range(100)
    ]
    sizes[-1]["i-0 4"] = (1 << 40, 10_000)
    assert [line.partition(" grew")[0] for line in sorted(growth(sizes))] == [
        "f-0 1: descriptors",
        "f-1 2: bytes",
    ]
