"""Six made-up incidents as recordings, the same in each run: `python -m benchmarks.incidents
FOLDER` writes them, `llumctl top --replay FILE` shows them, docs/incidents.md tells what to see.

The cluster is that of `benchmarks.incident_cluster`. What no model has (a process that hangs, a
link that is slow) is put on top by each incident.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.incident_cluster import BEGUN_S, Cluster, Instance
from controller.api.recording import RecordingHeader, RecordingWriter
from controller.api.wire.status import DrainStatus, EndedMoveStatus, MoveStatus
from controller.api.wire.stream import Frame

SECONDS = 90
Incident = Callable[[Cluster, int], None]
"""What happens in a second of an incident, before its status; its traffic included."""
HAPPENS_S = 20
SHOWN_S = 65
"""From here on the screen tells."""


def hung_engine(cluster: Cluster, second: int) -> None:
    """The engine of i-3 hangs: its requests stand still, and new ones go elsewhere."""
    if second == HAPPENS_S:
        cluster.instances[3].stopped = True
    if second == HAPPENS_S + 10:
        cluster.instances[3].taken = True
        cluster.tell("instance_stalled", "i-3", reason="no progress reported")
    cluster.traffic(1, 3.0)


def giants(cluster: Cluster, second: int) -> None:
    """A client begins to send prompts of thousands of tokens, and asks for as many: they fill the
    memory of all instances, and nearly nothing else gets a place."""
    if second >= HAPPENS_S and second % 2 == 0:
        cluster.arrive(4200, 3500)
    cluster.traffic(1)


def slow_link(cluster: Cluster, second: int) -> None:
    """The link to the machine of i-4 is a hundredth as fast as it was: moves there do not end."""
    _moves_to(cluster, "i-4", second, blocks_per_s=0.5 if second >= HAPPENS_S else 150.0)
    cluster.traffic(1, 3.0)


def priority_burst(cluster: Cluster, second: int) -> None:
    """Hundreds of requests of high priority come at once: most instances are kept for them, and the
    others wait."""
    if HAPPENS_S <= second < HAPPENS_S + 40:
        for _ in range(2):
            cluster.arrive(400, 500, rank=1)
    cluster.traffic(1, 2.2)


def stuck_drain(cluster: Cluster, second: int) -> None:
    """i-2 is drained while the others are full: two of its requests find room nowhere."""
    drained = cluster.instances[2]
    if second == HAPPENS_S - 10:
        for _ in range(2):
            cluster.arrive(4000, 4000, to="i-2")
    if second == HAPPENS_S:
        drained.taken = True
        cluster.tell("drain_started", "i-2", actor="ana@head")
    if second >= HAPPENS_S:
        _drain(cluster, drained, second)
    cluster.traffic(1, 5.5)


def unfit_head(cluster: Cluster, second: int) -> None:
    """A request needs nearly all of an instance's memory. Enough is free in the cluster, and
    nowhere enough in one place; who comes after it waits too."""
    if second == HAPPENS_S - 5:
        for _ in range(3):
            cluster.arrive(1400, 2500, to="i-1")
    if second == HAPPENS_S:
        cluster.arrive(11_000, 300, to="i-1")
    if second > HAPPENS_S:
        cluster.arrive(250, 250, to="i-1")
    cluster.traffic(1, 2.4)


INCIDENTS: Mapping[str, Incident] = {
    "hung-engine": hung_engine,
    "giants": giants,
    "slow-link": slow_link,
    "priority-burst": priority_burst,
    "stuck-drain": stuck_drain,
    "unfit-head": unfit_head,
}


def frames(name: str, seconds: int = SECONDS) -> Iterator[Frame]:
    """A status a second with the events of that second before it."""
    cluster = Cluster(sorted(INCIDENTS).index(name))
    for second in range(seconds):
        INCIDENTS[name](cluster, second)
        yield from cluster.frames()


def _moves_to(cluster: Cluster, to: str, second: int, blocks_per_s: float) -> None:
    """A move to each of two instances begins every third second; that elsewhere is over at once."""
    going = [
        move.model_copy(
            update={
                "age_s": move.age_s + 1,
                "num_blocks_copied": min(move.num_blocks, round(blocks_per_s * (move.age_s + 1))),
            }
        )
        for move in cluster.moves
    ]
    over = [move for move in going if move.num_blocks_copied >= move.num_blocks]
    ended = [
        EndedMoveStatus(
            migration_id=move.migration_id,
            request_id=move.request_id,
            from_instance_id=move.from_instance_id,
            to_instance_id=move.to_instance_id,
            outcome="migrated",
            reason=move.reason,
            ended_s=BEGUN_S + cluster.now_s,
            num_blocks=move.num_blocks,
            num_bytes=move.num_blocks << 20,
            downtime_s=0.024,
        )
        for move in over
    ]
    kept = [move for move in going if move not in over]
    if second % 3 == 0:
        kept += [_new_move(cluster, source, other) for source, other in (("i-0", to), ("i-1", to))][
            : max(0, 3 - len(kept))
        ]
        done = _new_move(cluster, "i-5", "i-2")
        ended.append(
            EndedMoveStatus(
                migration_id=done.migration_id,
                request_id=done.request_id,
                from_instance_id="i-5",
                to_instance_id="i-2",
                outcome="migrated",
                reason="balance",
                ended_s=BEGUN_S + cluster.now_s + 0.4,
                num_blocks=done.num_blocks,
                num_bytes=done.num_blocks << 20,
                downtime_s=0.022,
            )
        )
    cluster.moves = tuple(kept)
    cluster.ended_moves = (*reversed(ended), *cluster.ended_moves)[:20]
    cluster.num_migrated = 20 + second % 4


def _new_move(cluster: Cluster, source: str, to: str) -> MoveStatus:
    dice = cluster.dice
    return MoveStatus(
        migration_id=f"m-{dice.getrandbits(32):08x}",
        request_id=f"cmpl-{dice.getrandbits(64):016x}-0-{dice.getrandbits(32):08x}",
        from_instance_id=source,
        to_instance_id=to,
        state="copying",
        stage=0,
        num_blocks_copied=0,
        num_blocks=dice.randint(60, 90),
        reason="balance",
        age_s=0.0,
    )


def _drain(cluster: Cluster, drained: Instance, second: int) -> None:
    """Its small requests end or move; a giant's moves are refused, again and again."""
    number = drained.engine.snapshot("i-2", 1).num_running
    drained.drain = DrainStatus(
        drain_id="d-1",
        num_requests_left=number,
        num_moved=7,
        deadline_s=BEGUN_S + HAPPENS_S + 30,
    )
    if second % 2 == 0 and number:
        others = [each for each in cluster.instances if each is not drained]
        to = max(others, key=lambda each: each.engine.snapshot(each.id, 1).num_free_blocks)
        tried = _new_move(cluster, "i-2", to.id)
        refused = EndedMoveStatus(
            migration_id=tried.migration_id,
            request_id=f"cmpl-9f3c0d27a6b1e854-0-0c1f77d{second // 2 % 2}",
            from_instance_id="i-2",
            to_instance_id=to.id,
            outcome="kept",
            why="the destination has not enough free blocks",
            reason="drain",
            ended_s=BEGUN_S + cluster.now_s,
            num_blocks=0,
            num_bytes=0,
        )
        cluster.ended_moves = (refused, *cluster.ended_moves)[:20]
        cluster.num_failed = min(30, cluster.num_failed + 1)


def write(path: Path, found: Iterable[Frame]) -> None:
    writer = RecordingWriter(path, RecordingHeader(cluster="prod-a", time_s=BEGUN_S))
    for frame in found:
        writer.append(frame)
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.incidents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(INCIDENTS))
    options = parser.parse_args()
    if unknown := set(options.names) - set(INCIDENTS):
        parser.error(f"no such incident: {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or INCIDENTS:
        path = options.folder / f"{name}.jsonl"
        write(path, frames(name))
        print(f"llumctl top --replay {path} --at {SHOWN_S}s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
