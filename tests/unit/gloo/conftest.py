"""Instances that are closed after each test, and then no thread of theirs is left."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gloo.instances import Instance, Make, connect, until


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Instance] = []
    before = gloo_threads()  # those of an engine's own groups, in a run of all tests

    def one(name: str, incarnation: int = 1) -> Instance:
        made.append(Instance(name, incarnation))
        connect(*made)
        return made[-1]

    yield one
    for instance in made:
        instance.blocks.gate.set()
    await asyncio.gather(*(instance.transfer.close() for instance in made))
    assert not [t.name for t in threading.enumerate() if t.name.startswith("kv ")]
    await until(lambda: gloo_threads() <= before)


@pytest.fixture
async def source(make: Make) -> Instance:
    made = make("i-0")
    made.blocks.number()
    return made


@pytest.fixture
async def destination(make: Make) -> Instance:
    return make("i-1")


def gloo_threads() -> set[str]:
    """Gloo's own in this process, by id."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if "gloo" in (task / "comm").read_text():
                found.add(task.name)
    return found
