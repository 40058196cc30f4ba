"""One status, three readers: a figure is the same number in `llumctl status` and its JSON, in the
console and in Prometheus."""

import json
import re
from collections.abc import Mapping
from datetime import UTC
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
from tui import drawing
from tui.drawing import UNICODE, Line
from tui.panes import header, instances
from tui.state import Arrived, DashboardState, reduce

Captured = pytest.CaptureFixture[str]
Figures = dict[str, str]
LEVELS = ("high", "normal")


def held_requests() -> ClusterStatus:
    status = next(synthetic.late_binding(1)).status
    levels = synthetic.cluster(status.instances).levels
    return synthetic.moving(status).model_copy(update={"levels": levels})


STATUSES = {
    "instances in all states, with queues": next(synthetic.frames(1)).status,
    "requests held at the controller": held_requests(),
}
each_status = pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES)


# -- Prometheus -------------------------------------------------------------------------------


class Metrics:
    """What Prometheus gets of a status."""

    def __init__(self, status: ClusterStatus) -> None:
        self.status = status
        self._samples = samples(render(status, {}, MoveLog()).decode())

    def value(self, name: str, **labels: str) -> float | None:
        return self._samples.get((f"llumctl_{name}", frozenset(labels.items())))

    def of(self, instance_id: str, name: str, **labels: str) -> float | None:
        return self.value(f"instance_{name}", instance_id=instance_id, **labels)

    def total(self, name: str, **labels: str) -> int:
        found = (self.of(item.id, name, **labels) for item in self.status.instances)
        return round(sum(number or 0 for number in found))

    def instance(self, instance_id: str) -> Figures:
        def number(name: str) -> str:
            found = self.of(instance_id, name)
            return "-" if found is None else f"{found:.0f}"

        usage = self.of(instance_id, "kv_cache_usage_ratio")
        total, free = (self.of(instance_id, f"{name}_blocks") for name in ("total", "free"))
        moves = [number(f"migrations_{way}_requests") for way in ("in", "out")]
        return {
            "freeness": number("freeness_steps"),
            "kv": "-" if usage is None else f"{100 * usage:.0f}%",
            "running": number("running_requests"),
            "waiting": number("waiting_requests"),
            "evictions": number("evictions_total"),
            "moves": "-" if "-" in moves else "/".join(moves),
            "blocks": "-" if total is None or free is None else f"{total - free:.0f}/{total:.0f}",
            "headroom": number("headroom_blocks"),
            "step": latency(self.of(instance_id, "step_seconds")),
            "restarts": number("restarts_total"),
            "age": duration(self.of(instance_id, "age_seconds")),
        }

    def cluster(self) -> Figures:
        figures = {
            "held": f"{self.value('held_requests'):.0f}",
            "moving": f"{self.value('migrations_in_flight_requests'):.0f}",
            "running": str(self.total("running_requests")),
            "waiting": str(self.total("waiting_requests")),
            "evictions": str(self.total("evictions_total")),
        }
        for level in LEVELS:
            running, waiting = (
                self.total(f"level_{name}_requests", level=level) for name in ("running", "waiting")
            )
            figures[level] = f"{running}+{waiting}"
        return figures


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


def figures_of_table(state: DashboardState) -> dict[str, Figures]:
    """Those figures that the console's table of instances has too."""
    found = {}
    for row in instances.rows(state, UNICODE):
        placed = drawing.place(instances.columns(row.levels, 120), 120)
        shown = drawing.cells(placed, row, UNICODE, None)
        cells = {
            place.column.name: "".join(
                span.text for x, span in shown if place.x <= x <= place.x + place.width
            ).strip()
            for place in placed
        }
        names = {"freeness": "freeness", "running": "run", "waiting": "wait", "moves": "moves"}
        found[row.id] = {figure: cells[name] for figure, name in names.items()}
    return found


def figures_of_header(status: ClusterStatus) -> Figures:
    live = header.Liveness(state_of(status), synthetic.START_S, 1.0, "prod-a", (), UTC)
    line = text(header.vitals(status, live, 400))
    patterns = {
        "held": r" held (\d+)",
        "moving": r"mig (\d+) ",
        "running": r"run (\d+)",
        "waiting": r"wait (\d+)",
        "evictions": r"evict (\d+)",
        **{level: rf"{level} (\d+\+\d+)" for level in LEVELS},
    }
    return {name: re.findall(pattern, line)[0] for name, pattern in patterns.items()}


# -- all of them ------------------------------------------------------------------------------


@each_status
def test_a_figure_of_an_instance_is_the_same_everywhere(
    status: ClusterStatus, capsys: Captured
) -> None:
    metrics, state = Metrics(status), state_of(status)
    rows = rows_of(told(status, capsys, "wide").split("\n\n")[1])
    table = figures_of_table(state)
    assert list(rows) == [item.id for item in status.instances]
    for item in status.instances:
        expected = metrics.instance(item.id)
        if item.state is InstanceState.DRAINING:
            expected["freeness"] = "-inf"  # Prometheus gets no sample
        assert figures_of_row(rows[item.id]) == expected, item.id
        assert figures_of_pane(state, item.id) == expected, item.id
        assert table[item.id].items() <= expected.items(), item.id


@each_status
def test_the_json_has_what_prometheus_gets(status: ClusterStatus, capsys: Captured) -> None:
    metrics = Metrics(status)
    document: dict[str, Any] = json.loads(told(status, capsys, "json"))
    assert document["num_held_reqs"] == metrics.value("held_requests")
    assert len(document["moves"]) == metrics.value("migrations_in_flight_requests")
    for item in document["instances"]:
        for suffix, figures in (("", INSTANCE_GAUGES), ("_total", INSTANCE_COUNTERS)):
            for name, field, _ in figures:
                assert item[field] == metrics.of(item["id"], f"{name}{suffix}"), (item["id"], name)


@each_status
def test_a_figure_of_the_cluster_is_the_same_everywhere(
    status: ClusterStatus, capsys: Captured
) -> None:
    expected = Metrics(status).cluster()
    assert figures_of_header(status) == expected
    summary, table, *_ = told(status, capsys, "wide").split("\n\n")
    rows = rows_of(table).values()
    sums = {"running": "RUN", "waiting": "WAIT", "evictions": "EVICT"}
    by_command = {name: re.findall(rf"{name} (\d+)", summary)[0] for name in ("held", "moving")}
    for name, column in sums.items():
        by_command[name] = str(sum(int(row[column].replace("-", "0")) for row in rows))
    for level, running, waiting in re.findall(r"level (\w+): run (\d+) wait (\d+)", summary):
        by_command[level] = f"{running}+{waiting}"
    assert by_command == expected
