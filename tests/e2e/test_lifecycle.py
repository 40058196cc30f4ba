"""`up`, `status`, `down`: what they print, refuse and leave behind."""

import json
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tools.cluster import Cluster, wait_for


def test_status_json(cluster: Cluster) -> None:
    status = cluster.wait_quiet()
    assert (status["schema_version"], status["state"]) == (1, "ready")
    assert [i["id"] for i in status["instances"]] == ["i-0", "i-1"]
    for instance in status["instances"]:
        assert instance["freeness_steps"] == instance["num_total_blocks"] * instance["block_size"]
        assert instance["age_s"] < 5
    assert cluster.run("status", "--check").returncode == 0
    printed = json.loads(cluster.run("status", "-o", "json").stdout)
    assert printed.keys() == status.keys()


def test_second_up_is_refused(cluster: Cluster) -> None:
    done = cluster.run("up", "-d")
    assert done.returncode == 5
    assert "already running" in done.stderr
    assert "llumctl status" in done.stderr.splitlines()[-1]
    assert cluster.status()["state"] == "ready"


SHM = Path("/dev/shm")


def in_use() -> set[Path]:
    """Shared memory of living processes: other clusters have some, too."""
    found: set[Path] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            text = maps.read_text()
            found |= {SHM / name for name in re.findall(rf"{SHM}/(\S+)", text)}
    return found


@pytest.mark.last
def test_sigkilled_foreground_then_down(cluster: Cluster) -> None:
    """The cluster of all other tests loses its terminal, then is stopped under load."""
    shm = set(SHM.iterdir())
    assert cluster.process is not None
    cluster.process.kill()
    cluster.process.wait()
    assert cluster.status()["state"] == "ready"
    with subprocess.Popen(
        ["curl", "-sN", f"{cluster.url}/v1/completions", "-H", "Content-Type: application/json",
         "-d", json.dumps({"model": "embedded", "prompt": "one", "max_tokens": 200,
                           "stream": True, "ignore_eos": True})],
        stdout=subprocess.PIPE, text=True,
    ) as stream:  # fmt: skip
        assert stream.stdout is not None
        stream.stdout.readline()
        done = cluster.run("down")
        text = stream.stdout.read()
    assert done.returncode == 0, done.stderr
    assert '"finish_reason":"length"' in text, "down cut a live request within the grace time"
    assert "data: [DONE]" in text
    assert not cluster.leftovers()
    wait_for(lambda: not set(SHM.iterdir()) - shm - in_use(), "its shared memory to be gone", 5)
    assert cluster.run("status").returncode == 3
    again = cluster.run("down")
    assert again.returncode == 0
    assert "nothing to stop" in again.stderr
