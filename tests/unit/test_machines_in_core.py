"""The check for state machines outside the core finds what it is meant to find."""

import ast

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


def test_one_that_decides_by_time_and_keeps_state_is_found() -> None:
    assert list(offending_functions(ast.parse(WATCH).body)) == ["Watch.tick"]
    assert list(offending_functions(ast.parse(TELLS).body)) == []


def test_the_list_of_known_ones_only_shrinks() -> None:
    (told,) = complaints({"a.py: A.tick"}, {})
    assert "A.tick decides by time and keeps state" in told
    assert len(KNOWN) <= 14
