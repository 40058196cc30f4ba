"""Many concurrent callers do not block the event loop."""

import asyncio

from controller.adapters.vllm.endpoint.exchange import Turns


async def test_callers_begin_one_after_the_other_and_the_first_at_once() -> None:
    """In the order in which they came, whoever leaves meanwhile."""
    turns, seen = Turns(1), []

    async def caller(number: int) -> None:
        await turns.take()
        seen.append(number)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(caller(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert seen == [0]
        tasks[1].cancel()
    assert seen == [0, 2, 3]
    await asyncio.wait_for(caller(4), 1)
