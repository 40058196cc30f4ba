"""The options of `llumctl simulate` and of the commands under it."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import UsageError
from llumctl.commands.options import TableOrJson, format_option

DEFAULT_PROFILE = "a10-llama-7b"
DEFAULT_POLICIES = ("llumnix+", "infaas++")
DEFAULT_SEEDS = 3
KNEE_POLICY = "infaas++"
KNEE_TARGET_S = 30.0
MAX_INSTANCES = 1024
MAX_SEEDS = 1000


class Mode(StrEnum):
    CHUNKED = "chunked"
    PREFILL_FIRST = "prefill-first"


class ShapeName(StrEnum):
    CONSTANT = "constant"
    DIURNAL = "diurnal"
    BURST = "burst"


# -- the load -----------------------------------------------------------------------------

Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE",
        help="S-S, M-M, L-L, S-L, L-S, sharegpt, burstgpt, IN,OUT in tokens, or a trace file.",
    ),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE",
        help="S-S, M-M, L-L, S-L, L-S, sharegpt, burstgpt, IN,OUT in tokens, or a trace file."
        " Repeatable.",
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", help="A recording or another trace file, as it was recorded."
    ),
]
Rates = Annotated[
    list[float] | None,
    typer.Option("--rate", metavar="R", help="Requests per second. Repeatable."),
]
NumRequests = Annotated[
    int | None,
    typer.Option("--requests", metavar="N", help="So many requests (10000; of a file all)."),
]
Cv = Annotated[
    float | None,
    typer.Option(metavar="C", help="Coefficient of variation of the gaps; 1 is Poisson (1)."),
]
ShapeOption = Annotated[
    ShapeName | None, typer.Option("--shape", help="The rate over time (constant).")
]
HighFraction = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of requests of high priority (0).")
]
NumClients = Annotated[
    int | None, typer.Option("--clients", metavar="N", help="So many clients send the requests.")
]
Speed = Annotated[
    float | None, typer.Option(metavar="X", help="A trace file so many times as fast.")
]
Start = Annotated[float | None, typer.Option(metavar="S", help="Begin there in a trace file.")]
Duration = Annotated[
    float | None, typer.Option(metavar="S", help="So many seconds of a trace file.")
]
DropTooLong = Annotated[
    bool,
    typer.Option(
        "--drop-too-long", help="Leave out requests that are longer than an instance's memory."
    ),
]

# -- the cluster --------------------------------------------------------------------------

Instances = Annotated[
    str,
    typer.Option(
        "--instances",
        "-n",
        metavar="N|A..B",
        help="How many instances, or each number from A to B.",
    ),
]
NumInstances = Annotated[
    str, typer.Option("--instances", "-n", metavar="N", help="How many instances.")
]
MaybeInstances = Annotated[
    str | None,
    typer.Option(
        "--instances",
        "-n",
        metavar="N|A..B",
        help="How many instances, or each number from A to B (16; with --autoscale so many at"
        " first, the middle of its range).",
    ),
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        "--autoscale",
        metavar="MIN..MAX",
        help="Instances come and go with the load; settings are --set autoscale.KEY=VALUE.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="NAME",
        help=f"A policy; repeatable ({' and '.join(DEFAULT_POLICIES)}).",
    ),
]
Policy = Annotated[str, typer.Option("--policy", "-p", metavar="NAME", help="A policy.")]
Profile = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="The engines' speed and size, by name or as TOML.")
]
ModeOption = Annotated[
    Mode,
    typer.Option(
        "--mode",
        help="How engines schedule: prompts in chunks beside decodes, or whole prompts first, as in"
        " the Llumnix paper.",
    ),
]
PrefixCaching = Annotated[
    bool, typer.Option("--prefix-caching", help="Engines keep the blocks of prompts they saw.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A scheduling setting as of llumctl set, e.g. migration.source_below_steps=160."
        " Repeatable.",
    ),
]
Faults = Annotated[
    str | None,
    typer.Option(
        metavar="LIST|FILE",
        help="SECONDS:KIND:INSTANCE[:FACTOR] with commas between, or a file with one per line;"
        " kinds are kill, drain, slow-steps, slow-links.",
    ),
]

# -- runs and figures ---------------------------------------------------------------------

NumSeeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        help=f"So many runs of each, with other seeds ({DEFAULT_SEEDS}; of a trace file 1).",
    ),
]
FirstSeed = Annotated[int, typer.Option("--seed", metavar="N", help="The first of the seeds.")]
WarmUp = Annotated[
    float, typer.Option(metavar="SHARE", help="Leave out the first requests, as 0.1 for a tenth.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", help="So many runs at once (one per core)."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse rates above saturation; exit 1 if a run reached no steady state.",
    ),
]
TtftTarget = Annotated[
    float | None,
    typer.Option(metavar="S", help="Say which number of instances has this P99 TTFT at most."),
]
TpotTarget = Annotated[float | None, typer.Option(metavar="S", help="The same of P99 TPOT.")]
KneeTarget = Annotated[
    float, typer.Option("--target-ttft-p99", metavar="S", help="P99 TTFT at the knee.")
]
OutputFormat = Annotated[TableOrJson, format_option]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw a picture, .png or .svg; - draws in the terminal."),
]

_SIZES = re.compile(r"(\d{1,5})(?:\.\.(\d{1,5}))?")


def sizes(text: str) -> list[int]:
    """Numbers of instances, as `16` or `8..16`."""
    found = _SIZES.fullmatch(text.strip())
    first = int(found[1]) if found else 0
    last = int(found[2]) if found and found[2] else first
    if not 1 <= first <= last <= MAX_INSTANCES:
        raise UsageError(
            f"--instances: {text[:60]!r} is neither a number from 1 to {MAX_INSTANCES} nor a range",
            "--instances 16      or      --instances 8..16",
        )
    return list(range(first, last + 1))


def autoscale(text: str, instances: str | None) -> tuple[int, int, int]:
    """The fewest and the most instances, and how many there are at first."""
    found = _SIZES.fullmatch(text.strip())
    least, most = (int(found[1]), int(found[2])) if found and found[2] else (0, 0)
    if not 1 <= least <= most <= MAX_INSTANCES:
        raise UsageError(
            f"--autoscale: {text[:60]!r} is no range from 1 to {MAX_INSTANCES}", "--autoscale 1..16"
        )
    if instances is None:
        return least, most, (least + most) // 2
    at_first = sizes(instances)
    if len(at_first) != 1 or not least <= at_first[0] <= most:
        raise UsageError(
            f"--instances: with --autoscale it is the number at first, from {least} to {most}",
            f"--autoscale {least}..{most} --instances {least}",
        )
    return least, most, at_first[0]


def seeds(first: int, num: int | None) -> list[int]:
    within(0, first, "--seed")
    within(1, num, "--seeds", MAX_SEEDS)
    return list(range(first, first + (DEFAULT_SEEDS if num is None else num)))


def within(
    least: float, value: float | None, flag: str, most: float | None = None, *, above: bool = False
) -> None:
    """Refuses what is below `least` (or equal, if it must be `above` it), above `most`, or not
    finite."""
    if value is None:
        return
    too_low = value <= least if above else value < least
    if not too_low and value < float("inf") and (most is None or value <= most):
        return
    bound = f"above {least:g}" if above else f"at least {least:g}"
    limit = "" if most is None else f" and at most {most:g}"
    raise UsageError(f"{flag}: must be {bound}{limit}, not {value:g}", "llumctl simulate --help")


def check_plot(plot: Path | None) -> None:
    """Fails before the runs rather than after them."""
    if plot is None or str(plot) == "-":
        return
    if plot.suffix not in (".png", ".svg"):
        raise UsageError(f"--plot: {plot} ends neither in .png nor in .svg", "--plot run.svg")
    if not plot.parent.is_dir():
        raise UsageError(f"--plot: there is no folder {plot.parent}", f"mkdir -p {plot.parent}")
