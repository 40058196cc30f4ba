"""Attacks a real cluster for some minutes, beside a canary, and says what every process of it
takes before, at most, and some minutes after.

The attacks take turns (attacks.py). Exit code 1 if a request got a 500 or no answer, if the
canary stalled, or if memory or descriptors did not come back.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from controller.api.interrupts import stops_interrupt
from tools import footprints
from tools.attack.attacks import ATTACKS, Target
from tools.canary import NO_GAP, Canary, Gap
from tools.cluster import Cluster, marked_processes
from tools.footprints import Footprint, ProcessKey
from tools.fuzz.__main__ import own_cluster
from tools.fuzz.choices import names_among
from tools.fuzz.exchange import require_app
from tools.fuzz.watch import ClusterWatch, growth

RESULTS = Path(__file__).parent / "results"
SAMPLE_S = 1.0
USS_EVERY = 15
"""Samples: to sum up what is private to a process takes its kernel some milliseconds."""
SETTLE_S = 10.0
PATIENCE_S = 120.0
"""Of a turn, beyond its time."""
MAX_LATE_GROWTH_BYTES = 100 << 20
"""In the second half of the attacks. A leak grows until the end; a working set, until it is full.
With the default length instances grew by 65 MiB then."""
BAD_OUTCOMES = ("500", "closed", "none", "cut")


@dataclass
class Turns:
    """Of one attack."""

    num: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    longest: Gap = NO_GAP
    breaks: list[str] = field(default_factory=list)
    tracebacks: Counter[str] = field(default_factory=Counter)


@dataclass
class Run:
    cluster: Cluster
    watch: ClusterWatch
    turns: dict[str, Turns]
    samples: list[dict[ProcessKey, Footprint]] = field(default_factory=list)
    before: dict[ProcessKey, Footprint] = field(default_factory=dict)
    after: dict[ProcessKey, Footprint] = field(default_factory=dict)
    after_at_once: dict[ProcessKey, Footprint] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)

    def sample(self, with_uss: bool) -> dict[ProcessKey, Footprint]:
        with suppress(Exception):  # the controller may be busy: that of a while ago is good enough
            self.known = footprints.members(self.cluster)
        return footprints.sample(self.cluster.nonce, self.known, with_uss)

    async def keep_sampling(self) -> None:
        while True:
            with_uss = len(self.samples) % USS_EVERY == 0
            self.samples.append(await asyncio.to_thread(self.sample, with_uss))
            await asyncio.sleep(SAMPLE_S)


async def attack(run: Run, seconds: float, turn_s: float, scale: float) -> None:
    end_s = time.monotonic() + seconds
    sampling = asyncio.create_task(run.keep_sampling())
    inboxes = await asyncio.to_thread(_inboxes, run)
    try:
        with Canary(run.cluster.url) as canary:
            await asyncio.to_thread(canary.wait_singing)
            await require_app("127.0.0.1", run.cluster.port, PATIENCE_S)
            while time.monotonic() < end_s:
                for name, turns in run.turns.items():
                    if turns.num == 0 or time.monotonic() < end_s:
                        target = Target("127.0.0.1", run.cluster.port, inboxes, scale)
                        until_s = min(end_s, time.monotonic() + turn_s)
                        await _take_turn(run, canary, name, target, until_s)
                        turns.outcomes += target.outcomes
    finally:
        sampling.cancel()


async def _take_turn(run: Run, canary: Canary, name: str, target: Target, until_s: float) -> None:
    """At least once, and again until its time is over."""
    turns, began_s = run.turns[name], time.monotonic()
    try:
        async with asyncio.timeout(max(0.0, until_s - began_s) + PATIENCE_S):
            while True:
                await ATTACKS[name](target)
                turns.num += 1
                if time.monotonic() >= until_s:
                    break
    except TimeoutError:
        target.outcomes["turn cut"] += 1
    try:  # what it leaves behind belongs to it
        await asyncio.to_thread(canary.wait_singing, PATIENCE_S)
    except TimeoutError:
        run.faults.append(f"{name}: the canary is silent for {PATIENCE_S:.0f} s")
    turns.longest = max(turns.longest, canary.longest(began_s), key=lambda gap: gap.stall_s)
    turns.breaks += [why for _, why in canary.breaks]
    canary.breaks.clear()
    turns.tracebacks += Counter(await asyncio.to_thread(run.watch.new_tracebacks))
    print(f"{name}: {dict(target.outcomes)}, longest gap {turns.longest}", flush=True)  # noqa: T201


def _inboxes(run: Run) -> tuple[int, ...]:
    """What the cluster's actors listen on, less what is for clients."""
    actors = {*run.known.values(), "controller"}
    listening = {
        each.laddr.port
        for process in marked_processes(run.cluster.nonce)
        if footprints.role_of(process, run.known) in actors
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    return tuple(sorted(listening - {run.cluster.port, run.cluster.control_port}))


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 130)
    with tempfile.TemporaryDirectory(prefix="llumctl-attack-") as home:
        up = ("-n", str(options.instances), "--engine", options.engine)
        cluster = own_cluster(Path(home), f"attack-{os.getpid()}", up)
        run = Run(cluster, ClusterWatch(cluster), {name: Turns() for name in options.attacks})
        with stops_interrupt(), cluster.running():
            run.watch.new_tracebacks()
            time.sleep(SETTLE_S)
            run.before = run.sample(with_uss=True)
            try:
                asyncio.run(attack(run, options.seconds, options.turn, options.scale))
            except KeyboardInterrupt:
                console.print("interrupted")
            run.after_at_once = run.sample(with_uss=True)
            time.sleep(options.after)
            run.faults += [f"{each.kind}: {each.what}" for each in run.watch.rest()]
            run.after = run.sample(with_uss=True)
    run.faults += judge(run, options.gap)
    console.print(_attack_table(run))
    console.print(_process_table(run))
    for fault in run.faults:
        console.print(f"fault: {fault}", markup=False, style="red")
    console.print(f"written to {_write(run, options)}")
    return 1 if run.faults else 0


def judge(run: Run, max_gap_s: float) -> list[str]:
    found = [fault.what for fault in growth(run.before, run.after)]
    at_half = run.samples[len(run.samples) // 2] if run.samples else {}
    for key, half in at_half.items():
        after = run.after.get(key)
        if after is not None and after.rss_bytes - half.rss_bytes > MAX_LATE_GROWTH_BYTES:
            sizes = f"{half.rss_bytes >> 20} to {after.rss_bytes >> 20} MiB"
            found.append(f"{key.role} still grew in the second half: {sizes}")
    for name, turns in run.turns.items():
        bad = {k: n for k, n in turns.outcomes.items() if k.startswith(BAD_OUTCOMES) or "cut" in k}
        found += [f"{name}: {count} requests: {what}" for what, count in bad.items()]
        if turns.longest.stall_s > max_gap_s:
            found.append(f"{name}: the canary stood still for {turns.longest}")
        found += [f"{name}: the canary broke: {why}" for why in turns.breaks]
    return found


def _attack_table(run: Run) -> Table:
    table = Table("attack", "turns", "outcomes", "longest gap", "tracebacks", box=box.SIMPLE)
    for name, turns in run.turns.items():
        outcomes = ", ".join(f"{what} {count}" for what, count in turns.outcomes.most_common())
        gap, logged = str(turns.longest), str(turns.tracebacks.total() or "")
        table.add_row(name, str(turns.num), outcomes, gap, logged)
    return table


def _process_table(run: Run) -> Table:
    most = footprints.peak([run.before, *run.samples])
    at_times = (run.before, most, run.after_at_once, run.after)
    title = "before, at most, right after, some minutes after"
    table = Table("process", "RSS, MiB", "USS, MiB", "descriptors", "threads", title=title)
    table.box = box.SIMPLE
    for key in sorted(most):
        found = [each.get(key) for each in at_times]
        cells = [
            [f.rss_bytes >> 20 if f else "-" for f in found],
            [f.uss_bytes >> 20 if f else "-" for f in found],
            [f.num_fds if f else "-" for f in found],
            [f.num_threads if f else "-" for f in found],
        ]
        table.add_row(f"{key.role} ({key.pid})", *(" ".join(map(str, row)) for row in cells))
    return table


def _write(run: Run, options: argparse.Namespace) -> Path:
    def rows(found: dict[ProcessKey, Footprint]) -> dict[str, Any]:
        return {f"{key.role} ({key.pid})": asdict(each) for key, each in sorted(found.items())}

    content = {
        "seconds": options.seconds,
        "attacks": {
            name: {
                "turns": turns.num,
                "outcomes": dict(turns.outcomes),
                "longest_gap": {
                    "gap_s": turns.longest.duration_s,
                    "stall_s": turns.longest.stall_s,
                },
                "canary_breaks": turns.breaks,
                "tracebacks": dict(turns.tracebacks),
            }
            for name, turns in run.turns.items()
        },
        "before": rows(run.before),
        "peak": rows(footprints.peak([run.before, *run.samples])),
        "right_after": rows(run.after_at_once),
        "after": rows(run.after),
        # A leak grows until the end; a working set, until it is full.
        "rss_mib_every_15_s": {
            f"{key.role} ({key.pid})": [
                each[key].rss_bytes >> 20 for each in run.samples[::USS_EVERY] if key in each
            ]
            for key in sorted(footprints.peak(run.samples))
        },
        "faults": run.faults,
    }
    path: Path = options.out or RESULTS / f"{datetime.now():%Y-%m-%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.attack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="of attacks")
    parser.add_argument("--after", type=float, default=300.0, help="seconds of rest after them")
    parser.add_argument("--turn", type=float, default=20.0, help="of one attack, seconds")
    parser.add_argument("--gap", type=float, default=1.0, help="a longer one is a fault, seconds")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of requests")
    parser.add_argument(
        "--attacks",
        type=names_among(ATTACKS),
        default=",".join(ATTACKS),
        help="of: %(default)s",
    )
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("-n", "--instances", type=int, default=2)
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
