"""`up`, `status`, `down`: what they print, refuse and leave behind."""

import json
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tools.cluster import PATIENCE_S, Cluster, marked_processes, wait_for

STATUS_FIELDS = {
    "id", "state", "incarnation", "freeness_steps", "virtual_usage_blocks", "num_total_blocks",
    "num_free_blocks", "num_running_reqs", "num_waiting_reqs", "kv_cache_usage", "queue_head",
    "num_evictions", "age_s",
}  # fmt: skip


def test_status_json(cluster: Cluster) -> None:
    status = cluster.wait_quiet()
    assert status["schema_version"] == 1
    assert status["state"] == "ready"
    assert [i["id"] for i in status["instances"]] == ["i-0", "i-1"]
    for instance in status["instances"]:
        assert instance.keys() >= STATUS_FIELDS
        assert instance["freeness_steps"] == instance["num_total_blocks"] * instance["block_size"]
        assert instance["kv_cache_usage"] == 0
        assert instance["age_s"] < 5
    assert cluster.run("status", "--check").returncode == 0

    def is_printed() -> bool:
        printed = json.loads(cluster.run("status", "-o", "json").stdout)
        return bool(_keys(printed) == _keys(cluster.status()))

    # A frontend that has just started tells more with its next status.
    wait_for(is_printed, "the printed status to be the whole one")


def _keys(found: Any) -> Any:
    """Of every object in it."""
    if isinstance(found, dict):
        return {key: _keys(value) for key, value in found.items()}
    return [_keys(value) for value in found] if isinstance(found, list) else None


def test_state_is_private(cluster: Cluster) -> None:
    for path in (cluster.state_dir, *cluster.state_dir.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    secret = json.loads((cluster.state_dir / "run.json").read_text())["control_token"]
    for process in marked_processes(cluster.nonce):
        assert secret not in " ".join(process.cmdline())
    for log in (cluster.state_dir / "logs").iterdir():
        assert secret not in log.read_text(errors="replace"), log


def test_control_api_wants_its_token(cluster: Cluster) -> None:
    url = f"http://127.0.0.1:{cluster.control_port}/v1/status"
    assert httpx.get(url, timeout=PATIENCE_S).status_code == 401
    stranger = {"Authorization": "Bearer none"}
    assert httpx.get(url, headers=stranger, timeout=PATIENCE_S).status_code == 403


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
