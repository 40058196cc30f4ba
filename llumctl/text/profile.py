"""What `llumctl profile` prints: points as measured and as fitted, the fit's error, the rest."""

from collections.abc import Iterator

from controller.main.profile.points import FitError
from controller.main.profile.profile_file import work
from controller.main.profile.run import BUSY_RATIO, UNSTEADY_RATIO, Profiled
from llumctl.text import output

HEADER = ("KIND", "WORK", "MEASURED", "FITTED", "ERROR")


def text_of(found: Profiled, *, colours: bool) -> str:
    profile = found.profile
    rows = [
        (kind, work(p), _ms(p.time_s), _ms(p.fitted_s(profile)), f"{p.error(profile):+.1%}")
        for kind, points in found.measured.points.by_kind()
        for p in points
    ]
    parts = [output.table(HEADER, rows, colours=colours), "", output.facts(list(_facts(found)))]
    return "\n".join(parts)


def _facts(found: Profiled) -> Iterator[tuple[str, str]]:
    profile, points = found.profile, found.measured.points
    yield "fit", _error(FitError.of((*points.prefill, *points.decode), profile))
    for kind, each in points.by_kind():
        yield f"  {kind}", _error(FitError.of(each, profile))
    yield (
        "prefill",
        f"{_ms(profile.prefill_base_s)} + {_us(profile.prefill_per_token_s)} per token"
        f" + {_us(profile.prefill_per_token_squared_s)} per token squared",
    )
    yield (
        "decode",
        f"{_ms(profile.decode_base_s)} + {_us(profile.decode_per_request_s)} per request"
        f" + {_us(profile.decode_per_context_token_s)} per token in the batch",
    )
    yield (
        "memory",
        f"{profile.num_total_blocks:,} blocks of {profile.block_size} tokens,"
        f" {profile.kv_bytes_per_token:,} bytes per token",
    )
    link, waited_ratio = found.measured.link, found.measured.waited_ratio
    if waited_ratio > BUSY_RATIO:
        yield (
            "busy",
            f"{waited_ratio:.0%} of the time the engine waited for a core that others had: not"
            " counted, but measure again on a quiet machine",
        )
    if (excess := points.decode_excess) > UNSTEADY_RATIO:
        yield (
            "unsteady",
            f"decode steps took {excess:.0%} longer in the mean than in the median, which is what"
            " counts: under load the engine will be slower than this, so measure again later",
        )
    if link is None:
        yield "copy", f"{profile.copy_bytes_per_s / 1e9:.2f} GB/s, given"
    else:
        yield (
            "copy",
            f"{link.bytes_per_s / 1e9:.2f} GB/s over the KV link on this machine,"
            f" {_ms(link.one_block_s)} for one block",
        )


def _error(error: FitError | None) -> str:
    if error is None:
        return "no point"
    return f"{error.median:.1%} off in the median, {error.largest:.1%} at most"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.3f}ms"


def _us(time_s: float) -> str:
    return f"{time_s * 1e6:.4g}us"
