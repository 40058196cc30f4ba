"""What may stand in `[engine]`, by a vLLM of a few lines; tests/contract has the real one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import WrongSettingError
from controller.main.checks import engine_args, vllm_declarations
from controller.main.checks.engine_args import check_engine_args
from controller.main.checks.vllm_declarations import Source

SOURCES = {
    "engine/arg_utils.py": """
from typing import Any, Literal
from vllm.config import CacheConfig, ModelConfig, PartsConfig
from vllm.config.kinds import Dtype
from torch import dtype as torch_dtype

class EngineArgs:
    max_model_len: int = ModelConfig.max_model_len
    max_num_seqs: int | None = None
    tensor_parallel_size: int = 1
    kv_cache_memory_bytes: int | None = None
    gpu_share: float = CacheConfig.share
    dtype: Dtype = ModelConfig.dtype
    names: set[str] = get_field(ModelConfig, "names")
    looked_at: Dtype = ModelConfig.looked_at
    parts: PartsConfig = get_field(ModelConfig, "parts")
    processors: list[str | type[object]] | None = None
    only_python: torch_dtype = None
    quoted: "dict[str, Any] | None" = None
    _own: int = 0

    def create(self):
        return CacheConfig(sequences=self.max_num_seqs)

class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
""",
    "config/__init__.py": """
from .kinds import Dtype
from vllm.config.parts import PartsConfig

class CacheConfig:
    sequences: int = Field(default=4, ge=1)
    share: float = Field(default=0.9, gt=0, le=1)

class ModelConfig:
    max_model_len: int = Field(default=None, ge=-1)
    dtype: Dtype = "auto"
    names: set[str] = Field(default_factory=set)
    looked_at: Dtype = "auto"

    @field_validator("looked_at", mode="before")
    def look(cls, value): ...
""",
    "config/kinds.py": """
from typing import Literal
Small = Literal["half", "float16"]
Dtype = Literal["auto", Small, "float32"]
""",
    "config/parts.py": """
class Base:
    level: int = Field(0, ge=0, le=3)

class PartsConfig(Base):
    counted: ClassVar[int] = 0
    copy: bool = False
    inner: dict[str, int] | None = None
""",
}


@pytest.fixture(autouse=True)
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in SOURCES.items():
        file = tmp_path / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    source = Source(tmp_path / "vllm")
    monkeypatch.setattr(vllm_declarations, "installed", lambda: source)
    caches = (engine_args.known_engine_args, engine_args.argument_kind)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def refusal(name: str, value: Any = 1) -> WrongSettingError:
    with pytest.raises(WrongSettingError) as caught:
        check_engine_args({name: value})
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("model", "llumctl up MODEL"),
        ("port", "endpoint.port"),
        ("scheduling_policy", "priority"),
        ("scheduler_cls", "hooks the scheduler"),
        ("data_parallel_size", "one engine per instance"),
        ("data_parallel_backend", "one engine per instance"),
        ("enable_log_requests", "prompts and answers are in no log"),
        ("api_key", "keys are in a file"),
        ("middleware", "code in front of the endpoint"),
        ("enable_scale_out", "opens routes"),
        ("otlp_traces_endpoint", "sends nothing anywhere"),
    ],
)
def test_what_is_refused_says_why(name: str, why: str) -> None:
    error = refusal(name)
    assert error.message.startswith(f"engine.{name} is refused: ")
    assert why in error.message


def test_an_option_of_the_endpoint_is_sent_there() -> None:
    error = refusal("tool_call_parser", "hermes")
    assert error.message == "engine.tool_call_parser is an option of the endpoint"
    assert error.hint.startswith("set endpoint.tool_call_parser")


def test_an_unknown_argument_names_the_nearest() -> None:
    assert refusal("max_model_length").message.endswith("did you mean max_model_len?")
    error = refusal("zzz")
    assert error.message == "engine.zzz is no engine argument of vLLM's"
    assert "no engine argument" in refusal("_own").message


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("max_num_seqs", "many", "must be an integer, not 'many'"),
        ("max_num_seqs", True, "must be an integer, not True"),
        ("max_num_seqs", 1.5, "must be an integer, not 1.5"),
        ("max_num_seqs", 0, "must be at least 1, not 0"),
        ("max_model_len", -2, "must be at least -1, not -2"),
        ("gpu_share", 1.01, "must be at most 1, not 1.01"),
        ("gpu_share", 0, "must be greater than 0, not 0"),
        ("dtype", "flot32", "must be 'auto', 'half', 'float16' or 'float32', not 'flot32'"),
        ("names", "a", "must be an array, not 'a'"),
        ("processors", [1], ".0 must be a string, not 1"),
        ("parts", {"levl": 1}, "parts.levl is a key that vLLM does not have there"),
        ("parts", {"level": 4}, "parts.level must be at most 3, not 4"),
        ("parts", {"counted": 4}, "parts.counted is a key that vLLM does not have there"),
        ("parts", {"inner": {"a": "b"}}, "parts.inner.a must be an integer, not 'b'"),
        ("quoted", 3, "must be a table, not 3"),
        ("tensor_parallel_size", None, "must be an integer, not None"),
    ],
)
def test_values_are_checked_against_what_vllm_declares(name: str, value: Any, why: str) -> None:
    assert why in refusal(name, value).message


def test_a_choice_names_the_nearest() -> None:
    assert "llumctl up --engine-arg dtype=float32" in refusal("dtype", "flot32").hint


def test_a_string_that_was_read_as_a_number_is_told_how_to_write_it() -> None:
    assert refusal("dtype", 3).hint == ""
    assert "processors" in refusal("processors", 3).message


def test_what_vllm_takes_is_taken() -> None:
    check_engine_args(
        {
            "max_model_len": None,
            "max_num_seqs": 1,
            "gpu_share": 1,
            "dtype": "half",
            "names": ["a"],
            "looked_at": "HALF",
            "parts": {"level": 3, "copy": True, "inner": {"a": 1}},
            "processors": ["m:f"],
            "only_python": "anything",
            "quoted": {"a": [1]},
        }
    )


def test_only_the_backend_whose_grammars_frontends_try() -> None:
    for backend in ("guidance", "outlines", "lm-format-enforcer"):
        with pytest.raises(WrongSettingError, match=f"refused: not {backend}") as caught:
            engine_args.check_grammar_backend({"backend": backend})
        assert caught.value.hint == "leave backend out"
    for config in ({}, {"backend": "auto"}, {"backend": "xgrammar"}):
        engine_args.check_grammar_backend(config)
