"""Instances on several machines: a line for each node."""

import pytest

from controller.api.wire.status import InstanceState, InstanceStatus
from tests.unit.tui.tui_support import state_of
from tools import synthetic_cluster as synthetic
from tui.drawing import UNICODE
from tui.panes import instances


def at(id_: str, node: str, freeness_steps: float = 500.0, **fields: object) -> InstanceStatus:
    return synthetic.instance(id_, node=node, freeness_steps=freeness_steps, **fields)


def gone(id_: str, node: str) -> InstanceStatus:
    return InstanceStatus(id=id_, state=InstanceState.RESTARTING, incarnation=1, node=node)


def starting(id_: str) -> InstanceStatus:
    return InstanceStatus(id=id_, state=InstanceState.STARTING, incarnation=0)


CLOSED = {"closed_by": ("cordoned", "cooling")}
A = "a: 1 instance  freeness 500  run 12 wait 0  kv 55%"
LOST = "! b lost with 2 instances: i-1 i-2"


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        ([at("i-0", "a"), at("i-1", "a", 600.0), starting("i-2")], ["i-0", "i-1", "i-2"]),
        ([], []),
        (
            [
                at("i-0", "a"),
                at("i-1", "b", 7.0, num_waiting_reqs=3),
                at("i-2", "a", 90.0),
                at("i-3", "b", 800.0, state=InstanceState.STALLED),
                starting("i-4"),
            ],
            [
                "b: 2 instances, 1 stalled  freeness 7  run 24 wait 3  kv 55%",
                *("i-3", "i-1"),
                "a: 2 instances  freeness 590  run 24 wait 0  kv 55%",
                *("i-2", "i-0"),
                "no machine yet: 1 instance, 1 starting",
                "i-4",
            ],
        ),
        (
            [
                at("i-0", "a", 90.0, closed_by=("cooling",)),
                at("i-1", "a", 91.0, **CLOSED),
                at("i-2", "a", 92.0, **CLOSED),
                at("i-3", "b"),
            ],
            [
                "a: 3 instances, 2 cordoned  freeness 90  run 36 wait 0  kv 55%",
                *("i-0", "i-1", "i-2"),
                A.replace("a", "b", 1),
                "i-3",
            ],
        ),
        ([at("i-0", "a"), gone("i-1", "b"), gone("i-2", "b")], [LOST, A, "i-0"]),
        (
            [at("i-0", "a"), gone("i-1", "b")],
            ["b: 1 instance, 1 restarting  freeness -  run 0 wait 0  kv -", "i-1", A, "i-0"],
        ),
    ],
    ids=[
        "on one node nothing is grouped",
        "no instances",
        "groups stand in the order of their first instance",
        "cordoned instances are named and their room is not counted",
        "a lost node is one line",
        "a node with one instance that is gone may be there",
    ],
)
def test_lines_of_nodes(found: list[InstanceStatus], lines: list[str]) -> None:
    shown = grouped(*found, filtered=False)
    assert shown == lines
    assert len(shown) == instances.num_lines(state_of(*found).status)


def grouped(*found: InstanceStatus, filtered: bool) -> list[str]:
    state = state_of(*found)
    rows = instances.ordered(instances.rows(state, UNICODE), "freeness", descending=False)
    return [
        instances.node_line(row) if isinstance(row, instances.NodeRow) else row.id
        for row in instances.grouped(rows, state.status, filtered=filtered)
    ]


def test_a_filter_shows_the_instances_of_a_lost_node() -> None:
    found = grouped(at("i-0", "a"), gone("i-1", "b"), gone("i-2", "b"), filtered=True)
    assert found[:3] == [LOST, "i-1", "i-2"]
