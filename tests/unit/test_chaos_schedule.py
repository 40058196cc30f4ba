"""What `python -m tools.chaos` holds against a cluster."""

import random

from controller.api.token_sequence import start, token
from tools.chaos import streams


def test_an_emulated_answer_is_right_only_if_it_is_whole_and_in_order() -> None:
    request = streams.emulated(random.Random(1), 5)
    begin, number = start(request.body["prompt"]), request.body["max_tokens"]
    right = [token(begin, position) for position in range(number)]
    assert request.wrong(right) is None
    for wrong in (right[:-1], [*right, right[-1]], [right[1], right[0], *right[2:]]):
        assert request.wrong(wrong) is not None
