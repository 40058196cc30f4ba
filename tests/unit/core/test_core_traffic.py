"""The rules of traffic between models: how they are read, where requests go, what is counted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.traffic import (
    CopyCounts,
    Served,
    Traffic,
    TrafficBook,
    chosen,
    counted_together,
    served,
    traffic_of,
)
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.settings import TrafficSettings

MODELS = ("large", "next", "small")
weights = st.lists(st.integers(0, 100), min_size=3, max_size=3).filter(any)
draws = st.floats(0, 1)


def rules(split: str | None = None, mirror: str | None = None) -> Traffic:
    return traffic_of(TrafficSettings(split, mirror), "large", MODELS)


def test_rules_are_read() -> None:
    assert rules() == Traffic()
    assert rules(" large=90 ,next=9.5,", "small=0.1") == Traffic(
        (("large", 90.0), ("next", 9.5)), (("small", 0.1),)
    )


@pytest.mark.parametrize(
    ("split", "mirror", "why"),
    [
        ("large", None, "traffic.split: 'large' is not of the form MODEL=NUMBER"),
        ("large=", None, "is not of the form"),
        ("large=-1", None, "is not of the form"),
        ("large=nan", None, "is not of the form"),
        ("large=inf", None, "is not of the form"),
        ("other=1", None, "there is no model 'other'; there are large, next, small"),
        ("next=1,next=2", None, "next is given twice"),
        ("next=0", None, "all weights are 0"),
        (None, "next=101", "traffic.mirror: next=101 is more than 100 percent"),
        (None, "large=5", "large serves these requests itself"),
    ],
)
def test_wrong_rules_are_refused(split: str | None, mirror: str | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rules(split, mirror)


def shares(split: list[int]) -> tuple[tuple[str, float], ...]:
    return tuple(zip(MODELS, map(float, split), strict=True))


@given(split=weights)
def test_each_model_gets_its_share(split: list[int]) -> None:
    num = 20_000
    found = [chosen(shares(split), (k + 0.5) / num) for k in range(num)]
    for name, weight in shares(split):
        assert found.count(name) / num == pytest.approx(weight / sum(split), abs=1e-3)


@given(split=weights, draw=draws)
def test_a_model_without_weight_gets_nothing(split: list[int], draw: float) -> None:
    assert dict(shares(split))[chosen(shares(split), draw)] > 0


@given(small=st.integers(0, 100), more=st.integers(0, 100), draw=draws)
def test_a_larger_weight_takes_sessions_and_gives_none(small: int, more: int, draw: float) -> None:
    was, becomes = sorted((small, more))
    if chosen((("large", 100.0 - was), ("next", float(was))), draw) == "next":
        assert chosen((("large", 100.0 - becomes), ("next", float(becomes))), draw) == "next"


def record(**changes: object) -> RequestRecord:
    whole = RequestRecord(
        "r", "r", None, "f-0", "normal", RequestState.FINISHED, "i-0", 1, 10.0, 5, 7, 0, 10.5, 12.0,
        "stop",
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_what_a_request_got_is_summed_over_its_parts() -> None:
    later = record(first_token_time_s=11.0, end_time_s=14.0, num_output_tokens=3)
    assert served([record(), later]) == Served(10, 0.5, 4.0)
    assert served([record(first_token_time_s=None, num_output_tokens=0)]) == Served(0, 2.0, 2.0)
    assert served([record(), record(state=RequestState.ABORTED)]) is None
    assert served([]) is None


def test_pairs_are_compared_if_both_finished() -> None:
    book = TrafficBook()
    book.set_rules(rules(mirror="next=100"))
    for _ in range(4):
        book.copied("next")
    book.left_out("next")
    book.ended("next", Served(10, 1.0, 2.0), Served(12, 0.5, 1.5))
    book.ended("next", Served(10, 1.0, 2.0), None)
    book.ended("next", None, Served(9, 1.0, 1.0))
    book.ended("next", None, None)
    found = book.view().copies["next"]
    assert found == CopyCounts(4, 1, 1, 1, 10, 12, 1.0, 0.5, 2.0, 1.5)
    assert counted_together([book.view(), book.view()]).copies == {"next": found + found}


def test_a_changed_rule_is_counted_anew_and_the_other_is_not() -> None:
    book = TrafficBook()
    book.set_rules(rules("large=1,next=1", "small=50"))
    book.answers("next")
    book.copied("small")
    book.set_rules(rules("large=1,next=1", "small=60"))
    assert book.view().answered == {"large": 0, "next": 1}
    assert book.view().copies == {"small": CopyCounts()}
    book.set_rules(rules("large=2,next=1", "next=60"))
    book.ended("small", Served(1, 1.0, 1.0), None)  # a copy of the rule before
    assert book.view().answered == {"large": 0, "next": 0}
    assert book.view().copies == {"next": CopyCounts()}
