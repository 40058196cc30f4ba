"""How fast and how large an engine is: the constants of one GPU with one model (`LatencyProfile`),
and the sizes and rules of the modelled engine that follow from them (`ModelConfig`). The formula
for the time of a step is that of `StepCosts`.
"""

import difflib
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from controller.core.load.snapshot import blocks_for
from controller.core.load.step_times import StepCosts

MAX_FILE_BYTES = 1 << 14
"""Profiles have some 600 bytes; tomllib is slow with long dotted keys."""
STEP_CONSTANTS = tuple(field.name for field in fields(StepCosts))
_MAY_BE_ZERO = {*STEP_CONSTANTS, "watermark_ratio"}
"""A fit gives a constant of zero if that part of the work takes too little time to be seen."""


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """One GPU with one model. `source` says where the figures come from. `measured` says whether
    somebody measured them, or whether they are estimates.

    Sizes: `block_size` tokens in a block; `num_total_blocks` blocks without vLLM's null block;
    `watermark_ratio`, the share of all blocks that admissions leave free (0 to 1); at most
    `max_num_running` requests in the batch; at most `max_num_batched_tokens` tokens in a step; at
    most `max_model_len` tokens in a request. `copy_bytes_per_s`: how fast KV cache is copied from
    one instance to another."""

    name: str
    description: str
    source: str
    measured: bool
    block_size: int
    num_total_blocks: int
    watermark_ratio: float
    max_num_running: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_bytes_per_token: int
    copy_bytes_per_s: float
    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_token_squared_s: float
    decode_base_s: float
    decode_per_context_token_s: float
    decode_per_request_s: float

    def step_time_s(
        self, prefill: Sequence[tuple[int, int]], num_decoding: int, num_context_tokens: int
    ) -> float:
        """`StepCosts.time_s` with this profile's constants."""
        return self.costs.time_s(prefill, num_decoding, num_context_tokens)

    @property
    def costs(self) -> StepCosts:
        """The constants of a step alone."""
        return StepCosts(*(getattr(self, name) for name in STEP_CONSTANTS))


def profile_names() -> list[str]:
    """The names of the profiles that come with llumctl, in order."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in _shipped().iterdir()
        if entry.name.endswith(".toml")
    )


def load_profile(name_or_path: str) -> LatencyProfile:
    """The profile that comes with llumctl under this name, or the profile in the TOML file at this
    path. A name with a slash, or one that ends in .toml, is a path.

    Raises ValueError, which says what is wrong, if there is no such profile or file, or if the file
    does not contain a profile."""
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
            if len(raw) > MAX_FILE_BYTES:
                raise ValueError(
                    f"{name_or_path} is larger than {MAX_FILE_BYTES} bytes: no profile"
                )
            text = raw.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read the profile {name_or_path}: {error}") from error
        return _parse(text, path.stem, name_or_path)
    names = profile_names()
    if name_or_path not in names:
        near = difflib.get_close_matches(name_or_path, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise ValueError(f"there is no profile {name_or_path!r}: {hint}")
    text = (_shipped() / f"{name_or_path}.toml").read_text("utf-8")
    return _parse(text, name_or_path, f"{name_or_path}.toml")


def _shipped() -> Any:
    return resources.files("controller.model") / "profiles"


def _parse(text: str, name: str, where: str) -> LatencyProfile:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is not TOML: {error}") from error
    values = {key: checked(key, value, where) for key, value in table.items()}
    missing = [f.name for f in fields(LatencyProfile) if f.name not in (*values, "name")]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}")
    profile = LatencyProfile(name=name, **values)
    for what, time_s in (
        ("prefill", profile.step_time_s([(1, 0)], 0, 0)),
        ("decode", profile.step_time_s([], 1, 1)),
    ):
        if not time_s:
            raise ValueError(
                f"{where}: all constants of {what} are 0: its steps would take no time"
            )
    return profile


def checked(key: str, value: Any, where: str) -> Any:
    """The value of one key of a profile. Raises ValueError, which begins with `where`."""
    known = {f.name: f.type for f in fields(LatencyProfile) if f.name != "name"}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{where}: unknown key {key!r}{hint}")
    wanted: Any = known[key]
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise ValueError(
            f"{where}: {key} must be of type {wanted.__name__}, not {type(value).__name__}"
        )
    least = 0.0 if key in _MAY_BE_ZERO else math.nextafter(0.0, 1.0)
    if wanted in (int, float) and not least <= value < math.inf:
        raise ValueError(f"{where}: {key} must be positive, not {value}")
    if key == "watermark_ratio" and value >= 1:
        raise ValueError(f"{where}: watermark_ratio must be below 1")
    return value


Mode = Literal["chunked", "prefill-first"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and rules of one engine; the names are vLLM's.

    `num_total_blocks` does not include the null block. `long_prefill_token_threshold` limits the
    size of a chunk while the engine has more than one request; 0 means no limit. In vLLM 0.32 no
    further running request takes part in a step after a request that evicted itself, hence
    `own_eviction_ends_step`; since 0.33 they do. `num_host_blocks`: how many blocks the host cache
    has room for; 0: there is none.

    Raises ValueError if a size is not positive, or if a step is too small for the decodes of a
    batch."""

    block_size: int
    num_total_blocks: int
    watermark_blocks: int
    max_num_running: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    mode: Mode
    long_prefill_token_threshold: int = 0
    own_eviction_ends_step: bool = True
    num_host_blocks: int = 0

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "num_total_blocks",
            "max_num_running",
            "max_num_batched_tokens",
            "max_model_len",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0 <= self.watermark_blocks < self.num_total_blocks:
            raise ValueError("watermark_blocks must be below num_total_blocks and not negative")
        if self.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must not be negative")
        if self.mode not in ("chunked", "prefill-first"):
            raise ValueError(f"mode must be chunked or prefill-first, not {self.mode!r}")
        if self.max_num_batched_tokens < self.max_num_running:
            raise ValueError("max_num_batched_tokens must not be below max_num_running")

    def end_tokens(self, num_prompt_tokens: int, max_output_tokens: int) -> int:
        """The number of tokens that a request with these lengths has at its end."""
        return min(num_prompt_tokens + max_output_tokens, self.max_model_len)

    def refusal(self, num_prompt_tokens: int, max_output_tokens: int) -> str:
        """Why a request with these lengths could never run on this engine; empty if it could."""
        if num_prompt_tokens < 1 or max_output_tokens < 1:
            return "has no prompt or wants no output"
        if num_prompt_tokens >= self.max_model_len:
            return (
                f"has {num_prompt_tokens} prompt tokens, but max_model_len is"
                f" {self.max_model_len} with the outputs"
            )
        end_tokens = self.end_tokens(num_prompt_tokens, max_output_tokens)
        # The last token of a request is never an input, so it needs no slot.
        if blocks_for(end_tokens - 1, self.block_size) > self.num_total_blocks:
            return (
                f"grows to {end_tokens} tokens, but the KV cache holds"
                f" {self.num_total_blocks * self.block_size}"
            )
        return ""

    @classmethod
    def of(
        cls,
        profile: LatencyProfile,
        *,
        mode: Mode = "chunked",
        prefix_caching: bool = True,
        host_cache_bytes: int = 0,
    ) -> Self:
        """The engine that `profile` describes. Its watermark is rounded as vLLM rounds it."""
        block_bytes = profile.kv_bytes_per_token * profile.block_size
        return cls(
            block_size=profile.block_size,
            num_total_blocks=profile.num_total_blocks,
            watermark_blocks=int(profile.watermark_ratio * (profile.num_total_blocks + 1)),
            max_num_running=profile.max_num_running,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            max_model_len=profile.max_model_len,
            prefix_caching=prefix_caching,
            mode=mode,
            num_host_blocks=host_cache_bytes // block_bytes if prefix_caching else 0,
        )
