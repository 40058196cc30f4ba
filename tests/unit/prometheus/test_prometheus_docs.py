"""docs/metrics.md, the Grafana dashboard and the scrape configuration agree with what is served."""

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from controller.adapters.prometheus import cluster_metrics as figures
from controller.adapters.prometheus.request_metrics import RequestMetrics
from controller.api.settings.settings import Settings
from controller.api.state import run_state
from tests.unit.prometheus.prometheus_support import (
    ROOT,
    TYPES,
    busy,
    cluster_of,
    declared,
    labels_of,
    rendered,
)

DASHBOARD = ROOT / "examples" / "grafana" / "llumctl.json"
SCRAPES = ROOT / "examples" / "prometheus.yml"

# What a name ends in: a unit, a count's `_total`, or what has no unit.
SUFFIXES = (
    "steps",
    "blocks",
    "tokens",
    "requests",
    "instances",
    "ratio",
    "seconds",
    "cores",
    "total",
    "info",
    "state",
)


@pytest.fixture(scope="module")
def page() -> str:
    """All that is served: the controller's page and the frontends' part of theirs."""
    registry = CollectorRegistry()
    RequestMetrics(("normal", "high"), registry)
    return rendered(cluster_of(busy())) + generate_latest(registry).decode()


def section() -> str:
    text = (ROOT / "docs" / "metrics.md").read_text()
    return text.split("\n## Prometheus\n")[1].split("\n## ")[0]


def documented() -> dict[str, tuple[str, str, str]]:
    """(type, unit, meaning) by name; each name once."""
    found: dict[str, tuple[str, str, str]] = {}
    for line in section().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in TYPES:
            kind, name, unit, meaning = cells
            assert name.strip("`") not in found, name
            found[name.strip("`")] = (kind, unit, meaning)
    return found


def test_what_is_served_is_documented_with_its_type_and_nothing_else(page: str) -> None:
    assert {name: kind for name, (kind, _, _) in documented().items()} == declared(page)


def test_names_end_in_their_unit(page: str) -> None:
    for name, kind in declared(page).items():
        assert name.startswith("llumctl_")
        assert name.rpartition("_")[2] in SUFFIXES, name
        assert name.endswith("_total") == (kind == "counter"), name


def test_units_are_those_of_the_names() -> None:
    counted = ("count", "tokens", "bytes", "seconds")
    words = {"ratio": "share", "steps": "decode steps", "total": counted}
    for name, (_, unit, _) in documented().items():
        suffix = name.rpartition("_")[2]
        wanted = "" if suffix in ("info", "state") else words.get(suffix, suffix)
        assert unit.startswith(wanted) and bool(unit) == bool(wanted), name  # noqa: PT018


def test_fields_are_those_that_are_read() -> None:
    rows = documented()
    for kind, gauges, counters in (
        ("instance", figures.INSTANCE_GAUGES, figures.INSTANCE_COUNTERS),
        ("frontend", figures.FRONTEND_GAUGES, figures.FRONTEND_COUNTERS),
    ):
        for suffix, each in (("", gauges), ("_total", counters)):
            for figure in each:
                meaning = rows[f"llumctl_{kind}_{figure.name}{suffix}"][2]
                assert meaning.startswith(f"`{figure.field}`"), figure.name


def test_labels_are_documented(page: str) -> None:
    """In the row, or in the sentence above the row's table."""
    common = {"llumctl_instance": "instance_id", "llumctl_frontend": "frontend_id"}
    for name, labels in labels_of(page).items():
        prefix = "_".join(name.split("_")[:2])
        told = set(re.findall(r"`(\w+)`", documented()[name][2].partition("label")[2]))
        if prefix in common:
            told.add(common[prefix])
        elif prefix in ("llumctl_request", "llumctl_requests"):
            told.add("level")
        assert labels == told, name


# -- the dashboard ------------------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def queries() -> list[str]:
    board = dashboard()
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    return [target["expr"] for target in targets] + variables


def test_the_dashboard_asks_for_what_there_is(page: str) -> None:
    """Metric names, with the suffixes that their types have, and label names."""
    kinds = declared(page)
    served = {name for name, kind in kinds.items() if kind != "histogram"}
    served |= {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    known_labels = set().union(*labels_of(page).values()) | {"le", "cluster"}
    for query in queries():
        names = re.findall(r"\bllumctl_\w+", query)
        assert names
        assert set(names) <= served, query
        matchers = re.findall(r"(\w+)=~?\"", query)
        grouped = [each for by in re.findall(r"by \(([^)]*)\)", query) for each in by.split(", ")]
        assert {*matchers, *grouped} <= known_labels, query


def test_the_dashboard_takes_rates_of_counters_only() -> None:
    for query in queries():
        rated = set(re.findall(r"(?:rate|increase)\((\w+)", query))
        named = set(re.findall(r"\bllumctl_\w+", query))
        counters = {name for name in named if name.endswith(("_total", "_bucket"))}
        assert rated == counters, query


def test_the_dashboard_is_bound_to_no_data_source() -> None:
    board = dashboard()
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    found = re.findall(r'"uid": "([^"]*)"', json.dumps(board["panels"]))
    assert found
    assert set(found) == {"${datasource}"}
    assert set(re.findall(r"\$(\w+)", " ".join(queries()))) <= {*variables, "__rate_interval"}
    assert board["schemaVersion"] == 42


def test_the_dashboards_panels_lie_side_by_side() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


# -- the scrape configuration -------------------------------------------------------------


def test_no_label_is_one_that_prometheus_sets(page: str) -> None:
    """It would rename ours to `exported_...`."""
    jobs = yaml.safe_load(SCRAPES.read_text())["scrape_configs"]
    of_targets = {
        label for job in jobs for each in job["static_configs"] for label in each["labels"]
    }
    assert not set().union(*labels_of(page).values()) & (of_targets | {"instance", "job"})


def test_the_scrape_configuration_fits_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/USER")
    settings = Settings()
    jobs = {job["job_name"]: job for job in yaml.safe_load(SCRAPES.read_text())["scrape_configs"]}
    controller, frontends = jobs["llumctl-controller"], jobs["llumctl-frontends"]
    token_file = run_state.state_path(settings.cluster.name) / "view-token"
    assert controller["authorization"] == {"credentials_file": str(token_file)}
    assert "authorization" not in frontends
    for job, port in ((controller, settings.control.port), (frontends, settings.endpoint.port)):
        (targets,) = job["static_configs"]
        assert targets["targets"] == [f"127.0.0.1:{port}"]
        assert targets["labels"] == {"cluster": settings.cluster.name}
