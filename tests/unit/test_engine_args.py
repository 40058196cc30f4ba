"""Which arguments `[engine]` may have, and which of them a rolling restart may change;
tests/contract compares the table with vLLM."""

from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import UsageError, WrongSettingError
from controller.api.settings.settings import EmulatedTable
from controller.api.settings.vllm_options import (
    CHANGEABLE_EMULATED,
)
from controller.main import emulation
from controller.main.checks.engine_args import check_engine_args, check_engine_change
from controller.main.plan import ClusterPlan
from tests.unit.model_files import model_folder
from tests.unit.test_security import plan

COMPILATION = "compilation_config"


def test_what_is_refused_says_why() -> None:
    value: Any
    for name, value, why in (
        ("model", 1, "is refused: .*llumctl up MODEL"),
        ("port", 1, "is refused: .*endpoint.port"),
        ("scheduler_cls", 1, "is refused: .*hooks the scheduler"),
        ("data_parallel_size", 1, "is refused: .*one engine per instance"),
        ("enable_log_requests", 1, "is refused: .*logs must not contain prompts or answers"),
        ("api_key", 1, "is refused: .*keys are in a file"),
        ("middleware", 1, "is refused: .*code in front of the endpoint"),
        ("enable_scale_out", 1, "is refused: .*opens routes"),
        ("otlp_traces_endpoint", 1, "is refused: .*endpoint.otlp_traces_endpoint"),
        ("max_model_length", 1, "did you mean max_model_len"),
        ("zzz", 1, "is not an engine argument of vLLM$"),
        ("tool_call_parser", "hermes", "is an option of the endpoint"),
        ("max_num_seqs", "many", "must be an integer, not 'many'"),
        ("max_num_seqs", 0, "must be at least 1, not 0"),
        ("gpu_memory_utilization", 1.01, "must be at most 1, not 1.01"),
        ("enforce_eager", "yes", "must be true or false, not 'yes'"),
        ("dtype", "bfloat", "must be 'auto', 'half', 'float16', 'bfloat16', 'float' or 'float32'"),
        ("logits_processors", [1], ".0 must be a string, not 1"),
        (COMPILATION, {"leve": 3}, ".leve is a key that vLLM does not have there"),
        (COMPILATION, {"inductor_passes": {"a": 1}}, ".inductor_passes.a must be a string"),
        ("limit_mm_per_prompt", {"image": "x"}, "limit_mm_per_prompt.image must be an integer or"),
        ("structured_outputs_config", {"backend": "guidance"}, "refused: not guidance, but xgr"),
    ):
        with pytest.raises(WrongSettingError, match=why) as caught:
            check_engine_args({name: value})
        assert caught.value.exit_code == 2
        assert caught.value.key[:2] == ("engine", name)


def test_the_next_command() -> None:
    value: Any
    for name, value, hint in (
        ("tool_call_parser", "hermes", "set endpoint.tool_call_parser: llumctl up --help"),
        ("max_model_length", 1, "llumctl up --engine-arg max_model_len=..."),
        ("dtype", "flot32", "did you mean float32? llumctl up --engine-arg dtype=float32"),
        # a string that was read as a number
        ("revision", 3, """llumctl up --engine-arg revision='"3"'"""),
    ):
        with pytest.raises(WrongSettingError) as caught:
            check_engine_args({name: value})
        assert caught.value.hint == hint


def test_what_vllm_takes_is_taken() -> None:
    check_engine_args(
        {
            "max_model_len": None,
            "max_num_seqs": 1,
            "gpu_memory_utilization": 1,
            "dtype": "half",
            "cpu_offload_params": ["a"],
            "limit_mm_per_prompt": {"image": 2},
            "hf_overrides": {"a": {"b": 1}},
            "compilation_config": {"mode": "VLLM_COMPILE", "debug_dump_path": "/tmp/a"},
            "structured_outputs_config": {"backend": "xgrammar"},
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            "logits_processors": ["m:f"],
            "kv_cache_memory_bytes": None,
        }
    )
    check_engine_args({"structured_outputs_config": {"backend": "auto"}})


# -- changes by a rolling restart ---------------------------------------------------------------

KV_BYTES = 64 << 20


def started(tmp_path: Path, *, emulated: bool = False) -> ClusterPlan:
    args = {"kv_cache_memory_bytes": KV_BYTES, "max_model_len": 2000}
    args["model"] = model_folder(tmp_path)
    profile = emulation.profile_of(EmulatedTable()) if emulated else None
    changed = {"engine_args": args, "num_instances": 2, "profile": profile}
    return plan(tmp_path).model_copy(update=changed)


def check(of: ClusterPlan, given: dict[str, Any]) -> None:
    after = {key: each for key, each in given.items() if each is not None}
    check_engine_change(of, given, {}, after)


def test_what_leaves_moves_possible_may_change(tmp_path: Path) -> None:
    of = started(tmp_path)
    check(of, {"max_num_seqs": 64, "enable_prefix_caching": False})
    check(of, {"max_num_seqs": None})
    check(of, {"kv_cache_memory_bytes": 2 * KV_BYTES})
    of_gpus = of.model_copy(update={"num_gpus_per_instance": 1})
    check(of_gpus, {"kv_cache_memory_bytes": 1 << 50})  # a GPU's memory is left to vLLM
    check(of, {"tensor_parallel_size": 2})
    check(of.model_copy(update={"num_gpus_per_instance": 2}), {"tensor_parallel_size": 2})
    with pytest.raises(UsageError, match="needs 2 GPUs, and an instance has 1 until the cluster"):
        check(of_gpus, {"tensor_parallel_size": 2})
    all_emulated = {"mode": "prefill-first", "prefix_caching": False, "speed": 2.5}
    all_emulated |= {"num_blocks": 4000, "python": None}
    check(started(tmp_path, emulated=True), all_emulated)
    assert all_emulated.keys() == CHANGEABLE_EMULATED


SMALL, LARGE = {"kv_cache_memory_bytes": 1 << 20}, {"kv_cache_memory_bytes": 1 << 50}


def test_what_may_not_change(tmp_path: Path) -> None:
    given: dict[str, Any]
    for emulated, given, words in (
        (False, {"max_num_seq": 1}, "is not an engine argument of vLLM; did you mean max_num_seqs"),
        (False, {"max_num_seq": 1}, "llumctl restart --rolling --engine-arg max_num_seqs=..."),
        (False, {"qqqq": 1}, "is not an engine argument of vLLM | they are: async_scheduling"),
        (False, {"dtype": "float16"}, "requests move only between engines whose KV blocks are"),
        (False, {"dtype": "float16"}, "llumctl down      then      llumctl up --engine-arg dtype"),
        (False, {"block_size": None}, "KV blocks are alike"),
        (False, {"model": "other"}, "only with the model with which they began"),
        (False, {"max_model_len": 100}, "the frontends accept requests by it"),
        (False, {"tokenizer": "other"}, "the frontends may depend on it"),
        (False, {"scheduling_policy": "fcfs"}, "cannot be changed by a rolling restart"),
        (False, {"compilation_config": {"backend": "mine.py"}}, "names code to run"),
        (False, SMALL, "less than one request of max_model_len = 2000"),
        (False, LARGE, "2 instances would take 2097151.9 GiB more"),
        (True, {"sped": 2}, "is not a setting of an emulated engine; did you mean speed?"),
        (True, {"profile": "other"}, "set emulated.profile in the configuration"),
        (True, {"mode": "whole"}, "emulated.mode must be"),
        (True, {"num_blocks": 2}, "2 blocks hold 32 tokens, less than one request of"),
    ):
        with pytest.raises(UsageError) as caught:
            check(started(tmp_path, emulated=emulated), given)
        assert words in f"{caught.value.message} | {caught.value.hint}"
