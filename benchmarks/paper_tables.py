"""The tables about the Llumnix paper: docs/paper/*.csv, and those that docs/paper.md shows.

Without arguments all of docs/paper, from ten seeds of each run: runs that are not in
benchmarks/results/paper yet are made (those of a table of figure 11 took a minute on 16 cores).
With arguments one table, from files that `llumctl simulate` wrote with `-o json`:

figures   a line per metric, point and policy, of files of `llumctl simulate paper`; those of one
          figure may have a trace each. A ratio is the baseline's mean over ours. Geometric means
          leave out points without a ratio; their intervals come from the seeds too, so points may
          share requests.
means     of those files the geometric means alone, all metrics in one table.
cost      instances at one prefill latency, of files of figure 15.
overtaken how long one request was overtaken under llumnix+, of files of figure 11 at matched load.
bound     how much of the gap between infaas++ and the bound O1 llumnix+ closes: files of figure 11
          at matched load, and of `llumctl simulate -p O1` at the same loads.
parts     files of `llumctl simulate -p llumnix+`, named as PART=FILE: figures of the first of each
          trace, and how many times as high those of its others are.
policies  one line per policy of one run each, of files of `llumctl simulate`.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import paper_points, paper_runs
from benchmarks.paper_cells import Table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "paper"
RUNS = ROOT / "benchmarks" / "results" / "paper"

Found = tuple[str, Any]
"""A file's name, as given or before the `=`, and what it holds."""

KINDS: Mapping[str, Callable[[Sequence[Found]], Table]] = {
    "figures": lambda found: paper_points.figures([file for _, file in found]),
    "means": lambda found: paper_points.means([file for _, file in found]),
    "cost": lambda found: paper_points.cost([file for _, file in found]),
    "overtaken": lambda found: paper_runs.overtaken([file for _, file in found]),
    "bound": lambda found: paper_runs.bound([file for _, file in found]),
    "parts": paper_runs.parts,
    "policies": lambda found: paper_runs.policies([file for _, file in found]),
}

KNEES = {
    "M-M": 6.86,
    "L-L": 2.67,
    "S-L": 3.66,
    "L-S": 17.1,
    "S-S": 27.9,
    "sharegpt": 8.31,
    "burstgpt": 9.42,
}
"""Where `infaas++` has a P99 TTFT of 30 s, in requests per second (docs/paper.md)."""
MOST = [trace for trace in KNEES if trace != "S-S"]
"""S-S wants 20,000 requests, and is left out of the tables beside the knee and of the bound."""
PARTS = {
    "all of it": "",
    "overtaking off": "holding.overtaking=false",
    "making room off": "holding.making_room=false",
    "reserved share 0: one instance is kept": "holding.reserved_share=0",
    "no relief before an eviction": "holding.relief_below_steps=0",
    "no room to grow left": "holding.room_to_grow_tokens=0",
}
"""Of llumnix+: the setting that switches each off."""

Simulated = list[str]
"""Arguments of `llumctl simulate`, without seeds and output."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=list(KINDS), nargs="?")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="not as CSV")
    args = parser.parse_args()
    if args.kind is None:
        _write_all()
        return 0
    if not args.files:
        parser.error("name the files of the runs")
    table = KINDS[args.kind]([_read(name) for name in args.files])
    print(table.markdown() if args.markdown else table.csv(), end="")
    return 0


def _read(given: str) -> Found:
    name, _, file = given.rpartition("=")
    return name or given, json.loads(Path(file).read_text("utf-8"))


def plan() -> dict[str, tuple[str, dict[str, Simulated]]]:
    """Of each file in docs/paper the kind of its table, and its runs, each under its name."""
    matched = {trace: _matched(trace, "1") for trace in KNEES}
    bursts = ["paper", "figure13", "--matched", "--load", "1", "--knee", f"S-S={KNEES['S-S']}"]
    chunked = {
        figure: {f"{figure}-chunked": ["paper", figure, "--mode", "chunked"]}
        for figure in ("figure14", "figure15")
    }
    bounds = {f"O1 {trace}": [*_at_knee(trace), "-p", "O1"] for trace in MOST}
    return {
        **{
            figure: ("figures", {figure: ["paper", figure]})
            for figure in ("figure11", "figure12", "figure13", "figure14", "figure15")
        },
        "figure13-matched": ("figures", {"bursts": [*bursts, "--requests", "20000"]}),
        "figure14-chunked": ("figures", chunked["figure14"]),
        "figure15-chunked": ("figures", chunked["figure15"]),
        "figure15-cost": ("cost", {"figure15": ["paper", "figure15"]}),
        "figure15-chunked-cost": ("cost", chunked["figure15"]),
        "matched-1.0": ("figures", matched),
        "matched-0.9": ("figures", _all_matched(MOST, "0.9")),
        "matched-1.05": ("figures", _all_matched(MOST, "1.05")),
        "matched-prefill-first": (
            "figures",
            _all_matched(KNEES, "1", "--mode", "prefill-first"),
        ),
        "overtaken": ("overtaken", matched),
        "bound": ("bound", {**{trace: matched[trace] for trace in MOST}, **bounds}),
        "parts": (
            "parts",
            {
                f"{trace} {part}": [
                    *_at_knee(trace),
                    "-p",
                    "llumnix+",
                    *(["--set", setting] if setting else []),
                ]
                for trace in ("M-M", "S-L", "burstgpt")
                for part, setting in PARTS.items()
            },
        ),
    }


def _all_matched(traces: Sequence[str] | Mapping[str, float], *more: str) -> dict[str, Simulated]:
    return {" ".join((trace, *more)): _matched(trace, *more) for trace in traces}


def _matched(trace: str, load: str, *more: str) -> Simulated:
    knee = ["-w", trace, "--knee", f"{trace}={KNEES[trace]}"]
    requests = ["--requests", "20000"] if trace == "S-S" else []
    return ["paper", "figure11", "--matched", "--load", load, *knee, *requests, *more]


def _at_knee(trace: str) -> Simulated:
    return ["-w", trace, "--rate", str(KNEES[trace])]


def _write_all() -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    for name, (kind, runs) in plan().items():
        found = [(run.partition(" ")[2], _simulated(run, given)) for run, given in runs.items()]
        (FOLDER / f"{name}.csv").write_text(KINDS[kind](found).csv(), "utf-8")
        print(f"docs/paper/{name}.csv", flush=True)


def _simulated(name: str, given: Simulated) -> Any:
    """What that run wrote; it is made if it is not there."""
    path = RUNS / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.json"
    if not path.exists():
        command = [sys.executable, "-m", "llumctl", "simulate", *given]
        result = subprocess.run(
            [*command, "--seeds", "10", "-o", "json"], stdout=subprocess.PIPE, check=True
        )
        path.write_bytes(result.stdout)
    return json.loads(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
