"""Durations, times of day, foreign text and short ids, as commands and the dashboard show them."""

import re
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.text import events as event_words
from controller.api.text import quantities as words
from controller.api.text.events import KINDS, Severity, Weight
from controller.api.text.quantities import num_cells
from controller.api.text.short_ids import ShortNames, shortened
from controller.api.wire.requests import Event
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import Match, match_names

DURATIONS = {
    **{None: "-", 0.0: "0.0s", 9.94: "9.9s", 9.96: "10s", 59.9: "59s", 61: "1m01s"},
    **{3599.9: "59m59s", 3599.97: "1h00m", 7260: "2h01m", 90000: "1d01h", 8640000: "100d00h"},
}
LATENCIES = {None: "-", 0.0004: "0ms", 0.24: "240ms", 0.9996: "1.0s", 1.94: "1.9s", 75: "1m15s"}
SIZES = {
    **{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1024 * 1024 - 1: "1.0 MiB"},
    **{50_331_648: "48.0 MiB", 3 * 2**40: "3072.0 GiB"},
}


@pytest.mark.parametrize(
    ("shown", "texts"),
    [(words.duration, DURATIONS), (words.latency, LATENCIES), (words.sized, SIZES)],
    ids=["durations", "latencies", "sizes"],
)
def test_quantities(shown: Callable[[Any], str], texts: dict[float | None, str]) -> None:
    assert {value: shown(value) for value in texts} == texts


def test_prices() -> None:
    numbers = {0.0: "0", 9.54: "9.54", 999.4: "999", 999.6: "1k", 12_440: "12.4k", 4.4e6: "4.4M"}
    assert {number: words.counted(number) for number in numbers} == numbers
    assert words.per_instance_hour(100.0, 4) == 90_000
    assert words.per_instance_hour(100.0, 0) is None
    assert words.price_of_million(500_000, 2.0) == 4.0
    assert words.price_of_million(500_000, 0.0) is None
    assert words.price_of_million(0.0, 2.0) is None
    assert [words.price(each) for each in (0.5678, 12.34, 1234.0)] == ["0.568", "12.3", "1234"]


def test_sums_are_of_a_kind_and_a_member_within_ten_seconds() -> None:
    def event(kind: str, time_s: float, instance: str, request: str | None = "r") -> Event:
        about = {"instance_id": instance, "request_id": request, "cause_id": "c"}
        return Event(kind=kind, time_s=time_s, reason=f"of {instance}", **about)  # type: ignore[arg-type]

    first = [event("evicted", 100.0, "i-0"), event("evicted", 101.0, "i-1")]
    later = [
        event("instance_died", 102.0, "i-0", None),
        event("instance_died", 102.0, "i-0", None),
        event("finished", 103.0, "i-0"),
        event("evicted", 109.9, "i-0"),
        event("evicted", 110.0, "i-0"),
        event("evicted", 110.5, "i-1").model_copy(update={"reason": "another"}),
    ]
    sums = event_words.summed([*first, *later])
    assert [(each.first.kind, each.count, each.words, each.reason) for each in sums] == [
        ("evicted", 2, "2 in 10 s", "of i-0"),
        ("evicted", 2, "2 in 10 s", ""),
        ("instance_died", 1, "1 in 1 s", "of i-0"),
        ("instance_died", 1, "1 in 1 s", "of i-0"),
        ("finished", 1, "1 in 1 s", "of i-0"),
        ("evicted", 1, "1 in 1 s", "of i-0"),
    ]
    assert event_words.summed(later, event_words.summed(first)) == sums


def test_times_of_day_are_of_a_zone() -> None:
    assert words.time_of_day(0.0, UTC) == "00:00:00"
    assert words.time_of_day(0.0, timezone(timedelta(hours=2))) == "02:00:00"
    assert words.time_of_day(61.25, UTC, millis=True) == "00:01:01.250"
    for unknown in (1e20, float("nan"), None):
        assert words.time_of_day(unknown, UTC) == "--:--:--"


def test_what_comes_from_afar_cannot_drive_the_terminal() -> None:
    for text, harmless in (
        ("plain 模型 é", "plain 模型 é"),
        ("a\nb\tc\u3000d", "a b c d"),
        ("\x1b[2J\x07\x9b", "\\x1b[2J\\x07\\x9b"),
        ("\u202eevil\udc80", "\\u202eevil\\udc80"),
    ):
        assert words.printable(text) == harmless
        assert words.printable(harmless) == harmless
        assert words.printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def event(kind: str, **fields: object) -> Event:
    return Event(kind=kind, time_s=1.0, cause_id="c", **fields)


def test_every_kind_of_event_has_words_a_severity_and_a_weight() -> None:
    assert set(KINDS) == set(EventKind)
    found = {
        kind: (event_words.severity(event(kind)), event_words.weight(event(kind)))
        for kind in ("dispatched", "evicted", "failed")
    }
    assert found == {
        "dispatched": (Severity.PLAIN, Weight.ROUTINE),
        "evicted": (Severity.WARN, Weight.ROUTINE),
        "failed": (Severity.BAD, Weight.TROUBLE),
    }
    assert event_words.severity(event("something_new")) is Severity.PLAIN


def test_figures_in_words() -> None:
    said: dict[tuple[str, float], str] = {
        ("num_output_tokens", 12): "12 output tokens",
        ("waited_s", 0.3): "waited 300ms",
        ("e2e_latency_s", 72.5): "e2e latency 1m12s",
        ("stage_0_bytes", 512): "stage 0 512 B",
        ("cached_ratio", 0.25): "cached 25%",
        ("score_of_i-0", -3.25): "score of i-0 -3.2",
        ("tokens", 3): "tokens 3",
    }
    assert {figure: event_words.figure(*figure) for figure in said} == said


# -- ids in little room -------------------------------------------------------------------


ALPHABET = "ab01-"
wide_ids = st.lists(st.text("ab01-会話가\u0301", min_size=1, max_size=24), max_size=12)
ids = st.lists(st.text(ALPHABET, min_size=1, max_size=24), max_size=12)
widths = st.integers(0, 26)
hashes = st.lists(
    st.tuples(st.sampled_from(("cmpl-", "chatcmpl-", "")), st.binary(min_size=8, max_size=8)),
    unique_by=lambda pair: (pair[1][:2], pair[1][-2:]),
    min_size=1,
    max_size=50,
)


def test_a_cut_goes_where_the_difference_is_not() -> None:
    two_of_a_client = [
        "cmpl-8be6e970ff0600ea-4-0-7c3a177d4",
        "cmpl-8be6e970ff0600ea-10-0-7c3a177da",
    ]
    assert list(shortened(two_of_a_client, 9).values()) == ["4-0-…77d4", "10-0…77da"]
    two_kinds = ["cmpl-8d36e06fa6a667f4", "chatcmpl-90c7dbc54b4264d5"]
    assert list(shortened(two_kinds, 9).values()) == ["8d36…67f4", "90c7…64d5"]
    whole = ["cmpl-1", "cmpl-2"]
    assert list(shortened(whole, 6).values()) == whole
    many = [f"cmpl-aaaaaaaaaa{number}bbbbbbbbbb" for number in range(5)]
    shown = set(shortened(many, 7).values())
    assert len(shown) == 5, "a difference in the middle is shown all the same"
    assert max(map(len, shown)) <= 7


@given(wide_ids, widths)
def test_wide_characters_take_two_columns(found: list[str], width: int) -> None:
    for id_, form in shortened(found, width).items():
        assert num_cells(form) <= width
        pattern = "".join(".*" if char == "…" else re.escape(char) for char in form)
        assert not width or re.search(pattern, id_, re.DOTALL)


@given(ids, widths)
def test_different_ids_stay_different_wherever_whole_cuts_can_tell_them(
    found: list[str], width: int
) -> None:
    """By trying: all ids cut at the same places, with or without a common beginning."""
    distinct = set(found)
    possible = any(
        len({id_ if len(id_) <= width else (id_[:head], id_[len(id_) - width + head + 1 :])
             for id_ in distinct}) == len(distinct)
        for head in range(width)
    )  # fmt: skip
    whole = all(len(id_) <= width for id_ in distinct)
    bare = not any(set(id_) & set("-") for id_ in distinct)
    if whole or (possible and bare):
        assert len(set(shortened(found, width).values())) == len(distinct)


@given(hashes, st.integers(9, 40))
def test_ids_as_vllm_makes_them_stay_different_and_name_the_request(
    found: list[tuple[str, bytes]], width: int
) -> None:
    names = [f"{word}{digest.hex()}" for word, digest in found]
    shown = shortened(names, width)
    assert len(set(shown.values())) == len(names)
    for id_, form in shown.items():
        assert match_names(form, id_, "client's", None) is not Match.NONE


def names_of(known: ShortNames, *ids: str) -> list[str]:
    known.learn(ids)
    return [known.of(id_) for id_ in ids]


def test_a_name_is_kept_whatever_other_ids_come() -> None:
    known = ShortNames(9)
    first = [f"cmpl-8be6e970ff0600ea-{n}-0-7c3a177d{n}" for n in range(10)]
    named = names_of(known, *first)
    assert named[3] == "3-0-…77d3", "the part that differs, without the client's common one"
    later = [f"cmpl-90c7dbc54b4264d5-{n}-0-aa3a199e{n}" for n in range(10)]
    others = names_of(known, *later, "chatcmpl-90c7dbc54b4264d5", "cmpl-1")
    assert others[-2:] == ["90c7…64d5", "cmpl-1"]
    assert names_of(known, *first) == named
    assert len({*named, *others}) == 22
    assert known.of("cmpl-not-seen") == "cmpl-not-seen"


def test_names_differ_also_if_the_ids_come_one_by_one_and_differ_in_the_middle() -> None:
    known = ShortNames(9)
    found = [names_of(known, f"aaaaaaaaaa{n}bbbbbbbbbb")[0] for n in range(5)]
    assert len(set(found)) == 5


def test_of_many_names_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShortNames, "MAX_NAMES", 100)
    known = ShortNames(9)
    ids = [f"request-{n:012d}" for n in range(101)]
    named = names_of(known, *ids)
    known.learn(["request-and-another-one"])
    assert known.of(ids[0]) == ids[0]
    assert known.of(ids[-1]) == named[-1]


@given(st.lists(st.tuples(hashes, st.booleans()), max_size=4))
def test_names_that_are_kept_stay_different_and_name_the_request(
    batches: list[tuple[list[tuple[str, bytes]], bool]],
) -> None:
    known, shown = ShortNames(9), dict[str, str]()
    for found, one_by_one in batches:
        ids = [f"{word}{digest.hex()}" for word, digest in found]
        for batch in [[id_] for id_ in ids] if one_by_one else [ids]:
            known.learn(batch)
        shown |= {id_: shown.get(id_) or known.of(id_) for id_ in ids}
    assert shown == {id_: known.of(id_) for id_ in shown}
    assert len(set(shown.values())) == len(shown)
    for id_, form in shown.items():
        assert match_names(form, id_, "client's", None) is not Match.NONE


def test_which_names_are_understood() -> None:
    for match, names in (
        (Match.SHORTENED, ["8d36…67f4", "8d36~67f4", "…67f4", "8d36e06fa6a667f4"]),
        (Match.SHORTENED, ["cmpl-8d36…f4", "…e06f…"]),
        (Match.BEGINNING, ["cmpl-8d36"]),
        (Match.NONE, ["6a667f4", "d36…67f4", "8d36…67f5", "8d36e06fa6a667f4…67f4", "…", "…e06a…"]),
    ):
        found = {name: match_names(name, "cmpl-8d36e06fa6a667f4", "c", None) for name in names}
        assert found == dict.fromkeys(names, match)
