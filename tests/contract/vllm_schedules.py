"""vLLM's own scheduler on a scenario, without an engine: it decides, and the test supplies the
tokens.

`python -m tests.contract.vllm_schedules` records the file's scenarios anew, for example after an
upgrade of vLLM; the file's diff then shows what changed. A new scenario is an entry without
decisions there, which ends with as many steps as it takes until everything is done.
"""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from controller.adapters.embedded_model import ensure
from controller.adapters.vllm import process_setup
from controller.adapters.vllm.steps import Steps
from controller.core.load.step_times import StepCosts, StepLimit, StepTimes
from controller.model.profile import ModelConfig
from tests.schedules import (
    PROFILE,
    RECORDED,
    Decisions,
    Request,
    Scenario,
    decisions,
)


def decisions_of_vllm(scenario: Scenario, model_path: Path) -> list[Decisions]:
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import RequestStatus

    scheduler = _scheduler(scenario.config, model_path)
    steps = steps_of(scheduler, scenario.step_time_s)
    evicted: list[str] = []
    preempt = scheduler._preempt_request

    def watched(request: Any, *args: Any, **kwargs: Any) -> Any:
        evicted.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = watched
    requests: dict[str, Request] = {}
    found: list[Decisions] = []

    def step() -> Decisions:
        evicted.clear()
        before = {r.request_id for r in scheduler.running}
        steps.set_budget()
        scheduled = scheduler.schedule()
        tokens = dict(scheduled.num_scheduled_tokens)
        admitted = [r for r in scheduler.running if r.request_id not in before]
        cached = [r.num_computed_tokens - tokens[r.request_id] for r in admitted]
        sampled = [
            [] if r.is_prefill_chunk else [requests[r.request_id].token(r.num_tokens)]
            for r in (scheduler.requests[request_id] for request_id in tokens)
        ]
        outputs = scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=list(tokens),
                req_id_to_index={request_id: i for i, request_id in enumerate(tokens)},
                sampled_token_ids=sampled,
            ),
        )
        emitted = [out for body in outputs.values() for out in body.outputs]
        return decisions(
            admitted=[r.request_id for r in admitted],
            cached=cached,
            evicted=list(evicted),
            tokens=tokens,
            emitted=[out.request_id for out in emitted],
            finished=[out.request_id for out in emitted if out.finished],
            free=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        )

    for op in scenario.operations:
        if isinstance(op, Request):
            requests[op.request_id] = op
            scheduler.add_request(_vllm_request(op, scenario.config))
        elif isinstance(op, str):
            scheduler.finish_requests([op], RequestStatus.FINISHED_ABORTED)
        else:
            found.extend(step() for _ in range(op))
    assert not scheduler.has_unfinished_requests(), "the scenario ends too early"
    return found


class KnownTimes(StepTimes):
    """As if the constants of `PROFILE` had been measured."""

    @property
    def costs(self) -> StepCosts:
        return PROFILE.costs


def steps_of(scheduler: Any, step_time_s: float | None) -> Steps:
    """What limits the scheduler's steps."""
    core = SimpleNamespace(scheduler=scheduler, vllm_config=scheduler.vllm_config)
    steps = Steps(
        core,
        is_arriving=lambda: False,
        take_entered=lambda: False,
        num_expected=lambda _: 0,
    )
    steps.limit, steps._times = StepLimit(step_time_s), KnownTimes()
    return steps


def _scheduler(config: ModelConfig, model_path: Path) -> Any:
    from vllm.v1.core.sched.scheduler import Scheduler

    num_blocks = config.num_total_blocks + 1  # and the null block
    scheduler = lone_scheduler(
        Scheduler,
        model_path,
        num_blocks,
        block_size=config.block_size,
        async_scheduling=False,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_running,
        max_num_batched_tokens=config.max_num_batched_tokens,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_prefix_caching=config.prefix_caching,
        watermark=(config.watermark_blocks + 0.5) / num_blocks,
    )
    assert scheduler.kv_cache_manager.watermark_blocks == config.watermark_blocks
    assert scheduler.kv_cache_manager.enable_caching == config.prefix_caching
    return scheduler


def lone_scheduler(
    scheduler: type, model_path: Path, num_blocks: int, *, block_size: int, **engine_args: Any
) -> Any:
    """A scheduler of vLLM's without an engine."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(
        model=str(model_path),
        dtype="float32",
        enforce_eager=True,
        scheduling_policy="priority",
        block_size=block_size,
        **engine_args,
    ).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    config.cache_config.num_gpu_blocks = num_blocks
    attention = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return scheduler(
        config,
        KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
        StructuredOutputManager(config),
        block_size=block_size,
    )


def _vllm_request(request: Request, config: ModelConfig) -> Any:
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request as VllmRequest

    init_none_hash(sha256)
    return VllmRequest(
        request.request_id,
        [request.token(index) for index in range(request.num_prompt_tokens)],
        SamplingParams(max_tokens=request.max_output_tokens, ignore_eos=True),
        pooling_params=None,
        arrival_time=request.arrival_time_s,
        priority=-request.rank,
        block_hasher=(
            get_request_block_hasher(config.block_size, sha256) if config.prefix_caching else None
        ),
    )


def record(model_path: Path) -> None:
    """One step per line, for the diff."""
    entries = []
    for entry in json.loads(RECORDED.read_text()):
        scenario = Scenario.from_json(entry["scenario"])
        steps = ",\n".join(map(_compact, decisions_of_vllm(scenario, model_path)))
        entries.append(f'{{"scenario":{_compact(entry["scenario"])},"decisions":[\n{steps}\n]}}')
    RECORDED.write_text("[\n" + ",\n".join(entries) + "\n]\n")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    process_setup.prepare()
    with tempfile.TemporaryDirectory() as folder:
        record(ensure(Path(folder)))
