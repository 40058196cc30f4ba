"""What the dashboard costs, as a real process on a terminal of its own: `llumctl top` beside a
controller of 64 instances and 2,000 requests that sends 5 statuses a second over HTTP.

Costs are CPU seconds of the dashboard's process, so that they are right on a busy machine too.
Latencies, from a status on its way to its number on the terminal, and the times from the command
to the first paint are of the wall clock: right on a quiet machine only, so what others used of the
CPU meanwhile stands beside them.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.table import Table

from benchmarks import dashboard_feed, results
from benchmarks.cpu_meter import CpuMeter
from benchmarks.dashboard_feed import BusyController
from benchmarks.process_groups import signals_interrupt
from tests.unit.cli_support import remember
from tests.unit.tui import tui_synthetic as synthetic
from tests.unit.tui.pty_process import Terminal, terminal

SIZES = ((80, 24), (120, 36), (200, 60))
SETTLE_S = 4.0
MIB = 1 << 20
MAX_CORES, MAX_LATENCY_S, MAX_GROWTH_BYTES = 0.10, 0.100, 2 * MIB
MAX_FIRST_PAINT_S, MAX_DATA_S = 0.7, 1.0
REPLAY_S = 600
_NUMBER = re.compile(rb"\((\d{7,})/min")
_FIRST_PAINT = b"Instances"


def main() -> int:
    options = _options()
    console = results.make_console()
    figures: dict[str, Any] = {"options": vars(options)}
    try:
        with (
            signals_interrupt(),
            tempfile.TemporaryDirectory() as folder,
            _home(Path(folder)),
            _controller(options) as controller,
        ):
            figures["starts"] = [_start(controller) for _ in range(options.starts)]
            console.print(_starts_table(figures["starts"]))
            figures["screens"] = [_main_screen(controller, size, options) for size in SIZES]
            figures["screens"].append(_requests_screen(options))
            console.print(_screens_table(figures["screens"]))
            figures["replay"] = _replay(Path(folder), options)
            console.print(_memory_table(figures))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    missed = _missed(figures)
    for line in missed or ["everything is as it should be"]:
        console.print(line)
    console.print(f"written to {results.write('tui', figures)}")
    return int(bool(missed))


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Neither configuration nor clusters of whoever runs this count."""
    own = {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    dropped = ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG", "NO_COLOR")
    before = dict(os.environ)
    os.environ.update(own)
    for name in dropped:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _controller(options: argparse.Namespace) -> Iterator[BusyController]:
    controller = BusyController(
        options.instances, options.requests, options.statuses, options.events
    )
    with controller:
        controller.requests = synthetic.requests("i-0", options.requests)
        remember(controller.url)
        yield controller


def _top(options: argparse.Namespace) -> tuple[str, ...]:
    return "top", "--refresh", f"{1 / options.statuses:g}"


# -- the start ------------------------------------------------------------------------------


def _start(controller: BusyController) -> dict[str, float]:
    """Seconds from the command to its first paint, and to the first status on the screen."""
    begun_s = time.perf_counter()
    with terminal("top") as screen:
        process = psutil.Process(screen.process.pid)
        meter = CpuMeter({process.pid: "dashboard"})
        number = dashboard_feed.FIRST_NUMBER + len(controller.sent_s)
        while not (painted_s := _painted_s(screen)):
            _alive(screen)
        paint_cpu_s = _cpu_s(process)
        while not (data := [at for at, found in _numbers(screen) if found >= number]):
            _alive(screen)
        data_cpu_s, others = _cpu_s(process), meter.used().other_cores
    return {
        "paint_s": painted_s - begun_s,
        "data_s": data[0] - begun_s,
        "paint_cpu_s": paint_cpu_s,
        "data_cpu_s": data_cpu_s,
        "other_cores": others,
    }


def _painted_s(screen: Terminal) -> float:
    heard = b""
    for at_s, chunk in list(screen.chunks):
        heard = heard[-len(_FIRST_PAINT) :] + chunk
        if _FIRST_PAINT in heard:
            return at_s
    return 0.0


def _alive(screen: Terminal) -> None:
    if screen.process.poll() is not None:
        raise RuntimeError(f"llumctl top ended: {screen.text[-1000:]}")
    time.sleep(0.005)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


# -- the running dashboard ------------------------------------------------------------------


def _main_screen(
    controller: BusyController, size: tuple[int, int], options: argparse.Namespace
) -> dict[str, Any]:
    with terminal(*_top(options), size=size) as screen:
        screen.until("FREENESS", "live 0.")
        figures = _watched(screen, options.seconds)
        latencies_s = _latencies_s(controller, screen) if size[0] >= 110 else []
    return {"name": f"main {size[0]}x{size[1]}", **figures, **_percentiles(latencies_s)}


def _requests_screen(options: argparse.Namespace) -> dict[str, Any]:
    """That of an instance, which asks for its requests too."""
    with terminal(*_top(options)) as screen:
        screen.until("FREENESS", "live 0.")
        screen.press("\r")
        screen.until(f"Requests ({options.requests})")
        figures = _watched(screen, options.seconds)
    name = f"an instance's {options.requests} requests 120x36"
    return {"name": name, **figures, **_percentiles([])}


def _watched(screen: Terminal, seconds: float) -> dict[str, Any]:
    """CPU, memory and bytes painted of so many seconds."""
    time.sleep(SETTLE_S)
    process = psutil.Process(screen.process.pid)
    meter = CpuMeter({process.pid: "dashboard"})
    begun_s, num_before = time.perf_counter(), len(screen.chunks)
    rss_bytes = process.memory_info().rss
    time.sleep(seconds)
    took_s, used = time.perf_counter() - begun_s, meter.used()
    return {
        "cores": used.parts_s["dashboard"] / took_s,
        "other_cores": used.other_cores,
        "bytes_per_s": sum(len(chunk) for _, chunk in screen.chunks[num_before:]) / took_s,
        "rss_bytes": process.memory_info().rss,
        "growth_bytes": process.memory_info().rss - rss_bytes,
    }


def _numbers(screen: Terminal) -> list[tuple[float, int]]:
    """(when it came, the number) of each status that was painted."""
    found, tail = [], b""
    for at_s, chunk in list(screen.chunks):
        heard = tail + chunk
        last = 0
        for each in _NUMBER.finditer(heard):
            found.append((at_s, int(each[1])))
            last = each.end()
        tail = heard[max(last, len(heard) - 20) :]
    return found


def _latencies_s(controller: BusyController, screen: Terminal) -> list[float]:
    """Of each status until it, or a later one, was on the terminal; of those of the last seconds
    not all were painted."""
    painted = _numbers(screen)
    if not painted:
        return []
    found = []
    settled_s = painted[0][0] + SETTLE_S
    for (_, before), (at_s, number) in pairwise(painted):
        for each in range(before + 1, number + 1):
            if (sent_s := controller.sent_s[each]) > settled_s:
                found.append(at_s - sent_s)
    return found


def _percentiles(values: list[float]) -> dict[str, Any]:
    if len(values) < 20:
        return {"latency_p50_s": None, "latency_p95_s": None, "num_painted": len(values)}
    cuts = statistics.quantiles(values, n=20)
    return {"latency_p50_s": cuts[9], "latency_p95_s": cuts[18], "num_painted": len(values)}


# -- memory ---------------------------------------------------------------------------------


def _replay(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Memory at each minute of a recording of ten, which `--speed` makes shorter."""
    path = folder / "ten-minutes.jsonl"
    dashboard_feed.record(path, REPLAY_S, options.instances, options.requests)
    rss_bytes: list[int] = []
    with terminal("top", "--replay", str(path), "--speed", f"{options.speed:g}") as screen:
        screen.until("FREENESS", "REPLAY")
        process = psutil.Process(screen.process.pid)
        meter = CpuMeter({process.pid: "dashboard"})
        begun_s = time.perf_counter()
        for minute in range(1, REPLAY_S // 60):
            time.sleep(max(0.0, begun_s + minute * 60 / options.speed - time.perf_counter()))
            rss_bytes.append(process.memory_info().rss)
        cores = meter.used().parts_s["dashboard"] / (time.perf_counter() - begun_s)
    return {
        "speed": options.speed,
        "file_bytes": path.stat().st_size,
        "rss_bytes": rss_bytes,
        "growth_bytes": rss_bytes[-1] - rss_bytes[0],
        "cores": cores,
    }


# -- what is printed ------------------------------------------------------------------------


def _starts_table(starts: list[dict[str, float]]) -> Table:
    table = Table(title=f"from the command (median of {len(starts)})", box=box.SIMPLE)
    for column in ("until", "seconds", "CPU s", "others, cores"):
        table.add_column(column, justify="left" if column == "until" else "right")
    for name, of in (("the first paint", "paint"), ("a status on the screen", "data")):
        table.add_row(
            name,
            f"{_median(starts, f'{of}_s'):.2f}",
            f"{_median(starts, f'{of}_cpu_s'):.2f}",
            f"{_median(starts, 'other_cores'):.2f}",
        )
    return table


def _screens_table(screens: list[dict[str, Any]]) -> Table:
    table = Table(title="while it runs", box=box.SIMPLE)
    columns = ("screen", "CPU, % of a core", "update to paint, ms: P50", "P95", "KB/s painted")
    for column in (*columns, "others, cores"):
        table.add_column(column, justify="left" if column == "screen" else "right")
    for each in screens:
        table.add_row(
            each["name"],
            f"{each['cores'] * 100:.1f}",
            _ms(each["latency_p50_s"]),
            _ms(each["latency_p95_s"]),
            f"{each['bytes_per_s'] / 1000:.1f}",
            f"{each['other_cores']:.2f}",
        )
    return table


def _memory_table(figures: dict[str, Any]) -> Table:
    replay = figures["replay"]
    title = f"memory, MiB: ten minutes of replay at {replay['speed']:g} times the pace"
    table = Table(title=title, box=box.SIMPLE)
    for minute in range(1, len(replay["rss_bytes"]) + 1):
        table.add_column(f"{minute} min", justify="right")
    table.add_row(*(f"{each / MIB:.1f}" for each in replay["rss_bytes"]))
    return table


def _missed(figures: dict[str, Any]) -> list[str]:
    """What was aimed at and not reached, a line for each."""
    found = []
    for each in figures["screens"]:
        if each["cores"] > MAX_CORES:
            found.append(f"{each['name']}: {each['cores']:.1%} of a core, over {MAX_CORES:.0%}")
        if (each["latency_p95_s"] or 0.0) > MAX_LATENCY_S:
            found.append(f"{each['name']}: P95 {_ms(each['latency_p95_s'])} ms until it is painted")
    if (growth := figures["replay"]["growth_bytes"]) > MAX_GROWTH_BYTES:
        found.append(f"replay: {growth / MIB:.1f} MiB more after ten minutes than after one")
    for name, limit_s in (("paint", MAX_FIRST_PAINT_S), ("data", MAX_DATA_S)):
        if (took_s := _median(figures["starts"], f"{name}_s")) > limit_s:
            found.append(f"start: {name} after {took_s:.2f} s, aimed at {limit_s} s")
    return found


def _median(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tui",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--statuses", type=float, default=5.0, help="a second")
    parser.add_argument("--events", type=float, default=500.0, help="a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each screen")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--speed", type=float, default=8.0, help="of the replay")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
