"""Many requests on few blocks, moved about at random, over a network that loses and doubles."""

import asyncio
import random
import time

import pytest

from controller.core.record.request_record import RequestState
from controller.runtime.messages.move_messages import MoveEnvelope, MoveLimitsSet
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.moving_cluster import MovingCluster

MAX_MOVES = 6


class Chaos:
    """One seed, one sequence of requests and decisions; threads still interleave as they like."""

    def __init__(self, moving: MovingCluster, seed: int, num_requests: int) -> None:
        self.moving = moving
        self.random = random.Random(seed)
        self.lengths = {
            f"r{n}": (self.random.randrange(4, 150), self.random.randrange(20, 250))
            for n in range(num_requests)
        }
        self.aborted: set[str] = set()
        self.move_ids: list[str] = []
        for instance in moving.instances.values():
            instance.engine.on_step = lambda: time.sleep(0.0005)  # or a move takes 50 steps

    def is_live(self, request_id: str) -> bool:
        done = self.moving.frontend.ended[request_id].done()
        return not done and request_id not in self.aborted

    async def run(self, abort_ratio: float) -> None:
        """Until all have ended."""
        moving, draw = self.moving, self.random
        for request_id, lengths in self.lengths.items():
            moving.controller.places[request_id] = draw.choice(["i-0", "i-1", "i-2"])
            await moving.frontend.submit(request_id, *lengths)
        while live := [r for r in self.lengths if self.is_live(r)]:
            moving.clock.now_s += 0.02
            request_id = draw.choice(live)
            source_id = moving.record(request_id).instance_id
            if source_id in moving.instances:
                if draw.random() < abort_ratio:
                    self.aborted.add(request_id)
                    moving.frontend.router.abort([request_id], RequestState.ABORTED, "left")
                else:
                    others = [i for i in moving.instances if i != source_id]
                    self.move_ids.append(moving.order(source_id, draw.choice(others), request_id))
            await asyncio.sleep(0.002)

    def check(self) -> int:
        """Returns how many failed."""
        frontend, num_failed = self.moving.frontend, 0
        for request_id, (_, max_tokens) in self.lengths.items():
            tokens, whole = frontend.tokens[request_id], tokens_of(request_id, max_tokens)
            end = "" if request_id in self.aborted else frontend.ended[request_id].result()
            assert tokens == (whole if end == "finished" else whole[: len(tokens)])
            num_failed += end == "failed"
        answers = self.moving.controller.answers
        records = [answers[m].record for m in self.move_ids if m in answers]
        assert "migrated" in {record.outcome for record in records if record is not None}
        return num_failed


@pytest.mark.parametrize("moving", [45], indirect=True)
@pytest.mark.parametrize("trouble", ["none", "a bad network", "a death"])
@pytest.mark.parametrize("seed", range(4))
async def test_random_moves_of_many_requests(
    moving: MovingCluster, seed: int, trouble: str
) -> None:
    """A request ends once, whole or with an error, and nothing is left of it."""
    moving.keep_states(seed % 3)
    chaos, dice = Chaos(moving, seed, num_requests=12), random.Random(seed + 1000)
    if trouble == "a bad network":
        moving.network.drops = moving.network.doubles = lambda message: (
            isinstance(message, MoveEnvelope) and dice.random() < 0.1
        )
        for instance_id in moving.instances:
            moving.controller.send(instance_id, MoveLimitsSet(MAX_MOVES, None))
    running = asyncio.create_task(chaos.run(abort_ratio=0.02))
    if trouble == "a death":
        num_moves = chaos.random.randrange(5, 40)
        await moving.until(lambda: len(chaos.move_ids) >= num_moves)
        await moving.kill(chaos.random.choice(list(moving.instances)))
    await asyncio.wait_for(running, 60.0)
    num_failed = chaos.check()
    assert num_failed == 0 or (trouble == "a death" and num_failed < len(chaos.lengths))
