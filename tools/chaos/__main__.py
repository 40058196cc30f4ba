"""Faults at random in a real cluster under load, until the time is over or something is wrong.

Exit code 1 if a stream got wrong tokens, no end, or an error that its fault does not explain; if
blocks, requests, moves or counters did not balance; or if memory or descriptors grew. `--seed`
repeats a run: the same faults, at the same times of their turns.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import pytest
from rich.console import Console
from rich.table import Table

from controller.api.errors import LlumctlError
from controller.api.interrupts import stops_interrupt
from controller.main.machine import run_folders
from tools import footprints
from tools.chaos import streams
from tools.chaos.balance import Ends, Incarnations, imbalance
from tools.chaos.faults import Done, Faults
from tools.chaos.schedule import NEEDS_TWO_HOSTS, Fault, Kind, faults
from tools.chaos.streams import Outcome, Request, Result
from tools.cluster import Cluster, free_ports
from tools.fuzz.__main__ import own_cluster
from tools.ray_nodes import RayNodes
from tools.two_hosts import Host, two_hosts

RESULTS = Path(__file__).parent / "results"
EXCUSED = frozenset({Outcome.WHOLE, Outcome.LEFT})
MAX_MORE_FDS = 40
MAX_MORE_BYTES = 200 << 20
CONFIG = """
[cluster]
instances = {instances}
frontends = 2
engine = "{engine}"
{ray}
[scheduler]
stall_timeout_s = 2.0
fence_after_s = {fence_after_s}
hold_timeout_s = 60.0
"""


@dataclass
class Turn:
    fault: Fault
    done: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    longest_gap_s: float = 0.0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Chaos:
    options: argparse.Namespace
    console: Console
    turns: list[Turn] = field(default_factory=list)
    sizes: list[dict[str, tuple[int, int]]] = field(default_factory=list)
    """After each turn, by member and process: resident bytes, descriptors."""
    answers: list[tuple[Mapping[str, Any], list[int]]] = field(default_factory=list)
    ends: Ends = field(default_factory=Ends)
    incarnations: Incarnations = field(default_factory=Incarnations)
    num_told: int = 0
    """How many verdicts have been printed."""
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def faulty(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.wrong]

    def run(self, cluster: Cluster, nodes: RayNodes | None) -> None:
        options = self.options
        kinds = [Kind[name] for name in options.kinds.split(",") if name] or list(Kind)
        kinds = [kind for kind in kinds if nodes or kind not in NEEDS_TWO_HOSTS]
        acts = Faults(cluster, options.instances, nodes)
        if options.engine == "vllm":
            self.answers = asyncio.run(undisturbed(cluster.url, options.tokens))
        deadline_s = time.monotonic() + 60 * options.minutes
        for fault in faults(options.seed, kinds, options.every):
            if time.monotonic() >= deadline_s or len(self.faulty) >= options.max_faulty:
                return
            self.turns.append(self._turn(cluster, acts, fault))
            self._tell(self.turns[-1])
            if self.turns[-1].wrong:
                self._keep_logs(cluster, nodes, fault.number)

    def _turn(self, cluster: Cluster, acts: Faults, fault: Fault) -> Turn:
        turn = Turn(fault)
        before_s = time.monotonic()
        with suppress(LlumctlError), cluster.control() as client:
            self.ends.since_last(client)
        dice = random.Random(f"{self.options.seed}-{fault.number}")
        requests = [self._request(dice) for _ in range(self.options.streams)]
        results, done = asyncio.run(self._burst(cluster.url, requests, acts, fault, dice))
        turn.done = done.what
        turn.outcomes.update(str(result.outcome) for result in results)
        turn.longest_gap_s = max(result.longest_gap_s for result in results)
        acts.mend()
        if found := imbalance(cluster, self.options.instances):
            turn.wrong.append(f"after {time.monotonic() - before_s:.0f} s: {found}")
        turn.wrong += _unexcused(results, done)
        with suppress(LlumctlError), cluster.control() as client:
            turn.wrong += self.incarnations.wrong(client)
        if not (done.frontend_died or done.controller_died):
            with suppress(LlumctlError), cluster.control() as client:
                num_ended = self.ends.since_last(client)
                if num_ended not in (None, len(results)):
                    turn.wrong.append(f"{num_ended} requests ended by the log, {len(results)} sent")
        turn.seconds = time.monotonic() - before_s
        self.sizes.append(_footprint(cluster))
        return turn

    def _request(self, dice: random.Random) -> Request:
        if self.answers:
            return streams.real(dice, self.answers)
        return streams.emulated(dice, next(self._numbers))

    async def _burst(
        self, url: str, requests: list[Request], acts: Faults, fault: Fault, dice: random.Random
    ) -> tuple[list[Result], Done]:
        async def strike() -> Done:
            await asyncio.sleep(fault.after_s)
            try:
                return await asyncio.to_thread(acts.carry_out, fault)
            except (LlumctlError, AssertionError) as error:  # nobody there to strike
                return Done(f"not done: {error}", frontend_died=True, controller_died=True)

        results, done = await asyncio.gather(
            streams.burst(url, requests, self.options.every, dice), strike()
        )
        return results, done

    def _keep_logs(self, cluster: Cluster, nodes: RayNodes | None, number: int) -> None:
        """The members' and Ray's, as they are after a turn with something wrong."""
        own = Path(cluster.temp_dir) / run_folders.RAY / "session_latest" / "logs"
        target = RESULTS / f"seed-{self.options.seed}-turn-{number}"
        for name, source in (
            ("members", cluster.state_dir / "logs"),
            ("ray", own if nodes is None else nodes.log_dir),
        ):
            with suppress(OSError, shutil.Error):  # files come and go meanwhile
                shutil.copytree(source, target / name, dirs_exist_ok=True)
        self.console.print(f"     logs: {target}", markup=False)

    def _tell(self, turn: Turn) -> None:
        outcomes = ", ".join(f"{number} {name}" for name, number in turn.outcomes.most_common())
        self.console.print(
            f"{turn.fault.number:4} {turn.fault.kind}: {turn.done}; {outcomes};"
            f" longest gap {turn.longest_gap_s:.1f} s; {turn.seconds:.0f} s",
            markup=False,
        )
        new = self.ends.verdicts[self.num_told :]
        self.num_told += len(new)
        for verdict in new:
            self.console.print(f"     {verdict}", markup=False)
        for line in turn.wrong:
            self.console.print(f"     WRONG {line}", markup=False)


def _unexcused(results: list[Result], done: Done) -> list[str]:
    """Cut connections are excused by a frontend's death alone; no error is by anything."""
    return [
        f"{result.outcome}: {result.detail} (after {result.num_tokens} tokens)"
        for result in results
        if result.outcome not in EXCUSED
        and not (result.outcome is Outcome.CUT and done.frontend_died)
    ]


async def undisturbed(url: str, num_tokens: int) -> list[tuple[Mapping[str, Any], list[int]]]:
    """One after the other, twice: what does not repeat is of no use."""
    found: list[tuple[Mapping[str, Any], list[int]]] = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for body in streams.bodies_of_real(num_tokens):
            answers = []
            for _ in range(2):
                whole = {"model": "embedded", "return_token_ids": True, **body}
                response = await client.post("/v1/completions", json=whole)
                response.raise_for_status()
                answers.append(response.json()["choices"][0]["token_ids"])
            assert answers[0] == answers[1], f"does not repeat: {body}"
            found.append((body, answers[0]))
    return found


def _footprint(cluster: Cluster) -> dict[str, tuple[int, int]]:
    found = {}
    with suppress(LlumctlError):
        for pid, name in footprints.members(cluster).items():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                found[f"{name} {pid}"] = process.memory_info().rss, process.num_fds()
    return found


def growth(sizes: list[dict[str, tuple[int, int]]]) -> list[str]:
    """Of processes that lived through at least half of the turns: first against last quarter of
    their own life. And of all instances together, however often they restarted."""
    found = []
    for key in {key for each in sizes for key in each}:
        life = [each[key] for each in sizes if key in each]
        if len(life) < max(8, len(sizes) // 2):
            continue
        quarter = len(life) // 4
        for what, index, limit in (("bytes", 0, MAX_MORE_BYTES), ("descriptors", 1, MAX_MORE_FDS)):
            first = median(each[index] for each in life[:quarter])
            last = median(each[index] for each in life[-quarter:])
            if last - first > limit:
                found.append(f"{key}: {what} grew from {first:.0f} to {last:.0f}")
    return found


# -- the cluster --------------------------------------------------------------------------


@contextmanager
def running(options: argparse.Namespace, hosts: tuple[Host, Host] | None) -> Iterator[Any]:
    """(cluster, nodes)"""
    with ExitStack() as made:
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="llumctl-chaos-")))
        cluster = own_cluster(folder, "chaos", ())
        nodes = None
        ray = ""
        if hosts is not None:
            nodes = RayNodes(hosts, free_ports(1)[0], cluster.env)
            made.callback(nodes.end)
            nodes.start()
            ray = f'ray_address = "{nodes.address}"\nhost = "auto"\n'
        config = folder / "c.toml"
        config.write_text(
            CONFIG.format(
                instances=options.instances,
                engine=options.engine,
                ray=ray,
                fence_after_s=5.0 if options.engine == "emulated" else 6.0,
            )
        )
        cluster.up_args = ("--config", str(config))
        with cluster.running():
            yield cluster, nodes


def _hosts(names: str) -> tuple[Host, Host] | None:
    if not names:
        return None
    first, second = (Host(*each.split("/")) for each in names.split(","))
    return first, second


def _on_two_hosts(arguments: list[str]) -> int | None:
    """Runs this program again on the first of two hosts; None where hosts cannot be made."""
    try:
        with two_hosts() as hosts:
            names = ",".join(f"{h.namespace}/{h.address}/{h.link}" for h in hosts)
            inside = [sys.executable, "-m", "tools.chaos", *arguments, "--inside", names]
            return subprocess.run(hosts[0].command(*inside), check=False).returncode
    except pytest.skip.Exception as reason:
        Console(stderr=True).print(f"on one host, without faults of the network: {reason}")
        return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=("emulated", "vllm"), default="emulated")
    parser.add_argument("--instances", type=int, default=0, help="8 emulated, 2 vllm")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds of a turn's burst")
    parser.add_argument("--streams", type=int, default=16, help="of a burst")
    parser.add_argument("--tokens", type=int, default=200, help="of an answer by vllm")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--max-faulty", type=int, default=5, help="turns, before it gives up")
    names = ",".join(kind.name for kind in Kind)
    parser.add_argument("--kinds", default="", help=f"only these, of {names}")
    parser.add_argument("--one-host", action="store_true", help="no faults of the network")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.instances = options.instances or (8 if options.engine == "emulated" else 2)
    return options


def main() -> int:
    options = _options()
    if not (options.one_host or options.inside):
        arguments = [*sys.argv[1:], "--seed", str(options.seed)]
        code = _on_two_hosts(arguments)
        if code is not None:
            return code
    console = Console(width=160, highlight=False)
    console.print(f"seed {options.seed}: {options.instances} {options.engine} instances")
    chaos = Chaos(options, console)
    try:
        with (
            stops_interrupt(),
            running(options, _hosts(options.inside)) as (cluster, nodes),
        ):
            chaos.run(cluster, nodes)
    except KeyboardInterrupt:
        console.print("interrupted")
    grown = growth(chaos.sizes)
    _report(chaos, grown)
    return 1 if chaos.faulty or grown or not chaos.turns else 0


def _report(chaos: Chaos, grown: list[str]) -> None:
    table = Table("fault", "times", "streams", "whole", "wrong turns", "longest gap, s")
    for kind in Kind:
        turns = [turn for turn in chaos.turns if turn.fault.kind is kind]
        if turns:
            table.add_row(
                kind,
                str(len(turns)),
                str(sum(turn.outcomes.total() for turn in turns)),
                str(sum(turn.outcomes[Outcome.WHOLE] for turn in turns)),
                str(sum(bool(turn.wrong) for turn in turns)),
                f"{max(turn.longest_gap_s for turn in turns):.1f}",
            )
    chaos.console.print(table)
    words = Counter(verdict.partition(":")[0] for verdict in chaos.ends.verdicts)
    changes = ", ".join(f"{word} {number}" for word, number in words.most_common())
    chaos.console.print(f"verdicts: {changes or 'always the same'}", markup=False)
    for line in grown:
        chaos.console.print(f"WRONG {line}", markup=False)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now():%Y%m%d-%H%M%S}.json"
    content = {
        "seed": chaos.options.seed,
        "engine": chaos.options.engine,
        "instances": chaos.options.instances,
        "grown": grown,
        "turns": [
            asdict(replace(turn, outcomes=Counter())) | {"outcomes": dict(turn.outcomes)}
            for turn in chaos.turns
        ],
    }
    path.write_text(json.dumps(content, indent=1))
    chaos.console.print(
        f"{len(chaos.turns)} faults, {len(chaos.faulty)} with something wrong: {path}"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
