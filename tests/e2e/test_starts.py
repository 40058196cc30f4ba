"""`up` where it comes to nothing: what it says then, and that it leaves nothing behind."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tools.cluster import READY_S, Cluster, ray_process, wait_for


def check_refused(cluster: Cluster, args: tuple[str, ...], code: int, said: str) -> None:
    """`up` with these arguments; nothing may be left half-started."""
    ports = ("--port", str(cluster.port), "--control-port", str(cluster.control_port))
    try:
        done = cluster.run("up", "-d", *ports, *args, timeout_s=READY_S)
    except subprocess.TimeoutExpired:
        cluster.clean_up()
        raise
    assert not (cluster.state_dir / "run.json").exists()
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    *lines, cure = done.stderr.strip().splitlines()
    assert any(line.startswith("error: ") for line in lines), lines
    assert said in lines[-1]
    assert cure.startswith("try: ")


def test_port_in_use(base_env: dict[str, str]) -> None:
    cluster = Cluster(base_env, name="spare")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cluster.port = taken.getsockname()[1]
        check_refused(cluster, (), 1, f"127.0.0.1:{cluster.port}")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("./no-such-model",), 2, "there is no model folder"),
        (("--engine-arg", "scheduler_cls=x"), 2, "engine.scheduler_cls is refused: llumctl hooks"),
        (("-n", "500"), 1, "GiB are available"),
        (("--ray-address", "127.0.0.1:1"), 1, "no Ray answers at 127.0.0.1:1"),
    ],
)
def test_bad_input(base_env: dict[str, str], args: tuple[str, ...], code: int, said: str) -> None:
    check_refused(Cluster(base_env, name="spare"), args, code, said)


def test_an_engine_that_cannot_start_is_one_error(base_env: dict[str, str]) -> None:
    """What only vLLM can refuse: here a block size that its CPU attention does not have."""
    cluster = Cluster(base_env, name="failing")
    args = ("-n", "1", "--wait", "--engine-arg", "block_size=17")
    check_refused(cluster, args, 2, "i-0 could not start embedded")
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
    words = "the controller could not start, 4 times in a row: OSError: no such luck"
    check_refused(cluster, ("-n", "1", "--engine", "emulated"), 1, words)
    logs = cluster.state_dir / "logs"
    assert list((logs / "ray").glob("gcs_server*"))
    starts = json.loads((logs / "controller.starts").read_text())
    cluster.nonce = starts["run"].rpartition("-")[2]
    assert not cluster.leftovers()


@pytest.mark.parametrize(("what", "code"), [("an interrupt", 130), ("Ray's death", 1)])
def test_what_ends_a_start_leaves_nothing(base_env: dict[str, str], what: str, code: int) -> None:
    cluster = Cluster(base_env, name="interrupted")
    try:
        cluster.start()
        assert cluster.process is not None
        if what == "an interrupt":
            wait_for(lambda: "importing vLLM" in cluster.read_stderr(), "the instances to start")
            cluster.interrupt()
        else:
            wait_for(lambda: ray_process(cluster.nonce, "raylet"), "Ray").kill()
        assert cluster.process.wait(timeout=60) == code
        assert code == 130 or "Ray" in cluster.read_stderr()
        assert not cluster.leftovers()
    finally:
        cluster.clean_up()
