"""How many tokens of prompts vLLM's scheduler computes in a step whose time is limited: the touch
points of steps.py. `test_model_agrees_with_vllm.py` compares whole sequences with the model."""

from pathlib import Path
from typing import Any

import pytest

from controller.adapters.vllm.steps import Steps
from controller.core.load.step_times import (
    ANY_TIME,
    LEAST_CHUNK_TOKENS,
    UNKNOWN_CHUNK_TOKENS,
    StepTimes,
)
from tests.contract.vllm_schedules import lone_scheduler, steps_of
from tests.schedules import PROFILE

BLOCK_SIZE = 16
STEP_TOKENS = 1024


class Scheduling:
    """vLLM's scheduler with limited steps. Under asynchronous scheduling the tokens of a step are
    told after the next one was scheduled."""

    def __init__(self, scheduler: Any, step_time_s: float | None) -> None:
        self.scheduler = scheduler
        self.steps: Steps = steps_of(scheduler, step_time_s)
        self._is_async = scheduler.scheduler_config.async_scheduling
        self._under_way: list[Any] = []

    def add(self, request_id: str, num_tokens: int, *, max_tokens: int = 100) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        prompt = list(range(num_tokens))
        self.scheduler.add_request(Request(request_id, prompt, params, None, arrival_time=0.0))

    def step(self) -> dict[str, int]:
        """The tokens that the next step computes, by request."""
        from vllm.v1.outputs import ModelRunnerOutput

        self.steps.set_budget()
        scheduled = self.scheduler.schedule()
        self.steps.scheduled(scheduled)
        self._under_way.append((scheduled, self._sampled(scheduled)))
        if len(self._under_way) > self._is_async:
            done, sampled = self._under_way.pop(0)
            ids = list(done.num_scheduled_tokens)
            self.scheduler.update_from_output(
                done,
                ModelRunnerOutput(
                    req_ids=ids,
                    req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
                    sampled_token_ids=sampled,
                ),
            )
            self.steps.ended(done)
        return dict(scheduled.num_scheduled_tokens)

    def _sampled(self, scheduled: Any) -> list[list[int]]:
        requests = (self.scheduler.requests[r] for r in scheduled.num_scheduled_tokens)
        return [[] if each.is_prefill_chunk else [7] for each in requests]


@pytest.fixture(params=["sync", "async"])
def scheduling(request: pytest.FixtureRequest, model_path: Path) -> Scheduling:
    return scheduling_of(model_path, is_async=request.param == "async")


def scheduling_of(model_path: Path, *, is_async: bool = False, **engine_args: Any) -> Scheduling:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    arguments: dict[str, Any] = {
        "async_scheduling": is_async,
        "max_model_len": 4096,
        "max_num_batched_tokens": STEP_TOKENS,
        "enable_prefix_caching": False,
    }
    scheduler = lone_scheduler(
        AsyncScheduler if is_async else Scheduler,
        model_path,
        1000,
        block_size=BLOCK_SIZE,
        **arguments | engine_args,
    )
    return Scheduling(scheduler, 0.1)


def decode(scheduling: Scheduling, number: int) -> None:
    """Lets so many requests decode."""
    for index in range(number):
        scheduling.add(f"stream {index}", 20)
    while len(scheduling.step()) < number or scheduling.step() != {
        f"stream {index}": 1 for index in range(number)
    }:
        pass


def test_beside_streams_a_step_computes_what_fits_into_its_time(scheduling: Scheduling) -> None:
    decode(scheduling, 3)
    scheduling.add("long", 2000)
    chunks = []
    while (tokens := scheduling.step()).get("long", 1) > 1:
        assert [tokens[f"stream {index}"] for index in range(3)] == [1, 1, 1]
        chunks.append(tokens["long"])
    assert sum(chunks) == 2000
    before = 0
    for chunk in chunks[:-1]:
        took_s = PROFILE.step_time_s([(chunk, before)], 3, 3 * 40)
        assert 0.097 < took_s < 0.103
        before += chunk


def test_a_prompt_goes_after_what_decodes_wherever_vllm_has_it(scheduling: Scheduling) -> None:
    """It would use up the tokens of the others."""
    decode(scheduling, 2)
    scheduling.add("long", 2000)
    scheduling.step()
    running = scheduling.scheduler.running
    running.insert(0, running.pop())
    assert running[0].request_id == "long"
    tokens = scheduling.step()
    assert (tokens["stream 0"], tokens["stream 1"]) == (1, 1)
    assert list(tokens)[-1] == "long"


def test_without_streams_or_a_limit_a_step_is_as_large_as_it_can_be(
    scheduling: Scheduling,
) -> None:
    scheduling.add("long", 2000, max_tokens=1)
    assert scheduling.step() == {"long": STEP_TOKENS}
    while scheduling.scheduler.has_unfinished_requests():
        scheduling.step()
    decode(scheduling, 1)
    scheduling.steps.limit = ANY_TIME
    scheduling.add("other", 2000)
    assert scheduling.step() == {"stream 0": 1, "other": STEP_TOKENS - 1}


def test_an_arriving_stream_counts_as_one_that_decodes(scheduling: Scheduling) -> None:
    scheduling.steps._is_arriving = lambda: True
    scheduling.add("long", 2000)
    assert scheduling.step()["long"] < 500


def test_the_first_step_of_what_has_arrived_is_a_short_one(scheduling: Scheduling) -> None:
    decode(scheduling, 1)
    scheduling.add("long", 2000)
    entered = iter([True, False])
    scheduling.steps._take_entered = lambda: next(entered)
    assert scheduling.step()["long"] == LEAST_CHUNK_TOKENS
    assert scheduling.step()["long"] > LEAST_CHUNK_TOKENS


def test_while_nothing_is_known_chunks_are_small(scheduling: Scheduling) -> None:
    scheduling.steps._times = StepTimes()
    decode(scheduling, 1)
    scheduling.add("long", 1000)
    assert scheduling.step()["long"] == UNKNOWN_CHUNK_TOKENS
    scheduling.steps._least_tokens = 512  # as blocks of a model with states may be
    assert scheduling.step()["long"] == 512
    assert LEAST_CHUNK_TOKENS < UNKNOWN_CHUNK_TOKENS


def test_without_chunks_nothing_is_limited(model_path: Path) -> None:
    """A prompt that is longer than the budget would never be computed."""
    scheduling = scheduling_of(
        model_path, enable_chunked_prefill=False, max_model_len=1000, max_num_batched_tokens=1024
    )
    decode(scheduling, 1)
    scheduling.add("long", 900)
    assert scheduling.step()["long"] == 900
    assert scheduling.steps.own_limit_s == 0.0
