"""Which requests are replayed after the death of their instance."""

import pytest

from controller.core.replay.replay_machine import SENTENCES, ReplayRefusal, why_not
from controller.core.settings import ReplayConfig

CONFIG = ReplayConfig(max_replays=2)


def test_one_with_outputs_is_replayed_as_often_as_allowed() -> None:
    assert [why_not(CONFIG, n, 7, None) for n in range(3)] == [None, None, ReplayRefusal.TOO_OFTEN]


def test_none_is_if_it_is_switched_off() -> None:
    assert why_not(ReplayConfig(max_replays=0), 0, 0, None) is ReplayRefusal.OFF


@pytest.mark.parametrize(
    "mark",
    [ReplayRefusal.MULTIMODAL, ReplayRefusal.PROMPT_EMBEDS, ReplayRefusal.STREAMED_PROMPT],
)
def test_one_of_which_the_input_cannot_be_sent_beside_outputs(mark: ReplayRefusal) -> None:
    assert why_not(CONFIG, 0, 0, mark) is None, "it begins anew"
    assert why_not(CONFIG, 0, 1, mark) is mark


@pytest.mark.parametrize("num_outputs", [0, 1])
def test_one_that_was_not_kept_has_nothing_to_be_sent(num_outputs: int) -> None:
    assert why_not(CONFIG, 0, num_outputs, ReplayRefusal.NOT_KEPT) is ReplayRefusal.NOT_KEPT


def test_each_refusal_has_its_sentence() -> None:
    assert set(SENTENCES) == set(ReplayRefusal)
