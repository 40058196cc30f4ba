"""Repeated turns go on after a turn that failed."""

import asyncio
import logging
from functools import partial

import pytest

from controller.api.errors import LlumctlError
from controller.runtime.repeating import RETRY_S, GuardedTurns, repeat
from tests.unit.runtime.fakes import virtual_time


def test_a_turn_that_fails_is_tried_again_later_and_ends_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s, taken, others = 0.0, [], []
    turns = GuardedTurns(lambda: now_s)

    def fails() -> None:
        taken.append(now_s)
        if now_s < 1.5 * RETRY_S:
            raise LlumctlError("the disk is full")

    for number in range(30):
        now_s = number / 10
        turns.take("a watch", fails)
        turns.take("another", partial(others.append, now_s))
    assert taken[:2] == [0.0, RETRY_S]
    assert taken[2:] == [number / 10 for number in range(20, 30)], "it goes on as before"
    assert len(others) == 30
    told = [record.getMessage() for record in caplog.records]
    assert told == ["a watch failed, and is tried again: the disk is full"] * 2


@virtual_time
async def test_a_loop_outlives_its_turns_and_takes_them_only_while_they_are_needed() -> None:
    loop, taken, needed = asyncio.get_running_loop(), [], asyncio.Event()

    async def fails() -> None:
        taken.append(loop.time())
        if len(taken) == 3:
            needed.clear()
        raise OSError("no descriptor is left")

    logging.disable(logging.CRITICAL)
    repeating = asyncio.create_task(repeat(0.5, "a loop", fails, needed))
    await asyncio.sleep(10.0)
    needed.set()
    began_s = loop.time()
    await asyncio.sleep(10.0)
    assert [at_s - began_s for at_s in taken] == pytest.approx([0.5, 1.0, 1.5])
    repeating.cancel()
    logging.disable(logging.NOTSET)
