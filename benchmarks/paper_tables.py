"""The tables of docs/paper.md and docs/paper-tables.md, from what llumctl wrote with `-o json`.

figures   one table per metric and rank, of files of `llumctl simulate paper`. Files of one figure
          may have a trace each. Cells are means over seeds with half of their 95% interval; ratios
          are those of the means, the baseline over ours. Geometric means leave out points without
          a ratio; their intervals come from the seeds too, so points may share requests.
means     of those files the geometric means alone, all metrics in one table.
others    the policies of those files that have no ratio: round-robin in figure 11.
cost      instances at one prefill latency, of files of figure 15.
overtaken how long one request was overtaken under llumnix+, of files of figure 11 at matched load.
bound     how much of the gap between infaas++ and the bound O1 llumnix+ closes: files of figure 11
          at matched load, and of `llumctl simulate -p O1` at the same loads.
parts     one line per file of `llumctl simulate -p llumnix+`, named as NAME=FILE: figures of the
          first, and how many times as high those of the others are.
policies  one line per policy of one run each, of files of `llumctl simulate`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import paper_points, paper_runs

Found = tuple[str, Any]
"""A file's name, as given or before the `=`, and what it holds."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--metric", action="append", default=[], help="only this one: 'ttft_s p99'")
    parser.add_argument("--no-paper", action="store_true", help="without the paper's points")
    args = parser.parse_args()
    for table in KINDS[args.kind]([_read(name) for name in args.files], args):
        print("\n".join(table), end="\n\n")
    return 0


def _read(given: str) -> Found:
    name, _, file = given.rpartition("=")
    return name or given, json.loads(Path(file).read_text("utf-8"))


def _figures(found: Sequence[Found], args: argparse.Namespace) -> Iterator[list[str]]:
    files = [file for _, file in found]
    yield from paper_points.tables(files, args.metric, with_paper=not args.no_paper)


def _all_means(found: Sequence[Found], args: argparse.Namespace) -> Iterator[list[str]]:
    yield paper_points.means([file for _, file in found], args.metric)


def _parts(found: Sequence[Found], _: argparse.Namespace) -> Iterator[list[str]]:
    yield paper_runs.parts(dict(found))


def _of_files(
    table: Callable[[Sequence[Any]], list[str]],
) -> Callable[[Sequence[Found], argparse.Namespace], Iterator[list[str]]]:
    def of(found: Sequence[Found], _: argparse.Namespace) -> Iterator[list[str]]:
        yield table([file for _, file in found])

    return of


KINDS: dict[str, Callable[[Sequence[Found], argparse.Namespace], Iterator[list[str]]]] = {
    "figures": _figures,
    "means": _all_means,
    "others": _of_files(paper_points.others),
    "cost": _of_files(paper_points.cost),
    "overtaken": _of_files(paper_runs.overtaken),
    "bound": _of_files(paper_runs.bound),
    "parts": _parts,
    "policies": _of_files(paper_runs.policies),
}


if __name__ == "__main__":
    sys.exit(main())
