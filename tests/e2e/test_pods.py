"""The end of a worker's pod under load, as Kubernetes makes it: the preStop hook of the example,
then SIGTERM, and SIGKILL after the grace period. A host with a process namespace of its own stands
for the pod."""

import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.e2e.test_two_nodes import TwoNodes, two_nodes
from tools.cluster import wait_for
from tools.ray_nodes import FEW_BYTES, QUIET, RAY

BASE = Path(__file__).parents[2] / "examples" / "kubernetes" / "base"
CLUSTER = yaml.safe_load((BASE / "raycluster.yaml").read_text())["spec"]
WORKER = CLUSTER["workerGroupSpecs"][0]["template"]["spec"]
NOTICE_S = tomllib.loads((BASE / "llumctl.toml").read_text())["evacuate"]["notice_s"]


class Pod:
    """The second host's Ray node, as the only process that the container starts."""

    def __init__(self, nodes: TwoNodes) -> None:
        (container,) = WORKER["containers"]
        bash, script, *self._hook_args = container["lifecycle"]["preStop"]["exec"]["command"]
        self._hook = (bash, str(BASE / Path(script).name))
        self.hook_s = float(self._hook_args[0])
        self.grace_s = float(WORKER["terminationGracePeriodSeconds"])
        env = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        host = nodes.hosts[1]
        start = (RAY, "start", "--address", nodes.ray.address, "--node-ip-address", host.address)
        alone = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
        self._outer = subprocess.Popen(
            host.command(*alone, *start, *FEW_BYTES, *QUIET, "--block"),
            env={**nodes.ray.env, **env, "HF_HOME": nodes.ray.env.get("HF_HOME", "")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        found = wait_for(self._first, "the container's process")
        assert found is not None
        self.main = found

    def _first(self) -> psutil.Process | None:
        with suppress(psutil.Error):
            for each in psutil.Process(self._outer.pid).children(recursive=True):
                if RAY in each.cmdline() and each.cmdline()[0] != "unshare":
                    return each
        return None

    def stop(self) -> None:
        """Ends the pod. Fails if the hook gives up, or the container has to be killed."""
        begun_s = time.monotonic()
        inside = ("nsenter", "--target", str(self.main.pid), "--pid", "--mount", "--net")
        subprocess.run((*inside, *self._hook, *self._hook_args), check=True, timeout=self.grace_s)
        hook_s = time.monotonic() - begun_s
        assert hook_s < self.hook_s
        self.main.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs([self.main], timeout=self.grace_s - hook_s)
        assert not alive, "it is killed"

    def kill(self) -> None:
        with suppress(psutil.Error):
            self.main.kill()  # the kernel ends all others of its namespace
        self._outer.wait(timeout=30)


@pytest.fixture
def nodes(tmp_path: Path, base_env: dict[str, str]) -> Iterator[TwoNodes]:
    env = base_env | {"LLUMCTL_EVACUATE_NOTICE_S": str(NOTICE_S)}
    with two_nodes(tmp_path, env, num_instances=4) as made:
        yield made


@pytest.mark.full  # two Ray nodes of its own, for what `test_notices` and `test_planned_ends` show
def test_a_pod_that_ends_loses_no_token(nodes: TwoNodes) -> None:
    pod = Pod(nodes)
    try:
        second = nodes.hosts[1]
        wait_for(lambda: _num_nodes(nodes) == 2, "the pod's node")
        nodes.up()
        nodes.spread()
        there = nodes.on(second)
        load = nodes.load(rate=4.0, seconds=20)
        wait_for(lambda: {e["instance_id"] for e in nodes.requests()} >= set(there), "load there")
        pod.stop()
        assert nodes.on(second) == []
        out, errors = load.communicate(timeout=120)
        assert load.returncode == 0, f"{out}\n{errors}"
        ended = nodes.events("drain_ended")
        assert {each["instance_id"] for each in ended} == set(there)
    finally:
        pod.kill()


def _num_nodes(nodes: TwoNodes) -> int:
    found: Any = subprocess.run(
        nodes.hosts[0].command(RAY, "status", "--address", nodes.ray.address),
        env=nodes.ray.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return sum("node_" in line for line in found.stdout.splitlines())
