"""`up` where it comes to nothing: what it says then, and that it leaves nothing behind."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tools.cluster import READY_S, Cluster, marked_processes, wait_for


@pytest.fixture
def spare(base_env: dict[str, str]) -> Cluster:
    """A name and ports for a cluster that is not to be started."""
    return Cluster(base_env, name="spare")


def refused(cluster: Cluster, *args: str) -> tuple[int, list[str]]:
    """`up` with these arguments: exit code and stderr; nothing may be left half-started."""
    ports = ("--port", str(cluster.port), "--control-port", str(cluster.control_port))
    try:
        done = cluster.run("up", "-d", *ports, *args, timeout_s=READY_S)
    except subprocess.TimeoutExpired:
        cluster.clean_up()
        raise
    assert not (cluster.state_dir / "run.json").exists()
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("try: "), lines
    assert any(line.startswith("error: ") for line in lines), lines
    return done.returncode, lines


def test_port_in_use(spare: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spare.port = taken.getsockname()[1]
        code, lines = refused(spare)
    assert code == 1
    assert f"127.0.0.1:{spare.port}" in lines[-2]
    assert "--port" in lines[-1]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("./no-such-model",), 2, "there is no model folder"),
        (("no-such/model-at-all",), 1, "cannot be fetched"),
        (("--engine-arg", "scheduler_cls=x"), 2, "engine.scheduler_cls is refused: llumctl hooks"),
        (("--engine-arg", "max_model_length=9"), 2, "did you mean max_model_len"),
        (("--engine-arg", "kv_cache_memory_bytes=1000000"), 2, "less than one request"),
        (("-n", "500"), 1, "GiB are available"),
        (("--ray-address", "127.0.0.1:1"), 1, "no Ray answers at 127.0.0.1:1"),
    ],
)
def test_bad_input(spare: Cluster, args: tuple[str, ...], code: int, said: str) -> None:
    done, lines = refused(spare, *args)
    assert done == code
    assert said in lines[-2]


def test_unknown_key_in_the_configuration(spare: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "llumctl.toml"
    config.write_text("[cluster]\ninstances = 2\n\n[scheduler]\npolcy = 'llumnix'\n")
    code, lines = refused(spare, "--config", str(config))
    assert code == 2
    assert f"{config}:5" in lines[-2]
    assert "policy" in lines[-2]


def test_an_engine_that_cannot_start_is_one_error(base_env: dict[str, str]) -> None:
    """What only vLLM can refuse: here a block size that its CPU attention does not have."""
    cluster = Cluster(base_env, name="failing", up_args=("-n", "1"))
    code, lines = refused(cluster, "-n", "1", "--wait", "--engine-arg", "block_size=17")
    assert code == 2
    assert "i-0 could not start embedded" in lines[-2]
    assert not cluster.leftovers()


DIES = """
import sys

class Dies:
    def find_spec(self, name, path=None, target=None):
        if name == "controller.adapters.http.control_server":
            raise OSError("no such luck")

sys.meta_path.insert(0, Dies())
"""


@pytest.mark.full
def test_a_controller_that_dies_at_each_start_is_one_error(
    base_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES)
    cluster = Cluster(base_env | {"PYTHONPATH": str(tmp_path)}, name="headless")
    code, lines = refused(cluster, "-n", "1", "--engine", "emulated")
    assert code == 1
    words = "error: the controller could not start, 4 times in a row: OSError: no such luck"
    assert lines[-2] == words
    logs = cluster.state_dir / "logs"
    assert list((logs / "ray").glob("gcs_server*"))
    starts = json.loads((logs / "controller.starts").read_text())
    cluster.nonce = starts["run"].rpartition("-")[2]
    assert not cluster.leftovers()


def test_ctrl_c_in_mid_start_leaves_nothing(base_env: dict[str, str]) -> None:
    cluster = Cluster(base_env, name="interrupted")
    try:
        cluster.start()
        wait_for(lambda: "importing vLLM" in cluster.read_stderr(), "the instances to start")
        cluster.interrupt()
        assert cluster.process is not None
        assert cluster.process.wait(timeout=30) == 130
        assert not cluster.leftovers()
    finally:
        cluster.clean_up()


def test_dead_ray_is_told_and_cleared(base_env: dict[str, str]) -> None:
    """Ray dies in mid-start: `up` says so and leaves nothing."""
    cluster = Cluster(base_env, name="rayless")
    try:
        cluster.start()
        raylet = wait_for(
            lambda: [p for p in marked_processes(cluster.nonce) if p.name() == "raylet"], "Ray"
        )
        raylet[0].kill()
        assert cluster.process is not None
        assert cluster.process.wait(timeout=60) == 1
        assert "Ray" in cluster.read_stderr()
        assert not cluster.leftovers()
    finally:
        cluster.clean_up()
