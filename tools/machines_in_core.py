"""Finds state machines outside the core: `make lint` runs this.

Decisions that have a state belong to machines in `controller/core`, which simulations, tests and
the live cluster all run. Runners (`controller/runtime`, `controller/sim`,
`controller/adapters/http`) await, send and time. A state machine in a runner cannot be recognised
with certainty, so this looks for its usual form: one function that both

- decides by time: it compares (`<`, `<=`, `>`, `>=`) where either side names a time in seconds, as
`now_s`, `self._since_s` or `SILENCE_S`, and - keeps state: it sets, changes or deletes an
attribute, or an entry of a container that is one (`self._since_s = now_s`, `move.told += 1`,
`self._asked.pop(request_id)`).

The functions inside a function belong to its body. `KNOWN` names the functions that this finds
today, each with the reason why it is no decision of the core. The list may only shrink: a new
function fails the check, and so does an entry that is no longer found.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNNERS = ("controller/runtime", "controller/sim", "controller/adapters/http")
CHANGING = frozenset(
    {
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend"),
        *("insert", "pop", "popitem", "popleft", "remove", "setdefault", "update"),
    }
)
"""Methods that change a container."""
ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)

SHORT_CUT = "It spares a simulated run what would change nothing: outcomes are equal without it."
KNOWN: Mapping[str, str] = {
    "controller/adapters/http/calls.py: Guard._count": (
        "Calls are refused by their token alone; the time decides when the log sums them up."
    ),
    "controller/adapters/http/model_api.py: LatestStatus.now": (
        "A status that was built is shown for 50 ms; what it shows is decided elsewhere."
    ),
    "controller/runtime/controller/roster.py: Directories._tell": (
        "How often a directory is sent, and not to frontends for which it would pile up; what is"
        " in it are the states of the scheduler and the roster."
    ),
    "controller/runtime/controller/operations/drain_runner.py: DrainForecasts.lately": (
        "Callers within a second share one question to the frontends, which is asked anew then."
    ),
    "controller/runtime/controller/traffic.py: Traffic.tick": (
        "A recording is asked for again each second, whatever came of it."
    ),
    "controller/runtime/instance/live_requests.py: Emission.ttft_p99": (
        "A percentile is computed once a second; it is shown, and nothing is decided by it."
    ),
    "controller/runtime/instance/engine_thread.py: EngineThread._step_for_ever": (
        "The loop that takes steps: after a long turn it waits for the controller, where"
        " `core/fleet/liveness.py` has decided whether the instance was fenced."
    ),
    "controller/runtime/instance/engine_thread.py: ProcessCpu.cores": (
        "A measurement over a window."
    ),
    "controller/runtime/repeating.py: GuardedTurns.take": (
        "A turn that failed is not taken again for a second, so that errors do not bury the log."
    ),
    "controller/sim/cluster.py: SimCluster._report": (
        "It models how old statuses are; an instance that has not changed reports nothing."
    ),
    "controller/sim/event_queue.py: EventQueue.at": "Virtual time itself.",
    "controller/sim/instance.py: SimInstance.status": SHORT_CUT,
    "controller/sim/cluster.py: Moments.come": SHORT_CUT,
    "controller/sim/sim_moves.py: Links._beat": (
        "The pace at which moves under way are told that time has passed; their machines decide."
    ),
}
"""The functions that this finds and that are no machines, with the reasons."""


def main() -> None:
    sys.exit("\n".join(complaints(set(offenders(ROOT)), KNOWN)) or 0)


def complaints(found: Set[str], known: Mapping[str, str]) -> list[str]:
    belongs = "decides by time and keeps state: it belongs to a machine in controller/core"
    gone = f"is found no more: take it off the list in tools/{Path(__file__).name}"
    return [
        *(f"{name} {belongs}" for name in sorted(found - known.keys())),
        *(f"{name} {gone}" for name in sorted(known.keys() - found)),
    ]


def offenders(root: Path) -> Iterator[str]:
    """`path: Class.function` of each, below `root`."""
    for folder in RUNNERS:
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name in offending_functions(tree.body):
                yield f"{path.relative_to(root)}: {name}"


def offending_functions(body: Iterable[ast.stmt], within: str = "") -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef():
                yield from offending_functions(node.body, f"{within}{node.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                parts = list(ast.walk(node))
                if any(map(_decides_by_time, parts)) and any(map(_keeps_state, parts)):
                    yield f"{within}{node.name}"


def _decides_by_time(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    is_ordering = any(isinstance(operator, ORDERINGS) for operator in node.ops)
    return is_ordering and any(_names_seconds(part) for part in ast.walk(node))


def _names_seconds(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lower().endswith("_s")
    return False


def _keeps_state(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            return True
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=value):
            return isinstance(value, ast.Attribute)
        case ast.Call(func=ast.Attribute(value=ast.Attribute(), attr=name)):
            return name in CHANGING
    return False


if __name__ == "__main__":
    main()
