"""Fuzzes an endpoint with input grown from valid input, beside a canary.

Starts one real engine on the built-in model and ends it, unless --url names an endpoint. Exit
code 1 if there are findings; each is a file that --replay sends again.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from controller.api.interrupts import stops_interrupt
from tools import footprints
from tools.cluster import Cluster
from tools.fuzz import families, findings
from tools.fuzz.choices import names_among
from tools.fuzz.findings import Findings
from tools.fuzz.fuzzer import Fuzzer, Plan, summary
from tools.fuzz.watch import ClusterWatch, Watch

RESULTS = Path(__file__).parent / "results"
# With vLLM's 2,048 a step of a long prompt alone takes 1 s on two cores, 2.5 s with log
# probabilities of the prompt: longer than --stall.
CHUNK_TOKENS = 512
COLUMNS = ("2xx", "4xx", "5xx", "left", "none", "cut", "late")


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    folder = options.out or RESULTS / f"{datetime.now():%Y-%m-%d-%H%M%S}"
    found = Findings(folder, options.seed)
    console.print(f"seed {options.seed}")
    with stops_interrupt(), _endpoint(options, folder) as (url, watch):
        plan = Plan(
            url,
            options.seed,
            options.seconds,
            options.families,
            options.deadline,
            options.stall,
            options.rest_every,
            num_clients=options.clients,
        )
        fuzzer = Fuzzer(plan, watch, found)
        if options.replay is not None:
            return _replay(fuzzer, options.replay, console)
        try:
            asyncio.run(fuzzer.run())
        except KeyboardInterrupt:
            console.print("interrupted")
    _report(fuzzer, watch, console)
    return 1 if found.counts else 0


def _replay(fuzzer: Fuzzer, path: Path, console: Console) -> int:
    answer, faults = asyncio.run(fuzzer.replay(findings.load(path)))
    console.print_json(json.dumps(findings.describe(answer)))
    for fault in faults:
        console.print(f"{fault.kind}: {fault.what}", markup=False)
    return 1 if faults else 0


@contextmanager
def _endpoint(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Watch]]:
    if options.url:
        yield options.url, Watch()
        return
    with tempfile.TemporaryDirectory(prefix="llumctl-fuzz-") as home:
        up = (
            "-n",
            str(options.instances),
            "--engine-arg",
            f"max_num_batched_tokens={CHUNK_TOKENS}",
        )
        cluster = own_cluster(Path(home), f"fuzz-{os.getpid()}", up)
        try:
            with cluster.running():
                yield cluster.url, ClusterWatch(cluster)
        finally:
            logs = cluster.state_dir / "logs"
            if folder.exists() and logs.exists():
                shutil.copytree(logs, folder / "logs", dirs_exist_ok=True)


def own_cluster(home: Path, name: str, up_args: tuple[str, ...]) -> Cluster:
    """Nothing of the user's clusters is seen or touched; the built-in model is that of the user's
    cache, as to make it takes long."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LLUMCTL_", "RAY_"))}
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("STATE", "CONFIG")}
    return Cluster(env | folders | {"OMP_NUM_THREADS": "1"}, name=name, up_args=up_args)


def _report(fuzzer: Fuzzer, watch: Watch, console: Console) -> None:
    figures, found = fuzzer.figures, fuzzer.findings
    table = Table("family", *COLUMNS, title=f"{figures.num_sent} requests", box=box.SIMPLE)
    for name, counts in sorted(figures.outcomes.items()):
        table.add_row(name, *(str(counts[column] or "") for column in COLUMNS))
    console.print(table)
    if isinstance(watch, ClusterWatch) and watch.at_rest:
        console.print(_processes(watch))
    console.print(f"longest gap of the canary: {figures.longest}")
    for line in figures.seen_once:
        console.print(f"seen once: {line}", markup=False)
    kinds = Table("times", "finding", title=f"{len(found.counts)} findings", box=box.SIMPLE)
    for signature, count in found.counts.most_common():
        kinds.add_row(str(count), signature)
    console.print(kinds)
    content: dict[str, Any] = {
        "seed": fuzzer.plan.seed,
        "seconds": fuzzer.plan.seconds,
        **summary(figures),
        "findings": dict(found.counts),
        "files": [path.name for path in found.files],
    }
    if isinstance(watch, ClusterWatch):
        peaks = footprints.peak(watch.samples)
        content["peaks"] = {f"{k.role} ({k.pid})": _figures(v) for k, v in peaks.items()}
        content["at_rest"] = [
            {f"{k.role} ({k.pid})": _figures(v) for k, v in each.items()} for each in watch.at_rest
        ]
    found.folder.mkdir(parents=True, exist_ok=True)
    path = found.folder / "run.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {found.folder}")


def _figures(found: footprints.Footprint) -> dict[str, float]:
    return {name: getattr(found, name) for name in found.__slots__}


def _processes(watch: ClusterWatch) -> Table:
    peaks = footprints.peak(watch.samples)
    title = "at the first rest, at most, at the last rest"
    table = Table("process", "RSS, MiB", "descriptors", "threads", title=title, box=box.SIMPLE)
    first, last = watch.at_rest[0], watch.at_rest[-1]
    for key in sorted(first):
        most, end = peaks.get(key, first[key]), last.get(key)
        sizes = [each.rss_bytes >> 20 if each else "-" for each in (first[key], most, end)]
        fds = [each.num_fds if each else "-" for each in (first[key], most, end)]
        threads = [each.num_threads if each else "-" for each in (first[key], most, end)]
        table.add_row(key.role, *(" ".join(map(str, row)) for row in (sizes, fds, threads)))
    return table


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--families",
        type=names_among(families.NAMES),
        default=",".join(families.NAMES),
        help="of: %(default)s",
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="send a finding again")
    parser.add_argument("--url", help="of an endpoint that serves already")
    parser.add_argument("-n", "--instances", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=30.0, help="of an answer, seconds")
    parser.add_argument("--stall", type=float, default=1.0, help="a longer gap is one, seconds")
    parser.add_argument("--rest-every", type=float, default=300.0, help="seconds")
    parser.add_argument("--clients", type=int, default=6, help="requests at a time")
    parser.add_argument("--out", type=Path, help="folder for findings")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
