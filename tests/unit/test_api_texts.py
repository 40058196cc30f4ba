"""Durations, times of day and foreign text, as the commands and the dashboard show them."""

from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from typing import Any

import pytest

from controller.api.text import events as event_words
from controller.api.text import quantities as words
from controller.api.text.events import KINDS, Severity, Weight
from controller.api.wire.requests import Event
from controller.core.record.event_log import EventKind

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
