"""One status, three readers: a figure is the same number in `llumctl status` and its JSON, in the
console and in Prometheus."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from controller.adapters.prometheus import INSTANCE_COUNTERS, INSTANCE_GAUGES, render
from controller.api.text.quantities import duration, latency
from controller.api.wire.status import ClusterStatus, InstanceState
from controller.api.wire.stream import StatusFrame
from controller.core.migration.move_records import MoveLog
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController
from tests.unit.prometheus.prometheus_support import samples
from tools import synthetic_cluster as synthetic
from tui.drawing import UNICODE, Line
from tui.panes import instances
from tui.state import Arrived, DashboardState, reduce

Captured = pytest.CaptureFixture[str]
Figures = dict[str, str]


STATUSES = {
    "instances in all states, with queues": next(synthetic.frames(1)).status,
    "requests held at the controller": synthetic.moving(next(synthetic.late_binding(1)).status),
}
each_status = pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES)


def known(status: ClusterStatus, instance_id: str) -> Figures:
    """An instance's figures as tables write them."""
    (item,) = (each for each in status.instances if each.id == instance_id)

    def number(found: float | None) -> str:
        return "-" if found is None else f"{found:.0f}"

    usage, total, free = item.kv_cache_usage, item.num_total_blocks, item.num_free_blocks
    moves = [number(item.num_moves_in), number(item.num_moves_out)]
    draining = item.state is InstanceState.DRAINING
    return {
        "freeness": "-inf" if draining else number(item.freeness_steps),
        "kv": "-" if usage is None else f"{100 * usage:.0f}%",
        "running": number(item.num_running_reqs),
        "waiting": number(item.num_waiting_reqs),
        "evictions": number(item.num_evictions),
        "moves": "-" if "-" in moves else "/".join(moves),
        "blocks": "-" if total is None or free is None else f"{total - free}/{total}",
        "headroom": number(item.headroom_blocks),
        "step": latency(item.step_time_s),
        "restarts": number(item.num_restarts),
        "age": duration(item.age_s),
    }


# -- the command line -------------------------------------------------------------------------


def told(status: ClusterStatus, capsys: Captured, form: str) -> str:
    with FakeController(status=status) as fake:
        remember(fake.url)
        assert run(["status", "-o", form]) == 0
    return capsys.readouterr().out


def rows_of(table: str) -> dict[str, Mapping[str, str]]:
    """The cells of each instance by the names of their columns."""
    head, *lines = table.splitlines()
    cells = [dict(zip(head.split(), line.split(), strict=False)) for line in lines]
    return {row["ID"]: row for row in cells}


def figures_of_row(row: Mapping[str, str]) -> Figures:
    return {
        "freeness": row["FREENESS"],
        "kv": row["KV-USE"],
        "running": row["RUN"],
        "waiting": row["WAIT"],
        "evictions": row["EVICT"],
        "moves": row["MIG-IN/OUT"],
        "blocks": row["BLOCKS"],
        "headroom": row["HEADROOM"],
        "step": row["STEP"].replace(".0ms", "ms"),
        "restarts": row["RESTARTS"],
        "age": row["AGE"],
    }


# -- the console ------------------------------------------------------------------------------


def state_of(status: ClusterStatus) -> DashboardState:
    frame = StatusFrame(time_s=synthetic.START_S, status=status)
    return reduce(DashboardState(), [Arrived(frame, synthetic.START_S)])


def text(line: Line) -> str:
    return "".join(span.text for span in line)


def figures_of_pane(state: DashboardState, instance_id: str) -> Figures:
    """The facts below the table, a line each."""
    lines = [text(line) for line in instances.facts(state, instance_id, 44, UNICODE)]
    facts = {line[1:12].strip(): line[13:].strip() for line in lines}
    moves, used = (
        re.findall(r"[\d-]+", facts["moves"]),
        re.search(r"(\d+)(?: \+\w+)?%", facts["kv"]),
    )
    (restarts,) = re.findall(r"\((\d+) restarts\)", facts["incarnation"])
    return {
        "freeness": facts["freeness"].split()[0],
        "kv": f"{used[1]}%" if used else "-",
        "running": facts["running"].split()[0],
        "waiting": facts["waiting"],
        "evictions": facts["evictions"],
        "moves": "-" if "-" in moves else "/".join(moves),
        "blocks": "/".join(re.findall(r"\d+", facts["blocks"])[:2]) or "-",
        "headroom": facts["headroom"].split()[0],
        "step": facts["step"].split()[0],
        "restarts": restarts,
        "age": facts["status"].split()[0],
    }


# -- all of them ------------------------------------------------------------------------------


@each_status
def test_a_figure_of_an_instance_is_the_same_in_the_table_and_the_console(
    status: ClusterStatus, capsys: Captured
) -> None:
    state = state_of(status)
    rows = rows_of(told(status, capsys, "wide").split("\n\n")[1])
    assert list(rows) == [item.id for item in status.instances]
    for item in status.instances:
        expected = known(status, item.id)
        assert figures_of_row(rows[item.id]) == expected, item.id
        assert figures_of_pane(state, item.id) == expected, item.id


@each_status
def test_the_json_has_what_prometheus_gets(status: ClusterStatus, capsys: Captured) -> None:
    metrics = samples(render(status, {}, MoveLog()).decode())
    document: dict[str, Any] = json.loads(told(status, capsys, "json"))

    def metric(name: str, **labels: str) -> float | None:
        return metrics.get((f"llumctl_{name}", frozenset(labels.items())))

    assert document["num_held_reqs"] == metric("held_requests")
    assert len(document["moves"]) == metric("migrations_in_flight_requests")
    for item in document["instances"]:
        for suffix, figures in (("", INSTANCE_GAUGES), ("_total", INSTANCE_COUNTERS)):
            for name, field, _ in figures:
                found = metric(f"instance_{name}{suffix}", instance_id=item["id"])
                assert item[field] == found, (item["id"], name)
