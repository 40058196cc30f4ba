"""The check for state machines outside the core finds what it is meant to find."""

import ast
from pathlib import Path

import pytest

from tools.machines_in_core import KNOWN, complaints, offenders, offending_functions

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
INSIDE = """
def watch(thing):
    def look():
        if PATIENCE_S < thing.waited():
            thing.state["told"] = 1
    return look
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
TIMES = """
class Watch:
    def tick(self, now_s):
        self._now_s = now_s
        if self._cause_s == now_s:
            self.follow(self.machine.handle(Ticked(), now_s))
"""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (WATCH, ["Watch.tick"]),
        (POPS, ["Watch.run"]),
        (INSIDE, ["watch"]),
        (COUNTS, []),
        (TELLS, []),
        (TIMES, []),
    ],
)
def test_one_that_decides_by_time_and_keeps_state_is_found(source: str, names: list[str]) -> None:
    assert list(offending_functions(ast.parse(source).body)) == names


def test_one_that_is_planted_is_told_by_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "controller/runtime/frontend"
    folder.mkdir(parents=True)
    (folder / "late.py").write_text(WATCH)
    (tmp_path / "controller/core").mkdir()
    (tmp_path / "controller/core/watch.py").write_text(WATCH)
    found = set(offenders(tmp_path))
    assert found == {"controller/runtime/frontend/late.py: Watch.tick"}
    (told,) = complaints(found, {})
    assert "Watch.tick decides by time and keeps state" in told


def test_the_list_of_known_ones_only_shrinks() -> None:
    (told,) = complaints(set(), {"a.py: A.tick": "why"})
    assert told.startswith("a.py: A.tick is found no more")
    assert complaints({"a.py: A.tick"}, {"a.py: A.tick": "why"}) == []


def test_the_known_ones_are_as_many_as_they_were_or_fewer() -> None:
    """Whoever makes it smaller lowers this, too."""
    assert len(KNOWN) <= 16
