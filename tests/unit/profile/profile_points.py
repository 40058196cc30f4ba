"""Points as they would be measured of an engine with known constants."""

from dataclasses import replace

from controller.main.profile.engine_process import chunks_of
from controller.main.profile.points import EngineSizes, Point, Step, StepPoints
from controller.model.profile import LatencyProfile, load_profile

A10 = load_profile("a10-llama-7b")
SIZES = EngineSizes(
    block_size=16,
    num_total_blocks=851,
    watermark_blocks=8,
    max_num_running=64,
    max_num_batched_tokens=2560,
    max_chunk_tokens=2560,
    max_model_len=8192,
    kv_block_bytes=8 << 20,
)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8191)
BATCHES = ((1, 70), (8, 600), (64, 5000), (1, 4100), (3, 12400))


def prompt(num_tokens: int) -> tuple[Step, ...]:
    return tuple(Step((chunk,)) for chunk in chunks_of(num_tokens, SIZES.max_chunk_tokens))


def exact(*steps: Step, profile: LatencyProfile = A10) -> Point:
    point = Point(steps, 1.0)
    return replace(point, time_s=point.fitted_s(profile))


def points_of(profile: LatencyProfile = A10) -> StepPoints:
    return StepPoints(
        tuple(exact(*prompt(n), profile=profile) for n in LENGTHS),
        tuple(exact(Step((), *batch), profile=profile) for batch in BATCHES),
        (exact(Step(((64, 0),), 8, 600), profile=profile),),
    )
