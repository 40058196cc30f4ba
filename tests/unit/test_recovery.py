"""`down` of a cluster whose run state is broken, and what it leaves alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError
from controller.api.state import run_state
from controller.main import down
from controller.main.machine import run_folders
from controller.main.machine.processes import processes_of
from controller.main.machine.ray_environment import NONCE_VARIABLE
from controller.main.plan import FILE, ClusterPlan
from llumctl.app import run
from tests.unit.test_security import plan

NONCE = "00ff" * 4


@pytest.fixture
def made() -> Iterator[ClusterPlan]:
    """The plan of cluster `default`, in its state folder."""
    folder = run_state.state_dir("default")
    made = plan(folder).model_copy(
        update={"nonce": NONCE, "temp_dir": str(run_folders.make_temp(NONCE))}
    )
    (folder / FILE).write_text(made.model_dump_json())
    yield made
    run_folders.remove_temp(made.temp_dir, NONCE)


@pytest.fixture
def member() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
        env=os.environ | {NONCE_VARIABLE: NONCE},
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("text", ["", "[" * 9999, '{"schema_version": 1}', "a pipe"])
@pytest.mark.process
def test_a_broken_run_state_leads_to_down_which_stops_what_there_is(
    made: ClusterPlan,
    member: subprocess.Popen[bytes],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = run_state.run_file("default")
    if text == "a pipe":
        os.mkfifo(file)
    else:
        file.write_text(text)
    for command in ("status", "up"):
        assert run([command]) == 1
        assert "try:   llumctl down " in capsys.readouterr().err
    assert run(["down", "--now"]) == 0
    member.wait(10)
    assert processes_of(NONCE) == []
    assert not Path(made.temp_dir).exists()
    assert not file.exists()
    if text != "a pipe":
        assert file.with_suffix(".json.bad").read_text() == text
    assert run(["status"]) == 3
    assert run(["down"]) == 0


@pytest.mark.parametrize("cluster", ["default", "other"])
def test_without_a_plan_of_its_own_nothing_is_stopped_and_the_way_is_free(
    made: ClusterPlan, cluster: str
) -> None:
    """The plan is broken, or that of another cluster."""
    text = "{" if cluster == "default" else made.model_dump_json()
    (run_state.state_dir(cluster) / FILE).write_text(text)
    run_state.run_file(cluster).write_text("{")
    with pytest.raises(LlumctlError, match="nothing was stopped"):
        down.run(cluster, drain=False, timeout_s=0.0, progress=lambda _: None)
    assert run_state.load(cluster) is None
    assert Path(made.temp_dir).exists()
