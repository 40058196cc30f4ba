"""`llumctl profile`: starts an engine in a process of its own, has it measured, fits a profile to
the measurements, and writes the profile's file.

The engine's process has its own session, so that Ctrl-C reaches only this process. This process
then ends the engine's process and everything that it has started."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

import msgspec

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.api.interrupts import no_interrupts, stops_interrupt
from controller.api.settings.settings import Settings
from controller.api.state import run_state, user_files
from controller.api.text.hints import own_version
from controller.core.load.step_times import StepCosts
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.checks.engine_args import check_engine_args, explain_cause
from controller.main.checks.preflight import check_vllm_version
from controller.main.machine.capacity import cpu_name, default_frontends, num_cores
from controller.main.machine.processes import Session, sweep
from controller.main.machine.ray_environment import NONCE_VARIABLE, own_environment
from controller.main.profile.points import (
    DegenerateError,
    Done,
    Failed,
    FitError,
    Measured,
    Message,
    NoLink,
    Point,
    Said,
    StepPoints,
    Task,
    fit,
)
from controller.model.profile import LatencyProfile, checked

COMMAND = (sys.executable, "-P", "-m", "controller.main.profile.engine_process")
LOG = "profile.log"
"""The file in the state folder with vLLM's output during the measurement."""
LINK_KEYS = frozenset({"kv_bytes_per_token", "copy_bytes_per_s"})
BUSY_RATIO = 0.05
"""A part of the measured time. If the waits for a core took a larger part, the profile says that
the machine was busy."""
UNSTEADY_RATIO = 0.05
"""If the mean time of decode steps exceeds their median by a larger part, the profile says that the
machine was unsteady."""

EXAMPLE = "llumctl profile --set copy_bytes_per_s=10e9"
GROUPS = ("description", "block_size", "prefill_base_s")
"""Before each of these fields a file has an empty line, except at its beginning."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for. `given`: figures for the profile that are taken as they are and not
    measured."""

    path: Path
    force: bool
    num_rounds: int
    given: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Profiled:
    profile: LatencyProfile
    measured: Measured


def run(settings: Settings, wanted: Wanted, report: Report) -> Profiled:
    """Measures an engine and writes its profile. If it raises LlumctlError, no file was written."""
    if emulation.is_emulated(settings):
        raise UsageError(
            "the engines of this configuration are emulated: they keep a profile, and cannot be"
            " measured",
            "LLUMCTL_CLUSTER_ENGINE=vllm llumctl profile",
        )
    check_target(wanted.path, force=wanted.force)
    check_vllm_version()
    check_engine_args(settings.vllm_args)
    engine_args, num_threads = _engine(settings)
    task = Task(
        engine_args=engine_args,
        num_rounds=wanted.num_rounds,
        status_interval_s=settings.scheduler.status_interval_s,
        with_link=not wanted.given.keys() >= LINK_KEYS,
    )
    model = settings.cluster.model
    with stops_interrupt():
        measured = _measured(task, num_threads, model, report)
        try:
            constants = fit(measured.points)
        except DegenerateError as error:
            raise LlumctlError(
                f"{model} cannot be fitted by a profile: {error}",
                "llumctl profile --engine-arg max_model_len=8192",
            ) from error
        profile = profile_of(measured, constants, wanted, _subject(model, num_threads))
        text = text_of(profile, measured.points)
        write(wanted.path, text, force=wanted.force)
    return Profiled(profile, measured)


def profile_of(
    measured: Measured, constants: StepCosts, wanted: Wanted, subject: str
) -> LatencyProfile:
    """The profile as it will be written to its file, with the error of the fit in `source`."""
    sizes, link = measured.sizes, measured.link
    values = {
        "description": subject,
        "measured": True,
        "block_size": sizes.block_size,
        "num_total_blocks": sizes.num_total_blocks,
        "watermark_ratio": sizes.watermark_ratio,
        "max_num_running": sizes.max_num_running,
        "max_num_batched_tokens": sizes.max_num_batched_tokens,
        "max_model_len": sizes.max_model_len,
        "kv_bytes_per_token": sizes.kv_block_bytes // sizes.block_size,
        "copy_bytes_per_s": link.bytes_per_s if link else 0.0,
        **asdict(constants),
    }
    figures = rounded(values | wanted.given)
    profile = LatencyProfile(name=wanted.path.stem, **{"source": "", **figures})
    if "source" in wanted.given:
        return profile
    source = "\n".join(_source(measured, profile, wanted))
    return LatencyProfile(name=wanted.path.stem, **figures, source=source)


def _source(measured: Measured, profile: LatencyProfile, wanted: Wanted) -> Iterator[str]:
    vllm = " ".join(check_vllm_version())
    yield (
        f"Measured on {time.strftime('%Y-%m-%d')} by llumctl profile {own_version()} with {vllm},"
        f" medians of {wanted.num_rounds} rounds,"
    )
    yield "without a prefix cache. Errors are relative, of what this profile gives."
    for kind, points in measured.points.by_kind():
        error = FitError.of(points, profile)
        if error is not None:
            fitted = " Nothing is fitted to them." if kind == "mixed" else ""
            yield (
                f"{kind.capitalize()}: {len(points)} points, {error.median:.1%} off in the median,"
                f" {error.largest:.1%} at most.{fitted}"
            )
    if (link := measured.link) is not None:
        yield (
            f"Copy: the fastest stage of {link.num_bytes / 1e6:.1f} MB over the KV link to another"
            f" process of this machine, no network; one block took {link.one_block_s * 1e3:.2f} ms."
        )
    if measured.waited_ratio > BUSY_RATIO:
        yield (
            f"The machine was busy: for {measured.waited_ratio:.0%} of the time the engine's thread"
            " waited for a core, which is not counted."
        )
    if (excess := measured.points.decode_excess) > UNSTEADY_RATIO:
        yield (
            f"The machine was unsteady: decode steps took {excess:.0%} longer in the mean than in"
            " the median, which is what counts."
        )
    if wanted.given:
        yield f"Given by hand: {', '.join(wanted.given)}."


def _engine(settings: Settings) -> tuple[dict[str, Any], int]:
    """vLLM's arguments and the number of threads that an instance would get from `up`."""
    planned = preflight.planned(settings)
    model, config_file = preflight.resolve_model(settings.cluster.model)
    args = planned.engine_args | {"model": model}
    if not planned.num_gpus:
        preflight.check_kv_cache(args, config_file)
        preflight.check_memory(args, 1)
    num_frontends = settings.cluster.frontends or default_frontends(num_cores(), 0)
    num_threads = preflight.threads_per_rank(
        planned.num_instances * preflight.num_ranks(args), num_frontends
    )
    return args | {"enable_prefix_caching": False}, num_threads


def _measured(task: Task, num_threads: int, model: str, report: Report) -> Measured:
    log = run_state.state_root() / LOG
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    report(f"starting an engine of {model}; log: {log}")
    with _engine_process(task, num_threads, log) as messages:
        for line in messages:
            match msgspec.json.decode(line, type=Message):
                case Said(text):
                    report(text)
                case Failed(doing, detail):
                    raise explain_cause(f"{doing} ({model})", detail, log)
                case NoLink():
                    raise UsageError(
                        f"nothing can be copied from the KV cache of {model}: its engine keeps it"
                        " in other processes",
                        "llumctl profile --set copy_bytes_per_s=... --set kv_bytes_per_token=...",
                    )
                case Done(measured):
                    return measured
    raise LlumctlError(f"the engine of {model} died while it was measured", f"less {log}")


@contextmanager
def _engine_process(task: Task, num_threads: int, log: Path) -> Iterator[IO[bytes]]:
    """Runs the engine's process, and yields a file of its messages. When the block is left, that
    process and all that it started have ended."""
    nonce = secrets.token_hex(8)
    environment = own_environment() | {NONCE_VARIABLE: nonce, "OMP_NUM_THREADS": str(num_threads)}
    ours, theirs = os.pipe()
    process: subprocess.Popen[bytes] | None = None
    with os.fdopen(ours, "rb") as messages:
        try:
            with user_files.new_private(log) as output, os.fdopen(theirs, "wb"):
                process = subprocess.Popen(
                    [*COMMAND, str(theirs)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs],
                    env=environment,
                    start_new_session=True,
                )
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            process.stdin.flush()
            yield messages
        finally:
            with no_interrupts():
                _end(process, nonce)


def _end(process: subprocess.Popen[bytes] | None, nonce: str) -> None:
    session = None
    if process is not None:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        session = Session(process.pid, Path.cwd())
    sweep(nonce, session)


def _subject(model: str, num_threads: int) -> str:
    if gpus := preflight.visible_gpus():
        return f"{model} on {gpus[0].partition(': ')[2]}"
    threads = f"{num_threads} thread{'s' * (num_threads > 1)}"
    return f"{model} on a CPU ({cpu_name()}), {threads}"


def check_target(path: Path, *, force: bool) -> None:
    """Refuses a file that could not be written, or that would be overwritten, before anything is
    measured."""
    if path.suffix != ".toml":
        raise UsageError(f"-o: {path} does not end in .toml, as a profile's file must")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        why = "it is a folder" if path.is_dir() else f"you cannot write into {path.parent}/"
        raise LlumctlError(f"{path} cannot be written: {why}", "llumctl profile -o FILE")
    if os.path.lexists(path) and not force:
        raise _is_there(path)


def write(path: Path, text: str, *, force: bool) -> None:
    """Writes the complete file or nothing. Raises RefusedError if the file exists by now, unless
    `force` is set, and LlumctlError if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # in one step, and never over another file
    except FileExistsError as error:
        raise _is_there(path) from error
    except OSError as error:
        raise LlumctlError(
            f"{path} was not written: {error.strerror}", "llumctl profile -o FILE"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def text_of(profile: LatencyProfile, points: StepPoints) -> str:
    lines: list[str] = []
    for field in fields(profile):
        if field.name != "name":
            lines += [""] if lines and field.name in GROUPS else []
            lines.append(f"{field.name} = {_toml(getattr(profile, field.name))}")
    lines += ["", *(f"# {line}".rstrip() for line in _point_lines(profile, points))]
    return "\n".join(lines) + "\n"


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with floats rounded to four digits. A file has no more digits, and the errors in
    it are computed with these rounded figures."""
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}


def _point_lines(profile: LatencyProfile, points: StepPoints) -> Iterator[str]:
    yield "Measured, then what the profile gives:"
    for kind, found in points.by_kind():
        for point in found:
            figures = f"{point.time_s * 1e3:10.3f} ms {point.fitted_s(profile) * 1e3:10.3f} ms"
            yield f"{kind:<8}{work(point):<42}{figures} {point.error(profile):+7.1%}"


def work(point: Point) -> str:
    """The work of a point in words: `1,024 tokens in 2 steps`, or `8 decoding, 4,096 tokens`."""
    steps = point.steps
    num_prefill = sum(step.num_prefill_tokens for step in steps)
    num_decoding, num_context = steps[0].num_decoding, steps[0].num_context_tokens
    decodes = f"{num_decoding} decoding, {num_context:,} tokens"
    if not num_prefill:
        return decodes
    if num_decoding:
        return f"{num_prefill:,} prefilled; {decodes}"
    return f"{num_prefill:,} tokens in {len(steps)} step{'s' * (len(steps) > 1)}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    if "\n" not in value:
        return f'"{_inside(value)}"'
    return (
        '"""\n'
        + "\n".join(_inside(line) for line in value.removesuffix("\n").split("\n"))
        + '\n"""'
    )


def _inside(line: str) -> str:
    """The content of a TOML string for this line: it is written as in JSON, but the one control
    character that JSON does not escape is escaped too."""
    return json.dumps(line, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def _is_there(path: Path) -> RefusedError:
    return RefusedError(
        f"{path} exists already", "llumctl profile -o FILE      or      llumctl profile --force"
    )


def parse_given(assignments: Iterable[str]) -> dict[str, Any]:
    """The figures in `--set` assignments. Values are written as in TOML, but texts need no quotes.
    Raises UsageError."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, raw = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise UsageError(f"--set: {assignment[:60]!r} is not of the form key=value", EXAMPLE)
        if key in found:
            raise UsageError(f"--set: {key} is given twice", EXAMPLE)
        try:
            found[key] = checked(key, _parsed(raw), "--set")
        except ValueError as error:
            raise UsageError(str(error), EXAMPLE) from error
    return found


def _parsed(raw: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw
    return parsed["value"] if len(parsed) == 1 else raw
