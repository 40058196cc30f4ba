"""The parts of a plan for a cluster with emulated engines. Emulated engines compute nothing, so
they need neither a GPU nor memory for weights and KV cache, and their sizes are in the profile. The
frontends are still vLLM's, with the embedded model's tokenizer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.api.errors import LlumctlError, UsageError
from controller.api.settings.settings import EmulatedTable, Settings
from controller.api.settings.vllm_options import engine_options
from controller.main.machine.capacity import FRONTEND_BYTES, available_bytes, gib
from controller.model.profile import LatencyProfile, ModelConfig, load_profile

INSTANCE_BYTES = 120_000_000
DEFAULT_INSTANCES = 4
# A value for an argument that vLLM's configuration needs on a CPU. No KV cache is made.
UNUSED_KV_BYTES = 1 << 20
# Attention on CPUs needs this block size. Later the frontends get the profile's size from the
# instances.
CPU_BLOCK_TOKENS = 32


def is_emulated(settings: Settings) -> bool:
    return settings.cluster.engine == "emulated"


def profile_of(table: EmulatedTable) -> LatencyProfile:
    """The profile, with the table's `num_blocks`. The length of contexts is limited to what the
    blocks can hold."""
    try:
        profile = load_profile(table.profile)
        num_blocks = table.num_blocks or profile.num_total_blocks
        max_model_len = min(profile.max_model_len, num_blocks * profile.block_size)
        profile = replace(profile, num_total_blocks=num_blocks, max_model_len=max_model_len)
        model_config(profile, table)
    except ValueError as error:
        raise UsageError(
            f"emulated.profile: {error}", "llumctl up --engine emulated      (the default one)"
        ) from error
    return profile


def model_config(
    profile: LatencyProfile, table: EmulatedTable, host_cache_gib: float = 0.0
) -> ModelConfig:
    """The configuration of the engine model. Raises ValueError if its sizes do not go together."""
    return ModelConfig.of(
        profile,
        mode=table.mode,
        prefix_caching=table.prefix_caching,
        host_cache_bytes=int(host_cache_gib * 2**30),
    )


def with_changes(
    profile: LatencyProfile, table: EmulatedTable, args: Mapping[str, Any]
) -> tuple[LatencyProfile, EmulatedTable]:
    """The profile and the table of a plan, with other values for some keys of the table. The length
    of contexts does not change. Raises ValueError."""
    table = EmulatedTable.model_validate(table.model_dump() | dict(args))
    num_blocks = table.num_blocks if "num_blocks" in args else None
    if num_blocks is not None:
        holds = num_blocks * profile.block_size
        if holds < profile.max_model_len:
            raise ValueError(
                f"{num_blocks} blocks hold {holds} tokens, less than one request of"
                f" {profile.max_model_len}"
            )
        profile = replace(profile, num_total_blocks=num_blocks)
    model_config(profile, table)
    return profile, table


def engine_args(settings: Settings, profile: LatencyProfile, model: str) -> dict[str, Any]:
    """vLLM's arguments for the frontends. One of them allows contexts that are longer than those of
    the embedded model."""
    return {
        "model": model,
        "served_model_name": settings.served_model_name,
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": CPU_BLOCK_TOKENS,
        "kv_cache_memory_bytes": UNUSED_KV_BYTES,
        "max_model_len": profile.max_model_len,
        "hf_overrides": {"max_position_embeddings": profile.max_model_len},
        "scheduling_policy": "priority",
        # By this argument frontends know whether prompts with the same beginning share blocks.
        "enable_prefix_caching": settings.emulated.prefix_caching,
    } | engine_options(settings.endpoint)


def check_memory(num_instances: int, num_frontends: int) -> None:
    needed = num_instances * INSTANCE_BYTES + num_frontends * FRONTEND_BYTES
    available = available_bytes()
    if needed > available:
        fits = (available - num_frontends * FRONTEND_BYTES) // INSTANCE_BYTES
        raise LlumctlError(
            f"{num_instances} emulated instances and {num_frontends} frontends need about"
            f" {gib(needed)}, {gib(available)} are available",
            f"llumctl up --engine emulated -n {fits}" if fits > 0 else "free memory",
        )
