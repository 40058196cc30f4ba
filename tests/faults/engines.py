"""The kinds of engines that the processes are made of, and the requests for them."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from controller.adapters import vllm_wire as wire
from controller.adapters.embedded_model import ensure
from controller.core.load.snapshot import InstanceRef
from controller.model.profile import LatencyProfile, ModelConfig
from controller.ports.engine import EngineFactory, Frames, KvTransfer

PROFILE = LatencyProfile(
    name="faults",
    description="slow enough that a test can be at the right place at the right time",
    source="made up",
    measured=False,
    block_size=16,
    num_total_blocks=96,
    watermark_ratio=0.01,
    max_num_running=8,
    max_num_batched_tokens=2048,
    max_model_len=1536,
    kv_bytes_per_token=1000,
    copy_bytes_per_s=10e6,  # 12 blocks in 19 ms
    prefill_base_s=1e-3,
    prefill_per_token_s=1e-6,
    prefill_per_token_squared_s=1e-12,
    decode_base_s=5e-3,
    decode_per_context_token_s=1e-9,
    decode_per_request_s=1e-6,
)

VLLM_BLOCK_TOKENS = 32
VLLM_NUM_BLOCKS = 80

HOST_CACHE = "host-cache"
"""With a host cache of fewer blocks than the engine has itself, and links with small slices."""
VLLM_BLOCK_BYTES = VLLM_BLOCK_TOKENS * 4096
HOST_BLOCKS, SLICE_BLOCKS = 48, 4

WINDOWS, STATES = "windows", "states"
ARCHITECTURES_OF = {
    WINDOWS: "sliding window and full attention",
    STATES: "Mamba2 beside attention",
}
"""By kind of engine. Other kinds but the emulated one have the built-in model."""


def model_of(kind: str, folder: Path) -> str:
    """Makes the model of such an engine, if it needs one, in this folder."""
    if kind == "emulated":
        return ""
    built_in = ensure(folder)
    if kind not in ARCHITECTURES_OF:
        return str(built_in)
    from tests.contract.architectures import made

    return str(made(architecture(kind), built_in, folder / kind))


def architecture(kind: str) -> Any:
    from tests.contract.architectures import ARCHITECTURES

    return ARCHITECTURES[ARCHITECTURES_OF[kind]]


def engine_factory(kind: str, model: str) -> EngineFactory:
    if kind == "emulated":
        from controller.adapters.emulated.emulated_engine import EmulatedEngine

        return partial(EmulatedEngine, PROFILE, ModelConfig.of(PROFILE), 1.0)
    from controller.adapters.vllm.engine import VllmEngine

    if kind == STATES:
        promise_no_checkpoints()
    host_cache_bytes = HOST_BLOCKS * VLLM_BLOCK_BYTES if kind == HOST_CACHE else 0
    return partial(VllmEngine, vllm_args(kind, model), host_cache_bytes=host_cache_bytes)


def promise_no_checkpoints() -> None:
    """Lets vLLM have a prefix cache for Mamba2 on a CPU. There its layers promise states in the
    middle of a prefill, which their kernels for CPUs do not make."""
    from controller.adapters.vllm import process_setup

    process_setup.prepare()
    from vllm.model_executor.layers.mamba.abstract import MambaBase
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    MambaMixer2.get_kv_cache_spec = MambaBase.get_kv_cache_spec


def vllm_args(kind: str, model: str) -> dict[str, Any]:
    num_ranks = 2 if kind == "ranks" else 1
    arguments = {
        "model": model,
        "served_model_name": "embedded",
        "block_size": VLLM_BLOCK_TOKENS,
        "max_model_len": 1600,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "kv_cache_memory_bytes": (VLLM_NUM_BLOCKS + 1) * VLLM_BLOCK_BYTES // num_ranks,
        "tensor_parallel_size": num_ranks,
        "dtype": "float32",
        "enforce_eager": True,
        "scheduling_policy": "priority",
    }
    if kind in ARCHITECTURES_OF:
        arguments |= {"kv_cache_memory_bytes": 32 << 20, "max_model_len": 2048}
        arguments |= architecture(kind).engine
        arguments["enable_prefix_caching"] = True
    return arguments


def kv_transfer(kind: str, me: Callable[[], InstanceRef]) -> KvTransfer:
    if kind == "emulated":
        from controller.adapters.emulated.emulated_kv import EmulatedKvTransfer

        return EmulatedKvTransfer(PROFILE, 1.0)
    from controller.adapters.tcp.transfer import SLICE_BYTES, TcpKvTransfer

    slice_bytes = SLICE_BLOCKS * VLLM_BLOCK_BYTES if kind == HOST_CACHE else SLICE_BYTES
    return TcpKvTransfer(me, "127.0.0.1", slice_bytes)


def num_held(engine: Any) -> int:
    """What moves hold on an engine beyond what its snapshot counts."""
    if engine.emulation is not None:
        return len(engine.moves.blocks._contents)
    return int(engine.max_num_running - engine._scheduler.max_num_active_reqs)


def forget_cached(engine: Any) -> None:
    """Its prefix cache; what the host cache has stays, once all of it is there."""
    engine.host_cache.turn(lambda: (), wait=True)
    assert engine._scheduler.reset_prefix_cache(), "a request uses it"


def worker_pids(engine: Any) -> list[int]:
    """Of an engine with several ranks."""
    if engine.emulation is not None:
        return []
    workers = getattr(engine._core.model_executor, "workers", ())
    return [worker.proc.pid for worker in workers]


# -- requests -----------------------------------------------------------------------------


def prompt_of(request_id: str, num_tokens: int) -> list[int]:
    """Of its own, so that no prefix cache knows it."""
    dice = random.Random(request_id)
    return [dice.randrange(300, 2000) for _ in range(num_tokens)]


def request_frames(request_id: str, prompt: Sequence[int], max_tokens: int) -> Frames:
    """A greedy request as a frontend of vLLM sends it, by position (emulated_request.py)."""
    sampling = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True}
    fields = [request_id, prompt, None, sampling, None, 0.0, None, None, None]
    return [msgspec.msgpack.encode(fields)]


_outputs = msgspec.msgpack.Decoder(wire.Outputs)


def decode_outputs(payload: Sequence[Any]) -> list[wire.Output]:
    return _outputs.decode(payload[0]).outputs
