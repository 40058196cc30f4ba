"""The time from starting a server until it serves, beside vLLM's own server.

The servers start in turn, one at a time, for some rounds. The first round has a cold page cache, so
the medians are those of a warm one. `first` is the first completion that succeeds; `ready` is the
first one after every engine serves (for vLLM's own server both are the same).
"""

import argparse
import re
import statistics
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import make_plan
from benchmarks.process_groups import wait_until_quiet
from benchmarks.servers import LlumctlServer, Server, ServerError, VllmServer
from controller.api.interrupts import no_interrupts, stops_interrupt
from controller.api.state import run_state

# Where llumctl's start goes: the log lines of its processes that mark a step, by their time

# Of all matching lines in a pattern's files the last one counts: it is the slowest member's.
_MARKS = (
    ("Ray is up", "head.log", r"Started a local Ray instance"),
    ("controller launched", "head.log", r"controller launched"),
    ("members said hello", "controller.log", r"is incarnation"),
    ("vLLM imported by instances", "i-*.log", r"global random seed is set"),
    ("engine built", "i-*.log", r"Initializing a V1 LLM engine"),
    ("model loading", "i-*.log", r"Starting to load model"),
    ("engine ready", "i-*.log", r"init engine"),
    ("instances serve", "controller.log", r"i-\d+ \(incarnation \d+\) serves"),
    ("vLLM imported by frontend", "f-*.log", r"global random seed is set"),
    ("frontend configured", "f-*.log", r"Enabled custom fusions"),
    ("frontend serves", "controller.log", r"f-\d+ \(incarnation \d+\) serves"),
)
PHASES = tuple(name for name, _, _ in _MARKS)
_TIME = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d) (\d\d:\d\d:\d\d)(?:,(\d{3}))?")


def phases(server: LlumctlServer) -> dict[str, float]:
    """Seconds from the start of `llumctl up` until each phase; vLLM's own lines have whole
    seconds."""
    state = run_state.load(server.plan.cluster)
    if state is None:
        return {}
    found = {}
    for name, files, text in _MARKS:
        times_s = [
            seconds
            for file in Path(state.log_dir).glob(files)
            for line in file.read_text("utf-8", "replace").splitlines()
            if re.search(text, line) and (seconds := _line_time_s(line)) is not None
        ]
        if times_s:
            found[name] = max(times_s) - server.started_at_s
    return found


def _line_time_s(line: str) -> float | None:
    """Seconds since the epoch."""
    match = _TIME.search(line)
    if match is None:
        return None
    year, month, day, clock, millis = match.groups()
    text = f"{year or datetime.now().year}-{month}-{day} {clock}.{millis or '000'}"
    return datetime.fromisoformat(text).astimezone().timestamp()


# The command

MAX_OTHER_CORES = 0.25
BASELINE = "vllm 1"
CASES: dict[str, Callable[[], Server]] = {
    "llumctl 2": lambda: LlumctlServer(make_plan(2)),
    "vllm 1": lambda: VllmServer(make_plan(1)),
    "llumctl 1": lambda: LlumctlServer(make_plan(1)),
    "vllm 2": lambda: VllmServer(make_plan(2)),
}


def main() -> int:
    options = _options()
    console = results.make_console()
    started: dict[str, list[dict[str, float]]] = {name: [] for name in options.cases}
    try:
        with stops_interrupt():
            for index in range(options.rounds):
                for name in options.cases:
                    wait_until_quiet(MAX_OTHER_CORES, options.patience)
                    started[name].append(_start_once(CASES[name]()))
                    shown = "  ".join(f"{k} {v:.1f}" for k, v in started[name][-1].items())
                    console.print(f"round {index + 1}, {name}: {shown}")
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    console.print(_table(started))
    if any(name.startswith("llumctl") for name in started):
        console.print(_phase_table(started))
    summary = {name: _medians(runs) for name, runs in started.items()}
    path = results.write("startup", {"medians_s": summary, "rounds_s": started})
    console.print(f"written to {path}")
    return 0


def _start_once(server: Server) -> dict[str, float]:
    """Seconds from the start of the process until each state was reached."""
    try:
        server.start()
        taken_s = {"first": server.wait_first_completion(), "ready": server.wait_ready()}
        if isinstance(server, LlumctlServer):
            taken_s |= phases(server)
        return taken_s
    finally:
        with no_interrupts():
            server.stop()


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs if key in run) for key in runs[0]}


def _table(started: dict[str, list[dict[str, float]]]) -> Table:
    table = Table(title="seconds until it serves, medians of the rounds", box=box.SIMPLE)
    for column in ("server", "first", "ready", "(range)", f"ready / {BASELINE}"):
        table.add_column(column, justify="left" if column == "server" else "right")
    baseline = _medians(started[BASELINE])["ready"] if BASELINE in started else None
    for name, runs in started.items():
        figures = _medians(runs)
        table.add_row(
            name,
            f"{figures['first']:.1f}",
            f"{figures['ready']:.1f}",
            results.spread([run["ready"] for run in runs], ".1f"),
            f"{figures['ready'] / baseline:.2f}" if baseline else "-",
        )
    return table


def _phase_table(started: dict[str, list[dict[str, float]]]) -> Table:
    table = Table(title="llumctl: reached after seconds, medians", box=box.SIMPLE)
    table.add_column("phase")
    columns = {n: _medians(runs) for n, runs in started.items() if n.startswith("llumctl")}
    for name in columns:
        table.add_column(name, justify="right")
    for phase in PHASES:
        cells = (c.get(phase) for c in columns.values())
        table.add_row(phase, *(f"{s:.1f}" if s is not None else "-" for s in cells))
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES), help="which, with commas")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds to wait for a quiet machine each time"
    )
    options = parser.parse_args()
    options.cases = options.cases.split(",")
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
