"""What was measured of an engine, as plain values."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from controller.model.profile import LatencyProfile


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one step, as `LatencyProfile.step_time_s` takes it."""

    prefill: tuple[tuple[int, int], ...] = ()
    """For each prompt or chunk: tokens computed in this step, tokens computed before."""
    num_decoding: int = 0
    num_context_tokens: int = 0

    @property
    def num_prefill_tokens(self) -> int:
        return sum(num_new for num_new, _ in self.prefill)

    def time_s(self, profile: LatencyProfile) -> float:
        return profile.step_time_s(self.prefill, self.num_decoding, self.num_context_tokens)


@dataclass(frozen=True, slots=True)
class Point:
    """Steps that follow each other, and how long they took together: the median of the repeats."""

    steps: tuple[Step, ...]
    time_s: float

    def fitted_s(self, profile: LatencyProfile) -> float:
        return sum(step.time_s(profile) for step in self.steps)

    def error(self, profile: LatencyProfile) -> float:
        """Relative to what was measured; positive where the profile is too slow."""
        return self.fitted_s(profile) / self.time_s - 1


@dataclass(frozen=True, slots=True)
class StepPoints:
    """`prefill`: single prompts, whole. `decode`: steps in which all decode. `mixed`: steps that
    prefill whole prompts beside decodes; nothing is fitted to them."""

    prefill: tuple[Point, ...] = ()
    decode: tuple[Point, ...] = ()
    mixed: tuple[Point, ...] = ()
    decode_excess: float = 0.0
    """How much longer decode steps took in the mean than in the median, which is their point's."""

    def by_kind(self) -> Iterator[tuple[str, tuple[Point, ...]]]:
        return iter((("prefill", self.prefill), ("decode", self.decode), ("mixed", self.mixed)))


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """A stage of `num_bytes` took `stage_s` over the KV link, and one of a single block
    `one_block_s`: the fastest rounds."""

    num_bytes: int
    stage_s: float
    one_block_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.stage_s


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What the engine says of itself; the names are those of `LatencyProfile`.

    `max_chunk_tokens`: what a step computes of one prompt. `kv_block_bytes` is 0 where other
    processes hold the KV cache, so that nothing can be copied from it.
    """

    block_size: int
    num_total_blocks: int
    watermark_blocks: int
    max_num_running: int
    max_num_batched_tokens: int
    max_chunk_tokens: int
    max_model_len: int
    kv_block_bytes: int

    @property
    def watermark_ratio(self) -> float:
        """What gives `watermark_blocks` again where it is rounded as vLLM rounds it."""
        if not self.watermark_blocks:
            return 0.0
        return (self.watermark_blocks + 0.5) / (self.num_total_blocks + 1)


@dataclass(frozen=True, slots=True)
class Measured:
    sizes: EngineSizes
    points: StepPoints
    link: LinkFigures | None
    """None: both figures that come of it were given."""
    waited_ratio: float
    """Of the time that the steps were measured, what the engine's thread waited for a core that
    others had; no point counts these waits."""


@dataclass(frozen=True, slots=True)
class FitError:
    """Relative, without its sign, over some points."""

    median: float
    largest: float

    @classmethod
    def of(cls, points: tuple[Point, ...], profile: LatencyProfile) -> "FitError | None":
        """None without points."""
        errors = [abs(point.error(profile)) for point in points]
        return cls(median(errors), max(errors)) if errors else None
