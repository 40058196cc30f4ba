"""A cluster on two Ray nodes, each a host of its own: placement, moves between them, a cable that
is cut for a while, and the loss of one host with all that runs there."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tools.cluster import LLUMCTL, free_ports, wait_for
from tools.ray_nodes import RayNodes, kill
from tools.two_hosts import Host, two_hosts

CONFIG = """
[cluster]
ray_address = "{address}:{port}"
host = "auto"
engine = "emulated"
instances = {instances}
frontends = 1

[endpoint]
port = {endpoint}

[control]
port = {control}

[scheduler]
stall_timeout_s = 2.0
fence_after_s = 4.0
"""


class TwoNodes:
    """`llumctl` runs on the first host."""

    def __init__(
        self,
        hosts: tuple[Host, Host],
        folder: Path,
        base_env: dict[str, str],
        token: Path | None = None,
        num_instances: int = 6,
    ) -> None:
        self.hosts = hosts
        self._folder = folder
        ray_port, endpoint, control = free_ports(3)
        self.ray = RayNodes(hosts, ray_port, base_env, token)
        config = folder / "c.toml"
        config.write_text(
            CONFIG.format(
                address=hosts[0].address,
                port=ray_port,
                endpoint=endpoint,
                control=control,
                instances=num_instances,
            )
        )
        self._env = base_env | {"LLUMCTL_CONFIG": str(config)}

    def up(self) -> None:
        self.llumctl("up", "--detach", "--wait")

    def llumctl(self, *args: str, on: int = 0, code: int = 0, **env: str) -> str:
        """What it prints; fails if it ends otherwise."""
        done = subprocess.run(
            self.hosts[on].command(LLUMCTL, *args),
            env=self._env | env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def read(self, *args: str) -> Any:
        return json.loads(self.llumctl(*args, "-o", "json"))

    def instances(self) -> dict[str, dict[str, Any]]:
        return {each["id"]: each for each in self.read("status")["instances"]}

    def on(self, host: Host) -> list[str]:
        return [i for i, each in self.instances().items() if each["node"] == host.address]

    def spread(self) -> None:
        """Adds instances until one is on the first host and two are on the second: the loss of a
        single one is not told as that of its node. Ray decides where they go: of six it has put
        five on one host, and of four all."""
        while not self.on(self.hosts[0]) or len(self.on(self.hosts[1])) < 2:
            number = len(self.instances()) + 1
            assert number <= 12, "Ray puts all instances on one host"
            self.llumctl("scale", str(number), "--wait")

    def requests(self) -> list[dict[str, Any]]:
        found = self.read("requests")["requests"]
        return [each for each in found if each["state"] == "running"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = self.read("events", "--limit", "1000")["events"]
        return [each for each in found if each["kind"] == kind]

    def load(self, rate: float, seconds: int) -> "subprocess.Popen[str]":
        """Checks every token of every answer."""
        bench = ("bench", "--rate", str(rate), "--duration", str(seconds), "--lengths", "60,200")
        return subprocess.Popen(
            self.hosts[0].command(LLUMCTL, *bench, "-o", "json"),
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        with suppress(subprocess.TimeoutExpired, AssertionError):
            self.llumctl("down", "--now")
        self.ray.end()


@contextmanager
def two_nodes(
    folder: Path, base_env: dict[str, str], token: Path | None = None, num_instances: int = 6
) -> Iterator[TwoNodes]:
    """Of which the first has Ray's head. `token`: the file of the token that Ray asks for."""
    with two_hosts() as hosts:
        made = TwoNodes(hosts, folder, base_env, token, num_instances)
        try:
            made.ray.start_first()
            yield made
        finally:
            made.end()


@pytest.fixture
def nodes(tmp_path: Path, base_env: dict[str, str]) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path, base_env) as made:
        yield made


def until(condition: Callable[[], Any], what: str) -> Any:
    return wait_for(condition, what, timeout_s=90)


@pytest.mark.full
def test_a_cluster_outlives_its_second_node(nodes: TwoNodes) -> None:
    first, second = nodes.hosts
    nodes.ray.start_second()
    nodes.up()
    nodes.spread()
    there = nodes.on(second)
    load = nodes.load(rate=2.0, seconds=75)

    moving = until(
        lambda: next((each for each in nodes.requests() if each["instance_id"] in there), None),
        "a request on the second node",
    )
    moved = nodes.read("migrate", moving["id"], "--to", nodes.on(first)[0])
    assert moved["outcome"] == "migrated", moved

    until(lambda: {each["instance_id"] for each in nodes.requests()} & set(there), "others there")
    second.cut()
    (lost,) = until(lambda: nodes.events("node_lost"), "the silent node to be given up")
    assert lost["numbers"]["num_instances"] == len(there)
    assert lost["labels"]["node"] == second.address
    second.mend()
    until(
        lambda: all(nodes.instances()[i]["incarnation"] == 2 for i in there),
        "its instances to come back as others",
    )

    until(lambda: {each["instance_id"] for each in nodes.requests()} & set(there), "others there")
    kill(second)
    until(lambda: len(nodes.events("node_lost")) == 2, "the dead node to be given up")
    until(lambda: nodes.read("status")["state"] == "ready", "its instances to serve elsewhere")
    assert nodes.on(second) == []

    out, errors = load.communicate(timeout=120)
    assert load.returncode == 0, f"{out}\n{errors}"


def about_nodes(nodes: TwoNodes, code: int, host: str = "auto", on: int = 0) -> dict[str, Any]:
    """What `doctor` says about them, by the name of the check, where one asks on one of them."""
    given = ("--ray-address", nodes.ray.address, "-o", "json")
    said = nodes.llumctl("doctor", *given, on=on, code=code, LLUMCTL_CLUSTER_HOST=host)
    return {
        each["name"]: each for each in json.loads(said)["checks"] if each["name"].startswith("node")
    }


def probes(hosts: tuple[Host, Host]) -> list[str]:
    found = []
    for pid in (pid for host in hosts for pid in host.pids()):
        with suppress(psutil.Error):
            found.append(" ".join(psutil.Process(pid).cmdline()))
    return [command for command in found if "Probe" in command or "nodes.gather" in command]


@pytest.mark.full
def test_doctor_asks_each_node_for_what_nodes_need(nodes: TwoNodes) -> None:
    first, second = nodes.hosts
    outside = about_nodes(nodes, 1, on=1)["nodes"]
    assert f"ray start --address={nodes.ray.address}" in outside["cure"], outside

    nodes.ray.start_second()
    well = about_nodes(nodes, 0)
    assert len(well) == 13, list(well)
    assert {check["result"] for check in well.values()} <= {"ok", "warn"}
    assert first.address in well["nodes"]["what"]
    assert second.address in well["nodes"]["what"]
    assert well["node network"]["what"] == "all of 2 ways between 2 nodes are open"
    wait_for(lambda: not probes(nodes.hosts), "the probes to end")

    one_address = about_nodes(nodes, 1, host="127.0.0.1")
    assert [n for n, c in one_address.items() if c["result"] == "fail"] == ["node addresses"]

    second.cut()
    silent = about_nodes(nodes, 1)["nodes"]
    assert silent["result"] == "fail"
    assert second.address in silent["what"]
    assert first.address not in silent["what"]
