"""Durations and times as options take them."""

import time

import pytest

from controller.api.errors import UsageError
from controller.api.settings import MAX_DEADLINE_S, MAX_WARM_S
from llumctl import arguments
from llumctl.commands import instances, options


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
        with pytest.raises(UsageError, match=r"^--x: .* is not a duration \(.*1h30m\)$"):
            arguments.seconds(text, "--x")
    for text, why in (("0", "must be greater than 0"), ("61m", "must be at most 1h, not '61m'")):
        with pytest.raises(UsageError, match=f"^--x: {why}"):
            arguments.positive(text, "--x", "1h")


def test_the_longest_durations_are_those_of_the_control_api() -> None:
    assert arguments.seconds(options.LONGEST_DEADLINE, "--x") == MAX_DEADLINE_S
    assert arguments.seconds(instances.LONGEST_WARM, "--x") == MAX_WARM_S


def test_numbers_within_bounds() -> None:
    arguments.within(1, None, "--x", 3)
    for value in (1, 2.5, 3):
        arguments.within(1, value, "--x", 3)
    for value, above, why in (
        (0.5, False, "at least 1, not 0.5"),
        (1, True, "greater than 1, not 1"),
        (float("nan"), False, "at least 1, not nan"),
        (4, False, "at most 3, not 4"),
    ):
        with pytest.raises(UsageError, match=f"^--x: must be {why}$"):
            arguments.within(1, value, "--x", 3, above=above)
    with pytest.raises(UsageError, match="must be finite, not inf"):
        arguments.within(1, float("inf"), "--x")


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
