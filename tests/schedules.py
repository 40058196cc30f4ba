"""Sequences of adds, aborts and steps, for vLLM's scheduler and for the engine model alike.

A scenario is plain data, so that it can be kept in a file beside what vLLM decided. Its requests
have tokens: those of `group` up to `num_shared`, prompt and outputs counted, and from there on
their own. Two requests of a group therefore agree in the blocks that lie within what both share.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controller.core.load.step_times import StepLimit
from controller.model.engine_model import EngineModel, StepResult
from controller.model.engine_state import ModelRequest, Segment
from controller.model.profile import ModelConfig, load_profile

BLOCK_SIZE = 16
PROFILE = load_profile("a10-llama-7b")
RECORDED = Path(__file__).parent / "unit" / "model" / "recorded_vllm_schedules.json"
"""Scenarios of one rule each, by name, and some at random, with what vLLM decided. An operation
that is a list has the fields of a `Request`, in their order."""

# What one step decided, ready for JSON: ids in order, counts by id; nothing that is empty.
Decisions = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """`number` tells its own tokens from those of others."""

    request_id: str
    number: int
    num_prompt_tokens: int
    max_output_tokens: int
    rank: int
    arrival_time_s: float
    group: int
    num_shared: int

    def token(self, index: int) -> int:
        if index < self.num_shared:
            return 1000 * self.group + index
        return 100_000 + 1000 * self.number + index

    def for_model(self, block_size: int) -> ModelRequest:
        def segment_at(index: int) -> Segment:
            shared = (index + 1) * block_size <= self.num_shared
            return (shared, self.group if shared else self.number, index), index, index + 1

        return ModelRequest(
            self.request_id,
            self.num_prompt_tokens,
            self.max_output_tokens,
            self.rank,
            self.arrival_time_s,
            segment_at,
        )


Operation = Request | str | int


@dataclass(frozen=True)
class Scenario:
    """`operations`: a Request to add, an id to abort, a number of steps to take. `step_time_s`: how
    long a step may take while requests decode, with the costs of `PROFILE`."""

    name: str
    config: ModelConfig
    operations: tuple[Operation, ...]
    step_time_s: float | None = None

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Scenario":
        return cls(
            found["name"],
            ModelConfig(**found["config"]),
            tuple(Request(*op) if isinstance(op, list) else op for op in found["operations"]),
        )


def decisions_of_the_model(scenario: Scenario) -> list[Decisions]:
    """One entry per step; checks the model's state after every operation."""
    model = new_model(scenario)
    found: list[Decisions] = []
    for operation in scenario.operations:
        for step in apply(model, operation):
            found.append(
                decisions(
                    admitted=list(step.admitted),
                    cached=[step.num_cached_tokens[r] for r in step.admitted],
                    evicted=list(step.evicted),
                    tokens=dict.fromkeys(step.emitted, 1) | dict(step.num_prefill_tokens),
                    emitted=list(step.emitted),
                    finished=list(step.finished),
                    free=model.snapshot("i-0", 1).num_free_blocks,
                )
            )
            model.check()
        model.check()
    return found


def decisions(**found: Any) -> Decisions:
    return {key: value for key, value in found.items() if value or key == "free"}


def random_scenario(
    seed: int, num_requests: int = 20, *, step_time_s: float | None = None
) -> Scenario:
    """Few blocks, so that requests are evicted and admitted again; drained at the end.

    Even seeds with prefix caching, odd ones without.
    """
    dice = random.Random(seed)
    num_long = dice.randint(8, 13)  # blocks of the longest possible request
    config = ModelConfig(
        block_size=BLOCK_SIZE,
        num_total_blocks=num_long + dice.randint(0, 6),
        watermark_blocks=dice.choice([0, 0, 0, 1, 3]),
        max_num_running=dice.randint(3, 8),
        max_num_batched_tokens=dice.choice([32, 48, 100, 256]),
        max_model_len=num_long * BLOCK_SIZE,
        prefix_caching=seed % 2 == 0,
        mode="chunked",
        long_prefill_token_threshold=dice.choice([0, 0, 20, 40]),
    )
    operations: list[Operation] = []
    alive: list[str] = []
    for number in range(num_requests):
        operations.append(dice.choice([0, 0, 1, 2, 5]))
        num_prompt_tokens = dice.randint(1, config.max_model_len // dice.choice([1, 3, 6]) - 1)
        request = Request(
            request_id=f"r{number}",
            number=number,
            num_prompt_tokens=num_prompt_tokens,
            max_output_tokens=dice.randint(1, dice.choice([20, 120])),
            rank=dice.choice([0, 0, 0, 1, 2]),
            arrival_time_s=float(number + dice.choice([0, 0, 0, -3, 2])),
            group=dice.randrange(3),
            num_shared=dice.choice([0, num_prompt_tokens // 2, num_prompt_tokens, 999]),
        )
        operations.append(request)
        alive.append(request.request_id)
        if dice.random() < 0.1:
            operations.append(alive.pop(dice.randrange(len(alive))))
    return drained(Scenario(f"random {seed}", config, tuple(operations), step_time_s))


def drained(scenario: Scenario) -> Scenario:
    """With as many steps at the end as the model takes until everything is done."""
    model = new_model(scenario)
    for operation in scenario.operations:
        list(apply(model, operation))
    num_steps = 0
    while model.has_work():
        model.step()
        num_steps += 1
    return replace(scenario, operations=(*scenario.operations, num_steps))


def new_model(scenario: Scenario) -> EngineModel:
    model = EngineModel(scenario.config, PROFILE)
    model.limit_steps(StepLimit(scenario.step_time_s))
    return model


def apply(model: EngineModel, operation: Operation) -> Iterator[StepResult]:
    if isinstance(operation, Request):
        model.add(operation.for_model(model.config.block_size))
    elif isinstance(operation, str):
        model.abort([operation])
    else:
        yield from (model.step() for _ in range(operation))
