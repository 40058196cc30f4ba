"""The cost of the dashboard as a real process on its own terminal: `llumctl top` with a controller
of 64 instances and 2,000 requests that sends 5 statuses per second over HTTP.

Costs are CPU seconds of the dashboard's process, which hold on a busy machine too. Latencies, from
sending a status until its number is on the terminal, and the times from the command to the first
paint are wall-clock times. These hold only on a quiet machine, so the CPU use of other programs
stands beside them.
"""

import argparse
import contextlib
import hashlib
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
from pydantic import BaseModel
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.process_groups import CpuMeter
from controller.api.interrupts import stops_interrupt
from controller.api.recording import RecordingHeader, RecordingWriter
from controller.api.state import run_state
from controller.api.wire import ErrorBody
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import Event
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus
from controller.api.wire.stream import EventFrame, StatusFrame
from tools import synthetic_cluster as synthetic
from tools.pty_process import Terminal, terminal

SIZES = ((80, 24), (120, 36), (200, 60))
SETTLE_S = 4.0
MIB = 1 << 20
MAX_CORES, MAX_LATENCY_S, MAX_GROWTH_BYTES = 0.10, 0.100, 2 * MIB
MAX_FIRST_PAINT_S, MAX_DATA_S = 0.7, 1.0
REPLAY_S = 600
_NUMBER = re.compile(rb"\((\d{7,})/min")
_FIRST_PAINT = b"Instances"


# The cluster

FIRST_NUMBER = 1_000_000
"""The number of the first status: no other figure on the screen is as large."""
CYCLE_S = 60
"""The length of the statuses that are made beforehand and repeated."""
TOKEN = "right"


class BusyController:
    """A controller behind real HTTP, of a large made-up cluster that changes all the time.

    Each status has a number that the screen shows, so that the output of the dashboard's terminal
    tells which status was painted, and when.
    """

    def __init__(
        self, num_instances: int, num_requests: int, statuses_per_s: float, events_per_s: float
    ) -> None:
        """`num_requests`: how many run and wait on all instances together."""
        self.sent_s: dict[int, float] = {}
        """When each status was handed to the socket (time.perf_counter), by its number."""
        self._requests = synthetic.requests("i-0", num_requests)
        self._statuses = statuses(CYCLE_S, num_instances, num_requests)
        self._every_s = 1 / statuses_per_s
        self._num_events = round(events_per_s / statuses_per_s)
        self._events = routine_events(1000, num_instances)
        self._stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> "BusyController":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def remember(self) -> None:
        """Leaves the run state that `up` would leave, for `llumctl top` to find."""
        control_url = f"http://127.0.0.1:{self._server.server_address[1]}"
        run_state.save(synthetic.run_state_of(control_url, TOKEN))

    def _lines(self) -> Iterator[bytes]:
        """The frames of a status and its events go out at once, as the real controller sends them.
        Numbers go on from the stream before: one dashboard at a time."""
        first = FIRST_NUMBER + len(self.sent_s)
        begun_s = time.perf_counter()
        for place in count():
            due_s = begun_s + place * self._every_s
            if self._stopping.wait(max(0.0, due_s - time.perf_counter())):
                return
            now_s = time.time()
            frames: list[BaseModel] = [
                EventFrame(
                    time_s=now_s,
                    event=self._events[number % len(self._events)].model_copy(
                        update={"time_s": now_s, "position": f"a-{number}"}
                    ),
                )
                for number in range(place * self._num_events, (place + 1) * self._num_events)
            ]
            status = self._statuses[place % len(self._statuses)].model_copy(
                update={"time_s": now_s, "num_migrated_last_minute": first + place}
            )
            frames.append(StatusFrame(time_s=now_s, status=status))
            lines = b"".join(frame.model_dump_json().encode() + b"\n" for frame in frames)
            self.sent_s[first + place] = time.perf_counter()
            yield lines

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        controller = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                if path == "/v1/watch":
                    self._stream()
                elif path == "/v1/requests":
                    self._send(200, controller._requests)
                elif path == "/v1/history":
                    self._send(200, history(query, len(controller._statuses[0].instances)))
                elif path == "/v1/status":
                    self._send(200, controller._statuses[0])
                else:
                    self._send(404, ErrorBody(code="not_found", message=path, hint=""))

            def _stream(self) -> None:
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the reader left
                    for lines in controller._lines():
                        self.wfile.write(lines)
                        self.wfile.flush()

            def _send(self, code: int, body: BaseModel) -> None:
                raw = body.model_dump_json().encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def history(query: dict[str, list[str]], num_instances: int) -> HistoryReport:
    """The answer of a controller that has run for an hour."""
    now_s = time.time()
    since_s = max(now_s - float(query["last_s"][0]), *map(float, query.get("after_s", ["0"])))
    num = num_instances if "instances" in query else 0
    return synthetic.history(int(now_s - since_s), now_s, instances=num)


def record(path: Path, seconds: int, num_instances: int, num_requests: int) -> None:
    """Writes a recording with a status and some events in each second."""
    writer = RecordingWriter(path, RecordingHeader(cluster="prod-a", time_s=synthetic.START_S))
    known = statuses(CYCLE_S, num_instances, num_requests)
    events = routine_events(1000, num_instances)
    for second in range(seconds):
        now_s = synthetic.START_S + second
        for number in range(20):
            place = second * 20 + number
            found = {"time_s": now_s, "position": f"a-{place}"}
            event = events[place % len(events)].model_copy(update=found)
            writer.append(EventFrame(time_s=now_s, event=event))
        status = known[second % len(known)].model_copy(update={"time_s": now_s})
        writer.append(StatusFrame(time_s=now_s, status=status))
    writer.close()


def statuses(seconds: int, num_instances: int, num_requests: int) -> list[ClusterStatus]:
    """All instances serve, and the figures of each differ from one status to the next."""
    chance = random.Random(11)
    found = []
    for frame in synthetic.frames(seconds, num_instances, events_per_s=0):
        if isinstance(frame, StatusFrame):
            items = frame.status.instances
            served = tuple(
                _serving(item, round(num_requests / len(items)), chance) for item in items
            )
            found.append(frame.status.model_copy(update={"instances": served}))
    return found


def _serving(item: InstanceStatus, num_requests: int, chance: random.Random) -> InstanceStatus:
    if item.state is not InstanceState.ACTIVE:
        item = synthetic.instance(item.id, node="10.0.0.20", kv_cache_usage=chance.random())
    waiting = min(item.num_waiting_reqs or 0, num_requests)
    high = num_requests // 8
    levels = {"normal": num_requests - waiting - high, "high": high}
    return item.model_copy(
        update={
            "num_running_reqs": num_requests - waiting,
            "num_running_by_level": levels,
            "num_waiting_reqs": waiting,
            "step_time_s": chance.uniform(0.02, 0.06),
        }
    )


def routine_events(count_: int, num_instances: int) -> list[Event]:
    """Events of requests whose ids are as long as real ones."""
    frames = synthetic.frames(count_ // 200 + 2, num_instances, events_per_s=200)
    found = [frame.event for frame in frames if isinstance(frame, EventFrame)]
    return [event.model_copy(update={"request_id": _long(event)}) for event in found[:count_]]


def _long(event: Event) -> str | None:
    if event.request_id is None:
        return None
    digest = hashlib.sha256(event.request_id.encode()).hexdigest()
    return f"cmpl-{digest[:16]}-0-{digest[16:24]}"


# The command


def main() -> int:
    options = _options()
    console = results.make_console()
    figures: dict[str, Any] = {"options": vars(options)}
    try:
        with (
            stops_interrupt(),
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
    """Hides the configuration and the clusters of the user who runs this."""
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
        controller.remember()
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
        number = FIRST_NUMBER + len(controller.sent_s)
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
    """Measures the screen of an instance, which asks for its requests too."""
    with terminal(*_top(options)) as screen:
        screen.until("FREENESS", "live 0.")
        screen.press("\r")
        screen.until(f"Requests ({options.requests})")
        figures = _watched(screen, options.seconds)
    name = f"an instance's {options.requests} requests 120x36"
    return {"name": name, **figures, **_percentiles([])}


def _watched(screen: Terminal, seconds: float) -> dict[str, Any]:
    """Measures CPU, memory and painted bytes for so many seconds."""
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
    """The time and the number of each status that was painted."""
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
    """For each status the time until it, or a later one, was on the terminal; some of the last ones
    were never painted."""
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
    """Measures memory at each minute of a recording of ten minutes, replayed at `--speed`."""
    path = folder / "ten-minutes.jsonl"
    record(path, REPLAY_S, options.instances, options.requests)
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
    """A line for each aim that was missed."""
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
