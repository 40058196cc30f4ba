"""`llumctl profile` measures an engine and writes its latency profile."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llumctl import arguments, output
from llumctl.commands.options import Config

if TYPE_CHECKING:
    from controller.main.profile.points import FitError
    from controller.main.profile.run import Profiled
    from llumctl.config.settings import Flags

ROUNDS = 5


def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            help="'embedded' (the default), a folder, or a Hugging Face id.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write the profile there (./MODEL.toml)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A known figure of the profile, in place of the measured one; repeatable.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", help="How many times each point is measured.")
    ] = ROUNDS,
    instances: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--instances",
            help="How many instances will share this machine (as for up). Only one is started.",
        ),
    ] = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A vLLM engine argument, V as JSON; repeatable."),
    ] = None,
    config: Config = None,
) -> None:
    """Measure the step times of an engine, for simulations.

    The engine is started as llumctl up starts it. Its step times and sizes are written into a
    profile.
    """
    arguments.within(1, rounds, "--rounds")
    from llumctl.config import settings as settings_module

    flags: Flags = {
        ("cluster", "model"): ("MODEL", model),
        ("cluster", "instances"): ("--instances", instances),
    }
    settings, origins = settings_module.load_with_origins(config, flags, engine_arg or [])
    from controller.main.profile import run

    path = file or Path(f"{_file_stem(settings.cluster.model)}.toml")
    wanted = run.Wanted(path, force, rounds, run.parse_given(set_ or []))
    with settings_module.located(origins):
        found = run.run(settings, wanted, output.say)
    output.emit(_text(found))
    output.say(f"written to {path}")
    output.say(f"next:  llumctl up --engine emulated --profile {shlex.quote(str(path))}")


def _file_stem(model: str) -> str:
    """`Qwen/Qwen3-0.6B` -> `qwen3-0.6b`."""
    name = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]+", "-", name).strip(".-") or "model"


HEADER = ("KIND", "WORK", "MEASURED", "FITTED", "ERROR")


def _text(found: "Profiled") -> str:
    """The points as measured and as fitted, then the error of the fit and the other figures."""
    from controller.main.profile.run import work

    profile = found.profile
    rows = [
        (kind, work(p), _ms(p.time_s), _ms(p.fitted_s(profile)), f"{p.error(profile):+.1%}")
        for kind, points in found.measured.points.by_kind()
        for p in points
    ]
    parts = [output.table(HEADER, rows), "", output.facts(list(_facts(found)))]
    return "\n".join(parts)


def _facts(found: "Profiled") -> Iterator[tuple[str, str]]:
    from controller.main.profile.points import FitError
    from controller.main.profile.run import BUSY_RATIO, UNSTEADY_RATIO

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


def _error(error: "FitError | None") -> str:
    if error is None:
        return "no point"
    return f"{error.median:.1%} off in the median, {error.largest:.1%} at most"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.3f}ms"


def _us(time_s: float) -> str:
    return f"{time_s * 1e6:.4g}us"
