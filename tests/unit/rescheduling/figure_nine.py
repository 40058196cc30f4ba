"""The four cases of the paper's figure 9 in numbers of our own, played by pairing and relief.

Two instances of 20 blocks of 16 tokens, thresholds of 48 steps; moves take no time, nobody grows.
`python tests/unit/rescheduling/figure_nine.py` prints the tables of docs/scheduling.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.core.emptying.relief import Candidate, Decision, next_move
from controller.core.emptying.rounds import InstanceLoad, pair
from controller.core.load.freeness import batch_size, freeness, instance_virtual_usage
from controller.core.load.snapshot import InstanceSnapshot, Level
from tests.unit.rescheduling.relief_builders import (
    BLOCK_SIZE,
    EASY,
    begun,
    instance,
    queued,
    running,
    view_of,
)

LEVELS = (Level("normal", 0), Level("high", 1, target_load_tokens=8 * BLOCK_SIZE))
MAX_ROUNDS = 10


@dataclass
class Pair:
    left: list[Candidate]
    right: list[Candidate]
    draining: bool = False

    def snapshots(self) -> tuple[InstanceSnapshot, InstanceSnapshot]:
        return (
            instance(*self.left, instance_id="left", total_blocks=20, draining=self.draining),
            instance(*self.right, instance_id="right", total_blocks=20),
        )

    def move(self, chosen: Candidate) -> None:
        self.left.remove(chosen)
        self.right.append(chosen)

    def admit(self) -> list[str]:
        """Who gets in: the head of a queue that fits."""
        started = []
        for requests, snapshot in zip((self.left, self.right), self.snapshots(), strict=True):
            head = snapshot.queue_head
            if head is None or head.demand_blocks > snapshot.num_free_blocks:
                continue
            waiting = next(each for each in requests if each.request_id == head.request_id)
            requests[requests.index(waiting)] = running(
                waiting.request_id, head.demand_blocks, waiting.rank
            )
            started.append(waiting.request_id)
        return started


CASES = {
    "balance": Pair([running("x", 6), running("y", 6), running("z", 4)], [running("w", 4)]),
    "queue-head": Pair([running("x", 12), running("y", 4), queued("q", 8)], [running("w", 10)]),
    "headroom": Pair(
        [running("high", 4, rank=1), running("x", 3), running("y", 3)], [running("w", 2)]
    ),
    "drain": Pair(
        [running("x", 4), running("y", 6), queued("q", 5)], [running("w", 4)], draining=True
    ),
}


def play(case: Pair) -> list[tuple[str, tuple[InstanceSnapshot, InstanceSnapshot], str]]:
    """(what happened, both instances after it, who is where), until nothing happens any more."""
    case = replace(case, left=list(case.left), right=list(case.right))
    rows = [("at first", case.snapshots(), _holds(case))]
    for _ in range(MAX_ROUNDS):
        happened = len(rows)
        for decision in _relief(case):
            assert decision.chosen is not None
            case.move(decision.chosen)
            what = f"{decision.chosen.request_id} moves: {decision.reason}"
            rows.append((what, case.snapshots(), _holds(case)))
        for started in case.admit():
            rows.append((f"{started} starts", case.snapshots(), _holds(case)))
        if len(rows) == happened:
            return rows
    raise AssertionError("it does not come to rest")


def _relief(case: Pair) -> list[Decision]:
    """Of one round."""
    left, right = case.snapshots()
    loads = [InstanceLoad.of(s, LEVELS, may_send=True, may_receive=True) for s in (left, right)]
    if [(p.source_id, p.destination_id) for p in pair(loads, EASY)] != [("left", "right")]:
        return []
    view = replace(view_of(case.left, levels=LEVELS), source=left, destination=right)
    decisions = []
    while (decision := next_move(view)).chosen is not None:
        decisions.append(decision)
        view = begun(view, decision.chosen)
    return decisions


def table(case: Pair) -> str:
    lines = [
        "| | left | ΣV | B | F | right | ΣV | B | F |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for what, snapshots, holds in play(case):
        cells = [what]
        for snapshot, names in zip(snapshots, holds.split("|"), strict=True):
            cells += [
                names,
                _number(instance_virtual_usage(snapshot, LEVELS)),
                str(batch_size(snapshot)),
                _number(freeness(snapshot, LEVELS)),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _holds(case: Pair) -> str:
    return "|".join(_names(requests) for requests in (case.left, case.right))


def _names(requests: Sequence[Candidate]) -> str:
    """`x 6` runs and holds 6 blocks, `(q 8)` waits for 8."""
    names = [f"{r.request_id} {r.num_blocks}" for r in requests if not r.queued]
    names += [f"({r.request_id} {r.demand_blocks(BLOCK_SIZE)})" for r in requests if r.queued]
    return ", ".join(names) or "-"


def _number(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    return f"{value:.1f}".removesuffix(".0").replace("-", "−")


if __name__ == "__main__":
    import sys

    for name, each in CASES.items():
        sys.stdout.write(f"<!-- {name} -->\n{table(each)}<!-- /{name} -->\n\n")
