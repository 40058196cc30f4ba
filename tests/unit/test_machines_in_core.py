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
POPS = """
class Watch:
    async def run(self):
        for request_id, since_s in list(self._since_s.items()):
            if self.now_s() > since_s + 5:
                self._since_s.pop(request_id)
"""
COUNTS = """
class Watch:
    def tick(self, num_steps):
        if num_steps > MAX_STEPS:
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
    [(WATCH, ["Watch.tick"]), (POPS, ["Watch.run"]), (COUNTS, []), (TELLS, [])],
)
def test_one_that_decides_by_time_and_keeps_state_is_found(source: str, names: list[str]) -> None:
    assert list(offending_functions(ast.parse(source).body)) == names


def test_the_list_of_known_ones_only_shrinks() -> None:
    (told,) = complaints({"a.py: A.tick"}, {})
    assert "A.tick decides by time and keeps state" in told
    (told,) = complaints(set(), {"a.py: A.tick": "why"})
    assert told.startswith("a.py: A.tick is found no more")
    assert len(KNOWN) <= 14
