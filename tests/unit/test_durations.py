"""Durations and times as options take them."""

import time

import pytest

from controller.api.errors import UsageError
from llumctl import arguments


def test_durations() -> None:
    for text, seconds in (
        ("0", 0.0),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("1h30m5s", 5405.0),
        (" 5M ", 300.0),
    ):
        assert arguments.seconds(text, "--x") == pytest.approx(seconds)


def test_what_is_no_duration() -> None:
    for text in ("", "s", "-5m", "5x", "1e3", "٣s", "9999999d"):
        with pytest.raises(UsageError, match=r"^--x: .* is not a duration") as caught:
            arguments.seconds(text, "--x")
        assert "1h30m" in caught.value.hint


def test_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    assert arguments.moment("5m", "--since", 1000.0) == 700.0
    assert arguments.moment("1970-01-01T00:10:00Z", "--since", 1000.0) == 600.0
    assert arguments.moment("1970-01-01T02:10", "--since", 1000.0) == 600.0
    assert arguments.moment("1970-01-02", "--since", 1000.0) == 86400 - 7200
    monkeypatch.undo()
    time.tzset()


def test_what_is_no_moment() -> None:
    for text in ("", "yesterday", "12:00", "2026-13-01", "0001-01-01T00:00:00"):
        with pytest.raises(UsageError, match=r"^--since: .* is neither a duration nor a time"):
            arguments.moment(text, "--since", 1000.0)
