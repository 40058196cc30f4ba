"""Instances that are closed after each test; none of their threads may be left then."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.tcp.instances import Instance, Make, connect


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Instance] = []

    def one(name: str, incarnation: int = 1, **options: Any) -> Instance:
        made.append(Instance(name, incarnation, **options))
        connect(*made)
        return made[-1]

    yield one
    for instance in made:
        instance.blocks.gate.set()
    await asyncio.gather(*(instance.transfer.close() for instance in made))
    assert not [t.name for t in threading.enumerate() if t.name.startswith("kv ")]


@pytest.fixture
async def source(make: Make) -> Instance:
    made = make("i-0")
    made.blocks.number()
    return made


@pytest.fixture
async def destination(make: Make) -> Instance:
    return make("i-1")
