"""Which engine arguments a rolling restart may change, and how it refuses the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import UsageError
from controller.api.settings.settings import EmulatedTable, Settings
from controller.api.settings.vllm_options import (
    CHANGEABLE,
    CHANGEABLE_EMULATED,
    WHY_NOT_CHANGED,
    why_refused,
)
from controller.main import emulation
from controller.main.checks.engine_args import check_engine_change
from controller.main.checks.vllm_arguments import ARGUMENTS
from controller.main.plan import ClusterPlan

KV_BYTES = 64 << 20


def plan(tmp_path: Path, *, emulated: bool = False) -> ClusterPlan:
    sizes = {
        "num_attention_heads": 4,
        "head_dim": 64,
        "num_hidden_layers": 4,
        "torch_dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    profile = emulation.profile_of(EmulatedTable())
    return ClusterPlan(
        settings=Settings(),
        engine_args={
            "model": str(tmp_path),
            "kv_cache_memory_bytes": KV_BYTES,
            "max_model_len": 2000,
        },
        num_instances=2,
        num_frontends=1,
        num_gpus_per_instance=0,
        num_threads_per_instance=1,
        members_key="",
        control_token="",
        view_token="",
        api_keys=(),
        namespace="n",
        nonce="0a",
        state_dir="",
        log_dir="",
        temp_dir="",
        profile=profile if emulated else None,
    )


def check(of: ClusterPlan, given: dict[str, Any]) -> None:
    after = {key: each for key, each in given.items() if each is not None}
    check_engine_change(of, given, {}, after)


def refusal(of: ClusterPlan, **given: Any) -> str:
    """The message and the next command."""
    with pytest.raises(UsageError) as caught:
        check(of, given)
    return f"{caught.value.message} | {caught.value.hint}"


def test_what_leaves_moves_possible_may_change(tmp_path: Path) -> None:
    check(plan(tmp_path), {"max_num_seqs": 64, "enable_prefix_caching": False})
    check(plan(tmp_path), {"max_num_seqs": None})
    check(plan(tmp_path), {"kv_cache_memory_bytes": 2 * KV_BYTES})
    all_emulated = {"mode": "prefill-first", "prefix_caching": False, "speed": 2.5}
    check(plan(tmp_path, emulated=True), {**all_emulated, "num_blocks": 4000})
    assert set(all_emulated) | {"num_blocks"} == CHANGEABLE_EMULATED


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_num_seq": 1}, "is not an engine argument of vLLM; did you mean max_num_seqs?"),
        ({"max_num_seq": 1}, "llumctl restart --rolling --engine-arg max_num_seqs=..."),
        ({"qqqq": 1}, "is not an engine argument of vLLM | they are: async_scheduling"),
        ({"max_num_seqs": "many"}, "must be an integer"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"dtype": "float16"}, "requests move only between engines whose KV blocks are alike"),
        ({"dtype": "float16"}, "llumctl down      then      llumctl up --engine-arg dtype=..."),
        ({"block_size": 16}, "KV blocks are alike"),
        ({"block_size": None}, "KV blocks are alike"),
        ({"tensor_parallel_size": 2}, "KV blocks are alike"),
        ({"model": "other"}, "only with the model with which they began"),
        ({"max_model_len": 100}, "the frontends accept requests by it"),
        ({"tokenizer": "other"}, "the frontends may depend on it"),
        ({"scheduling_policy": "fcfs"}, "cannot be changed by a rolling restart"),
        ({"compilation_config": {"backend": "mine.py"}}, "names code to run"),
        ({"kv_cache_memory_bytes": 1 << 20}, "less than one request of max_model_len = 2000"),
        ({"kv_cache_memory_bytes": 1 << 20}, "llumctl restart --rolling --engine-arg kv_cache"),
        ({"kv_cache_memory_bytes": 1 << 50}, "2 instances would take 2097151.9 GiB more"),
    ],
)
def test_refusals(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    assert words in refusal(plan(tmp_path), **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sped": 2}, "is not a setting of an emulated engine; did you mean speed?"),
        ({"max_num_seqs": 2}, "is not a setting of an emulated engine"),
        ({"profile": "other"}, "KV blocks are alike"),
        ({"profile": "other"}, "set emulated.profile in the configuration"),
        ({"speed": "fast"}, "emulated.speed must be a number"),
        ({"speed": 0}, "emulated.speed must be greater than 0"),
        ({"mode": "whole"}, "emulated.mode must be"),
        ({"num_blocks": 2}, "2 blocks hold 32 tokens, less than one request of"),
    ],
)
def test_refusals_of_emulated_engines(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    assert words in refusal(plan(tmp_path, emulated=True), **given)


def test_a_gpus_memory_is_left_to_vllm(tmp_path: Path) -> None:
    of = plan(tmp_path).model_copy(update={"num_gpus_per_instance": 1})
    check(of, {"kv_cache_memory_bytes": 1 << 50})


def test_the_lists_name_arguments_of_vllms() -> None:
    known = ARGUMENTS.keys()
    assert known >= CHANGEABLE
    assert not {name for name in CHANGEABLE if why_refused(name)}
    assert not CHANGEABLE & set(WHY_NOT_CHANGED)
    assert set(WHY_NOT_CHANGED) - {"profile"} <= known | {"model"}
    assert set(EmulatedTable.model_fields) > CHANGEABLE_EMULATED


def test_an_emulated_engine_is_made_with_the_changes(tmp_path: Path) -> None:
    of = plan(tmp_path, emulated=True)
    assert of.profile is not None
    profile, table = emulation.with_changes(
        of.profile, of.settings.emulated, {"num_blocks": 4000, "speed": 2.0}
    )
    assert (profile.num_total_blocks, table.speed) == (4000, 2.0)
    assert profile.max_model_len == of.profile.max_model_len
    assert emulation.with_changes(of.profile, of.settings.emulated, {}) == (
        of.profile,
        of.settings.emulated,
    )
