"""The reference of metrics, the Grafana dashboard and the scrape configuration agree with the
metrics that are served.
"""

import json
import re

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from controller.adapters.prometheus import RequestMetrics
from controller.api.settings.settings import Settings
from controller.api.state import run_state
from tests.unit.prometheus.prometheus_support import (
    ROOT,
    busy,
    cluster_of,
    declared,
    labels_of,
    rendered,
)


@pytest.fixture(scope="module")
def page() -> str:
    """All metrics that are served: the controller's page and the frontends' part of theirs."""
    registry = CollectorRegistry()
    RequestMetrics(("normal", "high"), registry)
    return rendered(cluster_of(busy())) + generate_latest(registry).decode()


def documented() -> dict[str, tuple[str, set[str]]]:
    """The type and the labels by name, as in docs/reference/metrics.md; each name once."""
    text = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(llumctl_\w+)` \| (\w+) \| ([^|]*) \|", text, re.MULTILINE)
    found = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(found) == len(rows)
    return found


def test_what_is_served_is_documented_with_its_type_and_nothing_else(page: str) -> None:
    told = documented()
    assert {name: kind for name, (kind, _) in told.items()} == declared(page)
    labels = labels_of(page)
    assert {name: told[name][1] for name in labels} == labels
    for name, (kind, _) in told.items():
        assert name.endswith("_total") == (kind == "counter"), name
    assert not set().union(*labels.values()) & {"instance", "job"}, "Prometheus sets these itself"


def test_the_dashboard_asks_for_what_there_is(page: str) -> None:
    """Checks metric names, with the suffixes of their types, and label names."""
    board = json.loads((ROOT / "examples" / "grafana" / "llumctl.json").read_text())
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    kinds = declared(page)
    served = {name for name, kind in kinds.items() if kind != "histogram"}
    served |= {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    known_labels = set().union(*labels_of(page).values()) | {"le", "cluster"}
    for query in [target["expr"] for target in targets] + variables:
        names = re.findall(r"\bllumctl_\w+", query)
        assert names
        assert set(names) <= served, query
        counters = {name for name in names if name.endswith(("_total", "_bucket"))}
        assert set(re.findall(r"(?:rate|increase)\((\w+)", query)) == counters, query
        matchers = re.findall(r"(\w+)=~?\"", query)
        grouped = [each for by in re.findall(r"by \(([^)]*)\)", query) for each in by.split(", ")]
        assert {*matchers, *grouped} <= known_labels, query


def test_the_scrape_configuration_fits_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/USER")
    settings = Settings()
    written = yaml.safe_load((ROOT / "examples" / "prometheus.yml").read_text())
    controller, frontends = sorted(written["scrape_configs"], key=lambda job: job["job_name"])
    token_file = run_state.state_path(settings.cluster.name) / "view-token"
    assert controller["authorization"] == {"credentials_file": str(token_file)}
    assert "authorization" not in frontends
    for job, port in ((controller, settings.control.port), (frontends, settings.endpoint.port)):
        (targets,) = job["static_configs"]
        assert targets["targets"] == [f"127.0.0.1:{port}"]
        assert targets["labels"] == {"cluster": settings.cluster.name}


# -- the scrape configuration -------------------------------------------------------------
