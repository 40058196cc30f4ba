"""Policies side by side: the same requests on 16 emulated instances under each, live and simulated.

One policy and seed per call: without arguments the next one that is missing. Runs are collected in
benchmarks/results/cluster, and the tables show those that are there. Times are the profile's: what
a clock shows, times the speed. Before anything is read from them: `kept time` says whether the
machine kept the profile's time.
"""

import argparse
import sys
from dataclasses import asdict

from rich.console import Console

from benchmarks import results
from benchmarks.cluster_runs import POLICIES, PROFILE, ClusterLoad, Collected, Wanted
from benchmarks.cluster_tables import health_table, latency_table, ratio_lines
from benchmarks.policy_cluster import Cast, play
from benchmarks.process_groups import signals_interrupt
from benchmarks.same_trace import delayed, simulated, write_trace
from benchmarks.servers import ServerError
from controller.api.errors import LlumctlError

RATE = 6.86
"""The knee of infaas++ for M-M on 16 of these engines: there its P99 TTFT, as a mean over three
seeds of the simulator, is 30 s (docs/paper.md)."""
SPEED = 2.0
NUM_SIMULATED = 8
"""Simulated runs of the same requests: with arrivals later by a few milliseconds, other queues have
a long prompt at their head, and P99 TTFT may be another by a factor of five."""
DELAY_S = 0.01
"""Of a request on its way to an instance and back, in the mean: `make bench-fidelity` measured 8 to
11 ms."""


def main() -> int:
    options = _options()
    console = results.make_console()
    load = ClusterLoad(
        options.lengths, options.rate, options.requests, options.instances, options.blocks
    )
    collected = Collected(load)
    wanted = collected.missing()
    if options.policy is not None:
        wanted = Wanted(options.policy, options.seed)
    code = 0
    if wanted is None:
        console.print("all runs of this load are there; --policy and --seed repeat one")
    elif not options.show:
        code = _run(console, load, collected, wanted, options.speed)
    _show(console, load, collected)
    return code


def _run(
    console: Console, load: ClusterLoad, collected: Collected, wanted: Wanted, speed: float
) -> int:
    console.print(f"[bold]{wanted.policy}, seed {wanted.seed}[/bold]")
    policy, trace = load.policy(wanted.policy), load.trace(wanted.seed)
    path = write_trace(trace, collected.folder / f"trace-{wanted.seed}.jsonl")
    in_virtual_time = [
        simulated(load.setup(policy), delayed(trace, DELAY_S * speed, n))
        for n in range(NUM_SIMULATED)
    ]
    cast = Cast(policy, load.num_instances, PROFILE, speed, load.num_blocks)
    try:
        with signals_interrupt():
            live = play(cast, path, wanted.seed)
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except (ServerError, LlumctlError) as error:
        console.print(f"[red]cut short: {error}[/red]")
        return 1
    del live["lags_s"]  # 10,000 figures that nobody reads here
    for warning in live["warnings"]:
        console.print(f"[yellow]{warning}[/yellow]")
    figures = {"load": asdict(load), "live": live, "simulated": in_virtual_time}
    console.print(f"written to {collected.write(wanted, figures)}")
    return int(bool(live["num_failed"] or live["num_wrong_tokens"]))


def _show(console: Console, load: ClusterLoad, collected: Collected) -> None:
    runs = collected.runs()
    if not runs:
        return
    title = (
        f"{load.name}: s, TPOT in ms, of the profile; of {NUM_SIMULATED} simulated runs the mean"
    )
    console.print(latency_table(runs, title))
    console.print(health_table(runs))
    for line in ratio_lines(runs):
        console.print(line)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", choices=POLICIES)
    parser.add_argument("--seed", type=int, default=1, help="of the policy that is given")
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--blocks", type=int, help="KV blocks of an instance; the profile's 851")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=RATE, help="requests/s, in profile time")
    parser.add_argument("--lengths", default="M-M")
    parser.add_argument("--speed", type=float, default=SPEED, help="times faster than the profile")
    parser.add_argument("--show", action="store_true", help="only show what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
