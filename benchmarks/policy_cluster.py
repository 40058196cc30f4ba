"""A live cluster under one policy, and a load on it, from `up` to `down`."""

import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.engine_plan import emulated_plan
from benchmarks.process_groups import CpuMeter
from benchmarks.same_trace import Figures, live_latencies, live_settings, live_steady, live_steps
from benchmarks.servers import LlumctlServer, control_of, running
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.wire.requests import Event
from controller.sim.setup import SimPolicy
from llumctl.lab import bench
from llumctl.lab.bench import Measured
from llumctl.lab.bench_load import Load
from llumctl.lab.bench_run import Result

# What a cluster's own events say of a load: moves, and what evictions cost its requests

POLL_S = 1.0
LAST_S = 10.0
"""How long the last poll may take to succeed; if an earlier poll fails, the next one makes up for
it."""
RETRY_S = 0.1
PAGE = 1000


@dataclass(slots=True)
class Told:
    """`num_missed`: events that the controller had forgotten, or never got."""

    events: list[Event] = field(default_factory=list)
    num_missed: int = 0

    def number(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)


class EventTap(threading.Thread):
    """Collects events from now on until `finish`."""

    def __init__(self, control: ControlClient) -> None:
        super().__init__(daemon=True)
        self.told = Told()
        self._control = control
        self._is_over = threading.Event()
        self._position = ""
        self._take()
        self.told = Told()  # earlier events do not belong to the load

    def run(self) -> None:
        while not self._is_over.wait(POLL_S):
            self._take()
        deadline_s = time.monotonic() + LAST_S
        while not (is_all := self._take()) and time.monotonic() < deadline_s:
            time.sleep(RETRY_S)
        if not is_all:
            self.told.num_missed += 1  # at least

    def finish(self) -> Told:
        self._is_over.set()
        self.join()
        return self.told

    def _take(self) -> bool:
        """Returns False if the controller did not answer: it is busy, or away."""
        while True:
            try:
                page = self._control.events(self._position, PAGE)
            except LlumctlError:
                return False
            self._position = page.next_position
            self.told.events += page.events
            self.told.num_missed += page.missed or 0
            for event in page.events:
                if event.kind == "events_lost":
                    self.told.num_missed += int(event.numbers.get("num_lost") or 0)
            if len(page.events) < PAGE:
                return True


@dataclass(frozen=True, slots=True)
class Eviction:
    """`num_tokens`: prompt and outputs of the request by then; `time_s`: on the client's clock."""

    time_s: float
    num_tokens: int


def evictions(
    events: Iterable[Event], salt: str, clock_offset_s: float
) -> Mapping[int, list[Eviction]]:
    """The evictions in order, by a request's number in its load. `clock_offset_s`: seconds since
    the epoch less the client's clock."""
    its_id = re.compile(rf"\b{re.escape(salt)}-(\d+)(?!\d)")
    found: dict[int, list[Eviction]] = {}
    for event in events:
        if event.kind == "evicted" and (match := its_id.search(event.request_id or "")):
            num_tokens = int(event.numbers.get("num_tokens") or 0)
            eviction = Eviction(event.time_s - clock_offset_s, num_tokens)
            found.setdefault(int(match[1]), []).append(eviction)
    return found


def preemption_loss_s(result: Result, its_evictions: Sequence[Eviction]) -> float:
    """The sum of the times from each eviction to the next new token. Of two evictions without a
    token in between, the first counts."""
    times_s = result.answer.token_times_s
    loss_s, until_s = 0.0, float("-inf")
    for eviction in its_evictions:
        if eviction.time_s < until_s:
            continue
        num_merged = result.num_output_tokens - len(times_s)
        next_token = eviction.num_tokens - result.request.num_prompt_tokens - num_merged
        # Earlier tokens may arrive after the eviction; tokens that came together have one time.
        place = max(bisect_right(times_s, eviction.time_s), next_token)
        if place < len(times_s):
            until_s = times_s[place]
            loss_s += until_s - eviction.time_s
    return loss_s


# A run

# How many events one poll may return: far more than there are between two polls.
MAX_EVENTS = 200_000
# In the profile's time. In an overloaded cluster requests wait long, and none should time out.
TIMEOUT_S = 7200.0
# Beyond these limits the machine was too busy, and the figures say little about the policy.
MAX_TIME_RATIO = 1.02
MAX_LATE_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Cast:
    """The cluster of a run: `num_instances` engines of a profile, `speed` times as fast, with a
    policy."""

    policy: SimPolicy
    num_instances: int
    profile: str
    speed: float
    num_blocks: int | None = None
    """The number of KV blocks of an engine; None for the profile's."""
    prefix_caching: bool = False

    def settings(self) -> Mapping[str, Any]:
        settings = live_settings(self.policy, self.speed) | {
            "emulated.speed": self.speed,
            "emulated.profile": self.profile,
            "emulated.prefix_caching": self.prefix_caching,
            "control.max_events": MAX_EVENTS,
        }
        if self.num_blocks is not None:
            settings["emulated.num_blocks"] = self.num_blocks
        return settings


def emulated_cluster(cast: Cast) -> LlumctlServer:
    plan = emulated_plan(cast.num_instances)
    return LlumctlServer(plan, settings=cast.settings(), emulated=True)


def play(cast: Cast, trace: Path, seed: int) -> Figures:
    """Plays the trace on a cluster of its own. Raises KeyboardInterrupt: Ctrl-C ended the load."""
    cluster = emulated_cluster(cast)
    began_s = time.perf_counter()
    with running(cluster):
        figures = load_on(cluster, trace, seed, cast.speed)
    return figures | {
        "settings": dict(cast.settings()),
        "took_s": time.perf_counter() - began_s,
    }


def load_on(cluster: LlumctlServer, trace: Path, seed: int, speed: float) -> Figures:
    """Plays the trace on a cluster that serves, `speed` times as fast. Raises KeyboardInterrupt."""
    load = Load(trace=trace, speed=speed, duration_s=None, seed=seed)
    name = cluster.plan.cluster
    offset_s = time.time() - time.perf_counter()
    with control_of(name) as control:
        tap = EventTap(control)
        tap.start()
        meter = CpuMeter(cluster.parts())
        try:
            measured = bench.run(bench.Wanted(load=load, cluster=name, timeout_s=TIMEOUT_S / speed))
        finally:
            told = tap.finish()
        cpu = meter.used()
    if measured.results.interrupted:
        raise KeyboardInterrupt
    duration_s = measured.figures.duration_s
    return figures_of(measured, told, offset_s, speed) | {
        "speed": speed,
        "lags_s": [speed * lag_s for lag_s in lags_s(measured)],
        "cores": {part: used_s / duration_s for part, used_s in cpu.parts_s.items()},
        "other_cores": cpu.other_cores,
        "bench": measured.as_json(),
    }


def lags_s(measured: Measured) -> list[float]:
    """How late the client sent each request, in the order of the trace."""
    by_number = {result.request.index: result.lag_s for result in measured.results.ended}
    return [round(by_number[number], 6) for number in sorted(by_number)]


def figures_of(measured: Measured, told: Told, offset_s: float, speed: float) -> Figures:
    """Seconds are the profile's. `offset_s`: seconds since the epoch less the client's clock."""
    found = measured.figures
    evicted = evictions(told.events, measured.sender.cache_salt, offset_s)
    losses_s = [
        speed * preemption_loss_s(result, evicted.get(result.request.index, ()))
        for result in measured.results.ended
    ]
    figures = live_latencies(measured, speed) | live_steps(measured.statuses, speed)
    return figures | {
        "num_requests": found.num_requests,
        "num_failed": found.num_failed + found.num_unfinished,
        "num_wrong_tokens": found.num_wrong_tokens
        + found.num_lost_tokens
        + found.num_doubled_tokens,
        "preemption_loss_s": fmean(losses_s) if losses_s else None,
        "num_evictions": sum(len(its) for its in evicted.values()),
        "num_moves": told.number("migrated"),
        "num_failed_moves": told.number("migration_failed"),
        "num_not_moved": told.number("not_moved"),
        "steady": live_steady(measured),
        "duration_s": speed * found.duration_s,
        "emulation": None if found.emulation is None else asdict(found.emulation),
        "kept_time": None if found.emulation is None else keeps_time(measured),
        "warnings": [*measured.warnings, *_warnings(measured, told)],
    }


def keeps_time(measured: Measured) -> bool:
    emulation = measured.figures.emulation
    return (
        emulation is not None
        and emulation.worst_time_ratio <= MAX_TIME_RATIO
        and emulation.late_steps_ratio <= MAX_LATE_RATIO
    )


def _warnings(measured: Measured, told: Told) -> list[str]:
    lines = []
    if measured.figures.emulation is not None and not keeps_time(measured):
        lines.append("the machine did not keep the profile's time: run it with a lower --speed")
    if told.num_missed:
        lines.append(f"{told.num_missed} events are missing: evictions and moves are too few")
    if measured.workload.num_shortened:
        lines.append(f"{measured.workload.num_shortened} requests were shortened")
    return lines
