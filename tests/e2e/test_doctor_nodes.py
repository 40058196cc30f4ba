"""`llumctl doctor` on a Ray with two nodes, each a host of its own."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tools.cluster import LLUMCTL, free_ports, wait_for
from tools.ray_nodes import RayNodes
from tools.two_hosts import Host, two_hosts

CONFIG = """
[cluster]
engine = "emulated"
instances = 2
"""


class Doctor:
    def __init__(self, hosts: tuple[Host, Host], folder: Path, env: dict[str, str]) -> None:
        self.hosts = hosts
        config = folder / "c.toml"
        config.write_text(CONFIG)
        (port,) = free_ports(1)
        self.ray = RayNodes(hosts, port, env)
        self._env = env | {"LLUMCTL_CONFIG": str(config)}

    def checks(self, code: int, host: str = "auto", on: int = 0) -> dict[str, dict[str, Any]]:
        """By name, as asked on one of the hosts; asserts the exit code."""
        done = subprocess.run(
            self.hosts[on].command(
                LLUMCTL, "doctor", "--ray-address", self.ray.address, "-o", "json"
            ),
            env=self._env | {"LLUMCTL_CLUSTER_HOST": host},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    def probes(self) -> list[str]:
        found = []
        for pid in (pid for host in self.hosts for pid in host.pids()):
            with suppress(psutil.Error):
                found.append(" ".join(psutil.Process(pid).cmdline()))
        return [command for command in found if "Probe" in command or "nodes.gather" in command]


@pytest.fixture
def doctor(tmp_path: Path, base_env: dict[str, str]) -> Iterator[Doctor]:
    with two_hosts() as hosts:
        made = Doctor(hosts, tmp_path, base_env)
        try:
            made.ray.start_first()
            yield made
        finally:
            made.ray.end()


@pytest.mark.full
def test_what_nodes_need_is_asked_of_each(doctor: Doctor) -> None:
    first, second = doctor.hosts
    outside = doctor.checks(1, on=1)["nodes"]
    assert f"ray start --address={doctor.ray.address}" in outside["cure"], outside

    doctor.ray.start_second()
    well = doctor.checks(0)
    about_nodes = {name: check for name, check in well.items() if name.startswith("node")}
    assert len(about_nodes) == 13, list(about_nodes)
    assert {check["result"] for check in about_nodes.values()} <= {"ok", "warn"}
    assert first.address in well["nodes"]["what"]
    assert second.address in well["nodes"]["what"]
    assert well["node network"]["what"] == "all of 2 ways between 2 nodes are open"
    wait_for(lambda: not doctor.probes(), "the probes to end")

    one_address = doctor.checks(1, host="127.0.0.1")
    assert [n for n, c in one_address.items() if c["result"] == "fail"] == ["node addresses"]

    second.cut()
    silent = doctor.checks(1)["nodes"]
    assert silent["result"] == "fail"
    assert second.address in silent["what"]
    assert first.address not in silent["what"]
    assert "ray start" in silent["cure"]
