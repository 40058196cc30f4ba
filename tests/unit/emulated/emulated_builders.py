"""Requests as a frontend sends them, and an engine whose time is a number."""

from dataclasses import replace
from typing import Any

import msgspec

from controller.adapters.emulated.emulated_engine import EmulatedEngine
from controller.adapters.vllm_wire import Outputs
from controller.model.profile import ModelConfig, load_profile
from controller.ports.engine import StepOutputs

PROFILE = replace(load_profile("a10-llama-7b"), max_model_len=1024)
EOS = 1


def frames(
    request_id: str = "r-1",
    prompt: list[int] | None = None,
    *,
    rank: int = 0,
    arrival_s: float = 0.0,
    salt: str | None = None,
    changed: dict[int, Any] | None = None,
    **sampling: Any,
) -> list[bytes]:
    """vLLM's encoding (tests/contract/test_emulated_wire.py): an array, with one map in it.
    `changed` replaces positions."""
    params = {"max_tokens": 16, **sampling}
    fields: list[Any] = [request_id, prompt or [300, 301, 302], None, params, None, arrival_s]
    fields += [None, salt, None, None, None, 0, 0, -rank, None, False]
    for position, value in (changed or {}).items():
        fields[position] = value
    return [msgspec.msgpack.encode(fields)]


class Clock:
    """Sleeping lets time pass, and reading the clock takes `overhead_s`."""

    def __init__(self, overhead_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.overhead_s = overhead_s

    def __call__(self) -> float:
        self.now_s += self.overhead_s
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def make_engine(
    clock: Clock | None = None,
    speed: float = 1.0,
    prefix_caching: bool = True,
    num_host_blocks: int = 0,
    **sizes: Any,
) -> EmulatedEngine:
    clock = clock or Clock()
    profile = replace(PROFILE, **sizes)
    block_bytes = profile.kv_bytes_per_token * profile.block_size
    config = ModelConfig.of(
        profile, prefix_caching=prefix_caching, host_cache_bytes=num_host_blocks * block_bytes
    )
    return EmulatedEngine(
        profile, config, speed, lambda detail: None, clock=clock, sleep=clock.sleep
    )


def decode(engine: EmulatedEngine, step: StepOutputs) -> Outputs:
    """Decodes the encoded message."""
    return msgspec.msgpack.decode(engine.encode(step.body)[0], type=Outputs)


def finish(engine: EmulatedEngine) -> dict[str, list[int]]:
    """Tokens by request, until the engine has nothing left to do."""
    tokens: dict[str, list[int]] = {}
    while engine.has_work():
        for step in engine.step():
            for output in decode(engine, step).outputs:
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    return tokens


def prompt(number: int, num_tokens: int) -> list[int]:
    return [300 + number, *range(1000, 999 + num_tokens)]
