"""Many concurrent callers do not block the event loop."""

import asyncio

from controller.adapters.vllm.endpoint.exchange import Turns

PER_TURN = 16


async def test_no_turn_of_the_loop_has_more_than_its_share_and_one_caller_does_not_wait() -> None:
    turns, turn, seen = Turns(PER_TURN), 0, []

    async def caller() -> None:
        await turns.take()
        seen.append(turn)

    async with asyncio.TaskGroup() as group:
        for _ in range(3 * PER_TURN + 1):
            group.create_task(caller())
        while len(seen) <= 3 * PER_TURN:
            await asyncio.sleep(0)
            turn += 1
    assert [seen.count(turn) for turn in sorted(set(seen))] == [PER_TURN] * 3 + [1]
    waited: list[bool] = []
    alone = Turns(PER_TURN)
    asyncio.get_running_loop().call_soon(waited.append, True)
    await alone.take()
    assert not waited


async def test_they_begin_in_the_order_in_which_they_came() -> None:
    turns, seen = Turns(1), []

    async def caller(number: int) -> None:
        await turns.take()
        seen.append(number)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(caller(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
    assert seen == [0, 2, 3]
    await asyncio.wait_for(caller(4), 1)
