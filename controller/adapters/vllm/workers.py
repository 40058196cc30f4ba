"""The workers of a vLLM engine, as moves use them from the engine's thread: the KV blocks, what the
model runner stores about a request, and the engine's fingerprint.

vLLM has two model runners, and `Workers` has a class for each:

    V1  The first one keeps a request's outputs and its random generator in the worker. A request
        that arrives is registered in the worker at once (`worker_side.register_request`).
    V2  The second one, which vLLM prefers on GPUs, draws random numbers from the seed and the
        position, so no generator travels. It is told of a request, with all its tokens, by the
        step in which the request runs first. vLLM does so for a request that leaves its queue; for
        one that enters the batch directly, `V2Workers` adds it to the step.

With several ranks each call goes to the worker of each rank, in vLLM's queue of orders, and the
engine's thread waits for all answers. It takes 0.2 ms between two steps. If steps are scheduled
ahead, the call waits for those under way; the second model runner needs no such call.

Touch points of vLLM: v1/executor/abstract.py `collective_rpc`; v1/core/sched/scheduler.py
`schedule`, `requests`, `kv_cache_config`, `use_v2_model_runner`; v1/core/sched/output.py
`NewRequestData`,
`scheduled_new_reqs`, `prefill_token_ids`; v1/request.py `status`; v1/worker/gpu/model_runner.py
`add_requests`; config/model.py `hf_text_config`, `dtype`, `quantization`; config/cache.py
`cache_dtype`, `block_size`, `get_resolved_kv_cache_layout`; config/parallel.py `world_size`;
config/vllm.py `use_v2_model_runner`; v1/worker/gpu/sample/logit_bias.py
`MAX_NUM_ALLOWED_TOKEN_IDS`, `MAX_NUM_LOGIT_BIAS_TOKENS`, `MAX_NUM_STOP_TOKEN_IDS`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from controller.adapters.vllm import worker_side
from controller.adapters.vllm.kv_blocks import CudaBlocks, HostBlocks, caches_of
from controller.adapters.vllm.rank_copies import connect_ranks
from controller.adapters.vllm.scheduler_side import EngineParts
from controller.adapters.vllm.worker_side import MovedRequest, WorkerFacts
from controller.ports.engine import KvBlocks


class Blocks(KvBlocks, Protocol):
    def order_after_steps(self) -> None:
        """Makes later copies wait for the steps that are under way. Called between two steps, on
        the engine's thread, whenever blocks are given to a copier."""

    def close(self) -> None: ...


class Workers:
    """Workers with the first model runner."""

    keeps_rows = True
    """Whether a worker has rows in its batch that vLLM does not manage by itself: each with the
    request's outputs and its random generator."""

    def __init__(
        self, core: Any, blocks: Blocks, drawn_generator: Callable[[int, int], bytes]
    ) -> None:
        """`drawn_generator`: the state of a generator with a seed after so many tokens."""
        self.blocks = blocks
        self._executor = core.model_executor
        self._drawn_generator = drawn_generator
        self._num_groups = len(core.scheduler.kv_cache_config.kv_cache_groups)
        config = core.vllm_config
        on_cpu = config.device_config.device_type == "cpu"
        if on_cpu and self.keeps_rows:
            self._call(worker_side.make_generators_rewindable)

    def generator_state(self, request: Any) -> bytes | None:
        """The state of the request's random generator; None if the request has no seed, if it has
        not run, or if the model runner has no generators."""
        if not self.keeps_rows or not worker_side.is_seeded(request.sampling_params):
            return None
        # With pipeline parallelism only the last ranks sample.
        state: bytes | None = self._call(worker_side.generator_state, request.request_id)[-1]
        return state

    def drawn_generator(self, request: Any, num_tokens: int) -> bytes | None:
        """The state of a seeded request's generator after `num_tokens` tokens; None if there is no
        such generator. Any thread may call this, and it may take long."""
        params = request.sampling_params
        if not self.keeps_rows or not worker_side.is_seeded(params):
            return None
        return self._drawn_generator(params.seed, num_tokens)

    def register(
        self,
        request: Any,
        output_token_ids: Sequence[int],
        tables: Sequence[Sequence[int]],
        generator: bytes | None,
    ) -> None:
        """Makes the workers ready for a request that comes with outputs. Without tables it comes
        to the queue. With the block ids of each group it comes to the batch, and all its tokens
        but the last are computed. Raises ValueError if the generator's state does not fit; nothing
        has changed then."""
        num_tokens = len(request.prompt_token_ids) + len(output_token_ids)
        moved = MovedRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=list(output_token_ids),
            tables=tuple(map(tuple, tables)) or ((),) * self._num_groups,
            num_computed_tokens=num_tokens - 1 if tables else 0,
            sampling_params=request.sampling_params,
            lora_request=request.lora_request,
            generator=generator,
        )
        self._tell(request, moved)

    def leave_batch(self, request_id: str) -> None:
        """Must be called before a request that has been here comes back through vLLM's queue."""
        if self.keeps_rows:
            self._call(worker_side.leave_batch, request_id)

    def check(self, sampling_params: Any) -> None:
        """Raises ValueError if the model runner cannot take such a request. Any thread may call
        this."""

    def close(self) -> None:
        self.blocks.close()

    def _tell(self, _request: Any, moved: MovedRequest) -> None:
        refusals = self._call(worker_side.register_request, moved)
        if any(refusals):
            raise ValueError(next(filter(None, refusals)))

    def _call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returned in each worker."""
        results: list[Any] = self._executor.collective_rpc(function, args=args)
        return results


class V2Workers(Workers):
    """Workers with the second model runner."""

    keeps_rows = False

    def __init__(self, core: Any, *parts: Any) -> None:
        from vllm.v1.request import RequestStatus

        super().__init__(core, *parts)
        self._scheduler = core.scheduler
        self._running = RequestStatus.RUNNING
        self._arrived: dict[str, tuple[Any, Any]] = {}
        """By id, the requests that the workers do not know yet, and what the next step tells
        them."""
        self._add_to_steps()

    def check(self, sampling_params: Any) -> None:
        """vLLM itself finds a list that is too long in the worker, in the middle of a step, and
        the engine ends."""
        for name, num_tokens, most in _lists(sampling_params):
            if num_tokens > most:
                raise ValueError(
                    f"{name}: {num_tokens} tokens; the model runner of this engine takes at most "
                    f"{most}"
                )

    def _tell(self, request: Any, moved: MovedRequest) -> None:
        from vllm.v1.core.sched.output import NewRequestData

        if moved.generator is not None:
            raise ValueError("a generator's state, but this model runner has no generators")
        if not moved.num_computed_tokens:
            return  # vLLM tells the workers of a request that leaves its queue
        self._arrived[moved.request_id] = (
            request,
            NewRequestData(
                req_id=moved.request_id,
                prompt_token_ids=moved.prompt_token_ids,
                mm_features=[],
                sampling_params=moved.sampling_params,
                pooling_params=None,
                block_ids=tuple(map(list, moved.tables)),
                num_computed_tokens=moved.num_computed_tokens,
                lora_request=moved.lora_request,
                prefill_token_ids=[*moved.prompt_token_ids, *moved.output_token_ids],
            ),
        )

    def _add_to_steps(self) -> None:
        """Adds the arrived requests to what the scheduler tells the workers. The workers take new
        requests before they read what has changed for known ones, such as one more block.

        A request that ended meanwhile is left out: its end may be in the same step, and the
        workers would keep the request for ever. A request that the scheduler has evicted is left
        out too, because vLLM tells the workers of it when it leaves the queue."""
        schedule = self._scheduler.schedule

        def with_arrived(*args: Any, **kwargs: Any) -> Any:
            scheduled = schedule(*args, **kwargs)
            if self._arrived:
                arrived, self._arrived = self._arrived, {}
                scheduled.scheduled_new_reqs.extend(
                    new
                    for request_id, (request, new) in arrived.items()
                    if self._scheduler.requests.get(request_id) is request
                    and request.status == self._running
                )
            return scheduled

        self._scheduler.schedule = with_arrived


def _lists(params: Any) -> Iterator[tuple[str, int, int]]:
    """The lists of a request that the second model runner limits: the name, the number of tokens
    and the limit."""
    from vllm import envs
    from vllm.v1.worker.gpu.sample import logit_bias as limits

    yield (
        "allowed_token_ids",
        len(params.allowed_token_ids or ()),
        limits.MAX_NUM_ALLOWED_TOKEN_IDS,
    )
    yield "logit_bias", len(params.logit_bias or ()), limits.MAX_NUM_LOGIT_BIAS_TOKENS
    if params.min_tokens:
        yield (
            "stop_token_ids beside min_tokens",
            len(params.all_stop_token_ids),
            limits.MAX_NUM_STOP_TOKEN_IDS,
        )
    num_bad_tokens = sum(map(len, params.bad_words_token_ids or ()))
    yield "bad_words", num_bad_tokens, envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS


def workers_of(core: Any, parts: EngineParts) -> Workers:
    """Must be called on the engine's thread, between two steps. If the engine moves no requests,
    its workers have no blocks. Raises RanksApartError if the blocks of its ranks cannot be
    copied."""
    kind = V2Workers if core.scheduler.use_v2_model_runner else Workers
    executor, num_blocks = core.model_executor, parts.pool.num_gpu_blocks
    if parts.refusal is None and core.vllm_config.parallel_config.world_size > 1:
        ranks = connect_ranks(executor, num_blocks)
        return kind(core, ranks, ranks.drawn_generator)

    def drawn_generator(seed: int, num_tokens: int) -> bytes:
        drawn = executor.collective_rpc(worker_side.drawn_generator, args=(seed, num_tokens))
        state: bytes = drawn[0]
        return state

    return kind(core, _blocks_here(core, parts), drawn_generator)


def _blocks_here(core: Any, parts: EngineParts) -> Blocks:
    num_blocks = parts.pool.num_gpu_blocks
    if parts.refusal is not None:
        return HostBlocks([], num_blocks)
    runner = core.model_executor.driver_worker.worker.model_runner
    if runner.device.type == "cpu":
        return HostBlocks(caches_of(runner), num_blocks)
    return CudaBlocks(caches_of(runner), num_blocks, runner.device)


# -- the fingerprint -------------------------------------------------------------------------------

_SAYS_NOTHING = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")


def fingerprint(core: Any, parts: EngineParts) -> str:
    """The engine's fingerprint; empty if the engine moves no requests. Its parts are named, and
    `controller/core/migration/refusals.py` says which of them may differ between two engines."""
    if parts.refusal is not None:
        return ""
    import vllm

    config = core.vllm_config
    facts: list[WorkerFacts] = core.model_executor.collective_rpc(worker_side.facts)
    model = config.model_config.hf_text_config.to_dict()
    layout = {
        "model": {key: value for key, value in model.items() if key not in _SAYS_NOTHING},
        "dtype": str(config.model_config.dtype),
        "quantization": str(config.model_config.quantization),
        "device": facts[0].device,
        "layout": str(config.cache_config.get_resolved_kv_cache_layout()),
        "cache_dtype": str(config.cache_config.cache_dtype),
        "block_size": parts.block_size,
        "layers": _layers(facts),
    }
    if parts.tails:  # the model alone does not say how vLLM divides its layers
        layout["groups"] = [str(manager.kv_cache_spec) for manager in parts.managers]
    files = worker_side.files_digest(config.model_config)
    weights = [worker.weights for worker in facts]
    if any(worker.packed for worker in facts):
        weights.append(files)
    named = {
        "runner": "v2" if config.use_v2_model_runner else "v1",
        "layout": _digest(layout),
        "weights": _digest(weights),
        "files": _digest(files),
        "ranks": config.parallel_config.world_size,
        "vllm": vllm.__version__,
    }
    return " ".join(f"{name}={value}" for name, value in named.items())


def _layers(facts: Sequence[WorkerFacts]) -> list[tuple[int, int, int, str]]:
    """The layers of all ranks. If their parts are KV heads, they do not depend on the number of
    ranks."""
    layers = {
        (layer.shard.layer, layer.shard.num_parts, layer.shard.part_bytes, layer.form)
        for worker in facts
        for layer in worker.layers
    }
    return sorted(layers)


def _digest(what: Any) -> str:
    said = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:24]
