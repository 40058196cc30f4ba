"""The check for state machines outside the core finds what it is meant to find."""

import ast

import pytest

from tools.machines_in_core import KNOWN, complaints, offending_functions

WATCH = """
class Watch:
    def tick(self, now_s):
        if now_s - self._since_s >= HELD_S:
            self._is_told = True
"""
TELLS = """
class Watch:
    def tick(self, now_s):
        told = {}
        if now_s > self._until_s:
            told["late"] = True
        return told
"""


@pytest.mark.parametrize(
    ("source", "names"),
    [(WATCH, ["Watch.tick"]), (TELLS, [])],
)
def test_one_that_decides_by_time_and_keeps_state_is_found(source: str, names: list[str]) -> None:
    assert list(offending_functions(ast.parse(source).body)) == names


def test_the_list_of_known_ones_only_shrinks() -> None:
    (told,) = complaints({"a.py: A.tick"}, {})
    assert "A.tick decides by time and keeps state" in told
    assert len(KNOWN) <= 14
