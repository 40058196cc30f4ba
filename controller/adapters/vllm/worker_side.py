"""What runs in the process of a vLLM worker, and reads or changes what its model runner stores: a
request that arrives with outputs; seeded generators; a kernel that is compiled beforehand; and the
facts of which an engine's fingerprint is made.

Each function takes the worker first, so that `collective_rpc` can call it in any process.

Touch points of vLLM: v1/worker/gpu_model_runner.py `requests`, `input_batch`, `device`,
`uses_mrope`, `_init_mrope_positions`, `mamba_state_idx`, `_update_states`, `execute_model`,
`_bookkeeping_sync`, `kv_caches`, `get_model`, `sampler`; v1/sample/sampler.py
`Sampler.gather_logprobs`; v1/worker/gpu_input_batch.py `CachedRequestState`,
`InputBatch.remove_request`, `vocab_size`, `generators`; sampling_params.py
`SamplingType.RANDOM_SEED`; v1/sample/ops/topk_topp_sampler.py `forward`, `forward_cpu`,
`random_sample`, `use_fp64_gumbel`; v1/worker/gpu/model_runner.py `kv_caches`, `device`,
`get_model`; v1/worker/worker_base.py `rank`; v1/kv_cache_interface.py `kv_cache_tensors`,
`kv_cache_groups`, `num_blocks`, `num_head_slots`, `max_tp_shards`; config/model.py `model`,
`revision`, `get_total_num_kv_heads`; config/parallel.py `tensor_parallel_size`,
`pipeline_parallel_size`; config/vllm.py
`use_v2_model_runner`; model_executor/layers/linear.py `num_kv_head_replicas`;
model_executor/layers/utils.py `dispatch_cpu_unquantized_gemm`."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from controller.adapters.vllm.kv_blocks import LayerShard, caches_of

# -- a request between two steps -------------------------------------------------------------------
# The first version of vLLM's model runner is told of a request with the request's first step. Later
# it is told only of changes, and never of outputs. So a request that arrives with outputs is
# registered here beforehand, as if it had run in this worker and was not scheduled in the last
# step.


@dataclass(frozen=True, slots=True)
class MovedRequest:
    """What a worker stores of a request that arrives with outputs.

    `tables`: its block ids, by group; all empty for a request that comes to the queue.
    `generator`: the state of its random generator; None if it has no seed, or if the model runner
    needs no generator."""

    request_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    tables: tuple[tuple[int, ...], ...]
    num_computed_tokens: int
    sampling_params: Any
    lora_request: Any
    generator: bytes | None


def is_seeded(sampling_params: Any) -> bool:
    from vllm.sampling_params import SamplingType

    return bool(sampling_params.sampling_type == SamplingType.RANDOM_SEED)


def generator_state(worker: Any, request_id: str) -> bytes | None:
    """The state of the request's generator, which takes 5 KB on CPU and 16 bytes on CUDA. None if
    the request has no seed or the worker does not know it."""
    known = worker.model_runner.requests.get(request_id)
    if known is None or known.generator is None:
        return None
    return bytes(known.generator.get_state().numpy())


def drawn_generator(worker: Any, seed: int, num_tokens: int) -> bytes:
    """The state of a seeded request's generator after `num_tokens` tokens. For each token the
    sampler draws once: on CPU a seed for its kernel; elsewhere, and with 64-bit noise, a row of
    noise as wide as the vocabulary."""
    runner = worker.model_runner
    generator = torch.Generator(device=runner.device)
    generator.manual_seed(seed)
    sampler = runner.sampler.topk_topp_sampler
    wide = sampler.use_fp64_gumbel
    if sampler.forward == sampler.forward_cpu and not wide:
        torch.randint(0, 2**31, (num_tokens,), generator=generator)
    else:
        noise = torch.empty(
            runner.input_batch.vocab_size,
            dtype=torch.float64 if wide else torch.float32,
            device=runner.device,
        )
        for _ in range(num_tokens):
            noise.exponential_(generator=generator)
    return bytes(generator.get_state().numpy())


def register_request(worker: Any, moved: MovedRequest) -> str:
    """Returns why the worker cannot take the request; empty if it has taken it."""
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    runner = worker.model_runner
    try:
        generator = _generator(runner.device, moved)
    except ValueError as error:
        return str(error)
    leave_batch(worker, moved.request_id)
    known = CachedRequestState(
        req_id=moved.request_id,
        prompt_token_ids=moved.prompt_token_ids,
        mm_features=[],
        sampling_params=moved.sampling_params,
        generator=generator,
        block_ids=tuple(map(list, moved.tables)),
        num_computed_tokens=moved.num_computed_tokens,
        output_token_ids=list(moved.output_token_ids),
        lora_request=moved.lora_request,
    )
    if runner.uses_mrope:
        runner._init_mrope_positions(known)
    runner.requests[moved.request_id] = known
    return ""


def _generator(device: torch.device, moved: MovedRequest) -> torch.Generator | None:
    """Raises ValueError if the state cannot belong to this request's generator."""
    if (moved.generator is not None) != is_seeded(moved.sampling_params):
        raise ValueError("a generator's state belongs to a seeded request, and to no other")
    if moved.generator is None:
        return None
    generator = torch.Generator(device=device)
    generator.manual_seed(moved.sampling_params.seed)
    try:
        generator.set_state(torch.frombuffer(bytearray(moved.generator), dtype=torch.uint8))
    except RuntimeError as error:
        raise ValueError(f"not the state of a {device.type} generator") from error
    return generator


def leave_batch(worker: Any, request_id: str) -> None:
    """Removes the request's row; the next step closes the gap. Otherwise a request that comes back
    before the worker's next step would find its old row, with its old blocks. Removes the place of
    its state too: vLLM forgets it only in a step that computes something, and finds the place of a
    request that it does not know by the computed tokens."""
    runner = worker.model_runner
    with torch.inference_mode():  # as in a step, which made the mask of allowed tokens
        runner.input_batch.remove_request(request_id)
    runner.mamba_state_idx.pop(request_id, None)


# -- seeded sampling on a CPU ----------------------------------------------------------------------
# Seeded sampling on CPU when a prefill is cut in two.
#
# A step that ends inside a prompt still samples a token and throws it away. vLLM then turns the
# request's generator back by a CUDA offset (v1/worker/gpu_model_runner.py, `_bookkeeping_sync`),
# which a CPU generator does not have. The RuntimeError would end the engine, so a client with a
# seed and a long prompt could end an instance. Here the generator gets the state from before the
# step instead, so that a seed gives the same tokens whether or not a prefill is cut.


class RewindableGenerators(dict[int, torch.Generator]):
    """Replaces an input batch's generators (index in the batch -> generator). In the bookkeeping
    of a step `get` returns what can be turned back; samplers, and moves to another index, get the
    generators themselves."""

    def __init__(self, generators: dict[int, torch.Generator]) -> None:
        super().__init__(generators)
        self._before_step: dict[torch.Generator, torch.Tensor] = {}
        self.in_bookkeeping = False

    def get(self, index: int, default: Any = None) -> Any:
        generator = super().get(index, default)
        if not self.in_bookkeeping or not isinstance(generator, torch.Generator):
            return generator
        return _Rewind(generator, self._before_step.get(generator))

    def remember(self, generators: list[torch.Generator]) -> None:
        """Called before a step. It keeps the state of every seeded request (5 KB each), and the
        generators themselves: otherwise a generator made in the step could get the address of one
        that was dropped in it."""
        self._before_step = {generator: generator.get_state() for generator in generators}


@dataclass(frozen=True, slots=True)
class _Rewind:
    """The object on which vLLM calls `generator.set_offset(generator.get_offset() - 4)` in order to
    turn a generator back."""

    generator: torch.Generator
    before_step: torch.Tensor | None
    """None if the generator was made in this step."""

    def get_offset(self) -> int:
        return 0

    def set_offset(self, _offset: int) -> None:
        if self.before_step is not None:
            self.generator.set_state(self.before_step)
        else:
            self.generator.manual_seed(self.generator.initial_seed())


def make_generators_rewindable(worker: Any) -> None:
    """Runs in each worker's process, but only on a CPU."""
    runner = worker.model_runner
    generators = RewindableGenerators(runner.input_batch.generators)
    runner.input_batch.generators = generators
    execute, keep_books = runner.execute_model, runner._bookkeeping_sync

    def remembering(*args: Any, **kwargs: Any) -> Any:
        generators.remember(_seeded(runner))
        return execute(*args, **kwargs)

    def rewinding(*args: Any, **kwargs: Any) -> Any:
        generators.in_bookkeeping = True
        try:
            return keep_books(*args, **kwargs)
        finally:
            generators.in_bookkeeping = False

    runner.execute_model, runner._bookkeeping_sync = remembering, rewinding


def _seeded(model_runner: Any) -> list[torch.Generator]:
    """The generators of all seeded requests, in the batch or evicted."""
    requests = model_runner.requests.values()
    return [request.generator for request in requests if request.generator is not None]


def compile_logprobs(worker: Any, vocab_size: int) -> None:
    """Compiles the kernel of log probabilities, which vLLM's own warm-up leaves out. Runs in each
    worker's process. One batch size is enough, because vLLM compiles for any size."""
    runner = worker.model_runner
    gather = getattr(getattr(runner, "sampler", None), "gather_logprobs", None)
    if gather is None:  # the other version of the model runner has a different sampler
        return
    with torch.inference_mode():
        logprobs = torch.zeros((2, vocab_size), dtype=torch.float32, device=runner.device)
        gather(logprobs, 1, torch.zeros(2, dtype=torch.int64, device=runner.device))


# -- the layers of a rank --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """`form`: the type of the elements in a part of the shard, and the part's shape."""

    shard: LayerShard
    form: str


@dataclass(frozen=True, slots=True)
class HeadsOfRank:
    """The KV heads that vLLM gives to a rank of a tensor-parallel group
    (model_executor/layers/linear.py, `QKVParallelLinear`)."""

    rank: int
    num_ranks: int
    num_total: int

    @property
    def num_held(self) -> int:
        return max(1, self.num_total // self.num_ranks)

    @property
    def first(self) -> int:
        num_holders = max(1, self.num_ranks // self.num_total)  # of each head
        return self.rank // num_holders * self.num_held


def cached_layers(worker: Any) -> list[CachedLayer]:
    """The worker's layers that have a cache of their own, in the order of its caches."""
    config, runner = worker.vllm_config, worker.model_runner
    num_ranks = config.parallel_config.tensor_parallel_size
    num_heads = config.model_config.get_total_num_kv_heads()
    heads = HeadsOfRank(worker.rank % num_ranks, num_ranks, num_heads)
    num_blocks = runner.kv_cache_config.num_blocks
    if len(runner.kv_cache_config.kv_cache_groups) > 1:
        return [
            CachedLayer(LayerShard(index, num_ranks, heads.rank, 1, lane[0].numel()), "pages")
            for index, lane in enumerate(caches_of(runner))
        ]
    return [
        CachedLayer(_shard(heads, *layer, cache, num_blocks), f"{cache.dtype} {cache.shape[2:]}")
        for layer, cache in zip(_specs(worker), caches_of(runner), strict=True)
    ]


def _shard(
    heads: HeadsOfRank, layer: int, spec: Any, cache: torch.Tensor, num_blocks: int
) -> LayerShard:
    block_bytes = cache.numel() // num_blocks * cache.itemsize
    if getattr(spec, "max_tp_shards", None) == 1:  # each rank holds the whole layer
        return LayerShard(layer, 1, 0, 1, block_bytes)
    by_head = getattr(spec, "num_head_slots", None) is None and cache.dim() == 4
    if by_head and cache.shape[:2] == (num_blocks, heads.num_held):
        part_bytes = block_bytes // heads.num_held
        return LayerShard(layer, heads.num_total, heads.first, heads.num_held, part_bytes)
    return LayerShard(layer, heads.num_ranks, heads.rank, 1, block_bytes)


def _specs(worker: Any) -> list[tuple[int, Any]]:
    """The index and vLLM's KVCacheSpec of each layer with a cache of its own, in the order of the
    runner's caches. With pipeline parallelism the index is that in the whole model."""
    from vllm.model_executor.models.utils import extract_layer_index
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    config = worker.model_runner.kv_cache_config
    specs = {}
    for group in config.kv_cache_groups:
        for name in group.layer_names:
            spec = group.kv_cache_spec
            if isinstance(spec, UniformTypeKVCacheSpecs):
                spec = spec.kv_cache_specs[name]
            specs[name] = spec
    names = [name for tensor in config.kv_cache_tensors for name in tensor.layers]
    vllm_config = worker.vllm_config
    # As in vLLM: two attention modules in each layer of this model.
    num_modules = 2 if vllm_config.model_config.hf_config.model_type == "longcat_flash" else 1
    if not vllm_config.use_v2_model_runner:
        names.sort(key=lambda name: extract_layer_index(name, num_modules))
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        return list(enumerate(specs[name] for name in names))
    return [(extract_layer_index(name, num_modules), specs[name]) for name in names]


# -- facts for the fingerprint ---------------------------------------------------------------------
# The weights are identified by a sample of every parameter, in the form in which the engine
# computes with it: if a fine-tuned model differs from its origin in a parameter at all, it differs
# in most elements. Reading all elements would take minutes for a large model. On CPU vLLM packs its
# matrices away and leaves empty parameters behind. There the model's files are sampled too; for a
# model that is not a folder, its name and revision are used. The folder's path does not matter.

_SAMPLES = 256  # samples of each parameter, or of each file
_SAMPLE_BYTES = 64
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """`device`: its type. `weights`: a digest of the worker's parameters. `packed`: whether some of
    the parameters are empty, so that the digest does not cover them."""

    device: str
    layers: list[CachedLayer]
    weights: str
    packed: bool


def facts(worker: Any) -> WorkerFacts:
    runner = worker.model_runner
    parameters = sorted(runner.get_model().named_parameters())
    digest = hashlib.sha256()
    for name, parameter in parameters:
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(_sample(parameter.detach()))
    return WorkerFacts(
        device=runner.device.type,
        layers=cached_layers(worker),
        weights=digest.hexdigest(),
        packed=not all(parameter.numel() for _, parameter in parameters),
    )


def files_digest(model_config: Any) -> str:
    """A digest of the model's files; of its name and revision if the model is not a folder."""
    digest = hashlib.sha256()
    folder = Path(model_config.model)
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            if file.suffix in _WEIGHTS:
                for part in _file_sample(file):
                    digest.update(part)
    else:
        digest.update(f"{model_config.model} {model_config.revision}".encode())
    return digest.hexdigest()


def _sample(parameter: Any) -> bytes:
    flat = parameter.flatten()
    step = max(1, flat.numel() // _SAMPLES)
    return bytes(flat[::step].contiguous().cpu().view(torch.uint8).numpy())


def _file_sample(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name} {size}".encode()
    with path.open("rb") as file:
        for offset in range(0, size, max(1, size // _SAMPLES)):
            file.seek(offset)
            yield file.read(_SAMPLE_BYTES)
