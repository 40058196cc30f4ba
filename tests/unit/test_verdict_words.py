"""The words of the verdict that `llumctl status` and the dashboard share."""

import pytest

from controller.api.text.hints import aimed, takes_cluster
from controller.api.text.verdict_words import (
    Severity,
    order_command,
    order_words,
    severity,
    verdict_line,
)
from controller.api.wire.status import VerdictOrder, VerdictStatus
from controller.core.record.verdict import Deed
from controller.core.record.verdict import Severity as CoreSeverity


def test_the_word_stands_in_capitals_before_the_cause() -> None:
    found = VerdictStatus(word="short of memory", since_s=1.0, why="8 evicted, KV 99%")
    assert verdict_line(found) == "SHORT OF MEMORY  8 evicted, KV 99%"
    assert verdict_line(found.model_copy(update={"why": "\x1b[2J"})).isprintable()
    assert verdict_line(found.model_copy(update={"why": ""})) == "SHORT OF MEMORY"


def test_the_severities_of_the_core_are_known_and_others_are_a_warning() -> None:
    found = VerdictStatus(word="ok", since_s=1.0, why="")
    for each in (*CoreSeverity, "worse than bad"):
        known = severity(found.model_copy(update={"severity": str(each)}))
        assert known == (each if each in set(Severity) else Severity.WARN)


@pytest.mark.parametrize(
    ("deed", "command", "words"),
    [
        (Deed.ADD, "llumctl scale +1", "adds an instance (soon)"),
        (Deed.RESTART, "llumctl restart i-3 --now", "restarts it (soon)"),
        (Deed.LOGS, "llumctl logs i-3", "shows its log (soon)"),
        (Deed.DRAIN, "llumctl drain i-3", "drains it (soon)"),
        (Deed.MOVES_ON, "llumctl set migration.enabled=true", "lets requests move (soon)"),
        (Deed.MOVE, "llumctl migrate i-3 --to i-1", "moves it to i-1 (soon)"),
        (Deed.LOOK, "llumctl status -o wide", "shows i-3 (soon)"),
    ],
)
def test_each_deed_has_a_command_and_words(deed: Deed, command: str, words: str) -> None:
    order = VerdictOrder(deed=deed, target="i-3", expected="soon", to="i-1")
    assert order_command(order) == command
    assert order_words(order) == words
    assert order_words(order.model_copy(update={"expected": ""})) == words.removesuffix(" (soon)")
    verb = command.split()[1]
    assert takes_cluster(verb)
    assert aimed(command, " --cluster b").startswith(f"llumctl {verb} --cluster b")


def test_each_deed_of_the_core_is_known_and_others_are_left_out() -> None:
    for deed in Deed:
        order = VerdictOrder(deed=deed, target="i-1")
        assert order_words(order)
        assert bool(order_command(order)) == (deed is not Deed.WAIT)
    unknown = VerdictOrder(deed="dance", target="i-1")
    assert (order_command(unknown), order_words(unknown)) == ("", "")
