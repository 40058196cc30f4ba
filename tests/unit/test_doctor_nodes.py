"""How `llumctl doctor` judges the facts of each node, with facts that are made up; and what a probe
finds on this machine."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.api.settings.settings import ClusterTable, Settings
from controller.api.wire.status import Check, CheckResult
from controller.main.checks.model_weights import MemorySize
from controller.main.doctor import doctor, gather, probe
from controller.main.doctor.doctor import Part, Wanted, node_checks
from controller.main.doctor.gather import Gpu, NodeFacts, Questions, RayFacts, Versions
from controller.main.machine.capacity import GIB

OURS = Versions(
    python="3.11.7", ray="2.60.0", llumctl="1.0 abcd", vllm="0.32.0", torch="2.13.0+cu130"
)
H100 = Gpu(name="H100", memory_mib=81559, compute_capability="9.0")
H200 = Gpu(name="H200", memory_mib=143771, compute_capability="9.0")
A10 = Gpu(name="A10", memory_mib=24564, compute_capability="8.6")
WANTED: dict[str, Any] = {
    "address": "192.0.2.1:6379",
    "host": "auto",
    "ours": OURS,
    "needs_vllm": True,
}
FIRST, SECOND = "192.0.2.1", "192.0.2.2"


def part(name: str = "", num_instances: int = 4, num_gpus: int = 1) -> Part:
    return Part(name, num_instances, num_gpus, MemorySize(GIB))


def node(address: str, **changed: Any) -> NodeFacts:
    facts: dict[str, Any] = {
        "node_id": address,
        "address": address,
        "versions": OURS,
        "gpus": (H100, H100),
        "num_ray_gpus": 2,
        "shm_free_bytes": 8 * GIB,
        "available_bytes": 64 * GIB,
        "max_open_files": 65536,
    }
    return NodeFacts(**facts | changed)


def judged(*nodes: NodeFacts, num_free_gpus: int = 4, **wanted: Any) -> dict[str, Check]:
    nodes = nodes or (node(FIRST), node(SECOND))
    facts = RayFacts(nodes=nodes, num_free_gpus=num_free_gpus)
    checks = node_checks(facts, Wanted(**{"parts": (part(),), **WANTED, **wanted}))
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert bool(check.cure) == (check.result is not CheckResult.OK), check
    return {check.name: check for check in checks}


def test_two_nodes_that_are_alike() -> None:
    checks = judged()
    assert {check.result for check in checks.values()} == {CheckResult.OK}
    assert len(checks) == 15


# The second node differs in one thing, and one row says so with its address.
DIFFERENCES: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("nodes", {"problem": "no answer in 30 s"}, "fail", "no answer in 30 s"),
    ("node python", {"versions": OURS.model_copy(update={"python": "3.12"})}, "fail", "3.12"),
    ("node ray", {"versions": OURS.model_copy(update={"ray": "2.59.0"})}, "fail", "2.59.0"),
    ("node llumctl", {"versions": OURS.model_copy(update={"llumctl": ""})}, "fail", "has none"),
    ("node gpus", {"gpus": (A10, A10)}, "fail", "2 x A10"),
    ("node gpus", {"gpus": (H200, H200)}, "warn", "2 x H200"),
    ("node gpus", {"gpus": (H100,)}, "fail", "Ray hands out 2 of 1"),
    ("node model", {"model_problem": "there is no folder /m"}, "fail", "no folder /m"),
    ("node model", {"uncached_models": ("Q/Q",)}, "warn", "Q/Q not in its cache"),
    ("node logs", {"log_dir_problem": "/ cannot be written"}, "fail", "cannot be written"),
    ("node network", {"unreachable": {FIRST: "timed out"}}, "fail", f"to {FIRST}: timed out"),
    ("node clocks", {"clock_ahead_s": -0.11}, "warn", "0.11 s behind"),
    ("node shared memory", {"shm_free_bytes": GIB // 2 - 1}, "warn", "0.5 GiB free"),
    ("node memory", {"available_bytes": 2 * GIB - 1}, "warn", "2.0 GiB available"),
    ("node memory", {"available_bytes": GIB - 1}, "fail", "1.0 GiB available"),
    ("node open files", {"max_open_files": 4095}, "warn", "may open 4095"),
)
# What is still fine.
BOUNDS: dict[str, Any] = {
    "clock_ahead_s": 0.1,
    "shm_free_bytes": GIB // 2,
    "available_bytes": 2 * GIB,
    "max_open_files": 4096,
}


def test_a_node_that_differs() -> None:
    for name, difference, result, words in DIFFERENCES:
        checks = judged(node(FIRST), node(SECOND, **BOUNDS | difference))
        found = checks.pop(name)
        assert found.result.value == result, name
        assert SECOND in found.what
        assert words in found.what
        assert not found.what.startswith(FIRST) or name == "node gpus"
        if name == "nodes":
            del checks["node gpus"]  # there are fewer then
        assert {check.result for check in checks.values()} == {CheckResult.OK}


def test_addresses_that_no_other_node_can_use() -> None:
    local = judged(node("127.0.0.1"), node(SECOND))["node addresses"]
    assert local.result is CheckResult.FAIL
    assert "127.0.0.1: no other node can reach it" in local.what
    for host in ("127.0.0.1", FIRST):
        fixed = judged(host=host)["node addresses"]
        assert (fixed.result, fixed.cure) == (CheckResult.FAIL, 'set cluster.host to "auto"')
    alone = judged(node("127.0.0.1"), host="127.0.0.1")["node addresses"]
    assert alone.result is CheckResult.OK


def test_a_node_needs_memory_for_its_share_of_each_model() -> None:
    parts = (part("big", 2), part("small", 5))  # a node has one of them, and up to three
    assert judged(parts=parts, num_free_gpus=8)["node memory"].result is CheckResult.OK
    tight = node(SECOND, available_bytes=4 * GIB - 1)
    check = judged(node(FIRST), tight, parts=parts)["node memory"]
    assert check.result is CheckResult.WARN
    assert "1 instances of big, 1.0 GiB for each of 3 instances of small" in check.what


def test_gpus_that_are_too_few() -> None:
    wanted: dict[str, Any]
    for wanted, result, cure in (
        ({"parts": (part(num_instances=5),)}, "fail", "llumctl up -n 4"),
        # An instance is on one machine with all of its GPUs.
        ({"parts": (part(num_instances=1, num_gpus=4),)}, "fail", "add nodes"),
        # One of 2 and one of 1 take a node each, and leave one GPU.
        ({"parts": (part("small", 2), part("big", 1, 2))}, "ok", ""),
        (
            {"parts": (part("small", 1), part("big", 2, 2))},
            "fail",
            "fewer instances in [models.small], [models.big]",
        ),
        ({"num_free_gpus": 3}, "warn", "ray status"),
        ({"parts": (part(num_gpus=0),)}, "warn", "llumctl up on a machine with GPUs"),
        ({"parts": (part(num_gpus=0),), "needs_vllm": False}, "ok", ""),
    ):
        checks = judged(**wanted)
        assert checks["node gpus"].result.value == result
        assert checks["node gpus"].cure.startswith(cure)
        assert ("node vllm" in checks) == wanted.get("needs_vllm", True)


def test_a_ray_that_cannot_be_joined() -> None:
    for problem, cure in (
        ("Version mismatch: ...", "install the same Ray and Python"),
        (gather.NO_TOKEN, "export RAY_AUTH_MODE=token"),
        ("no raylet of this node", "ray start --address=192.0.2.1:6379"),
        ("the head node is away", "ray status --address=192.0.2.1:6379"),
    ):
        (check,) = node_checks(RayFacts(problem=problem), Wanted(parts=(part(),), **WANTED))
        assert (check.name, check.result) == ("nodes", CheckResult.FAIL)
        assert check.cure.startswith(cure)
    (check,) = judged(node(FIRST, problem="it is gone")).values()
    assert check.result is CheckResult.FAIL, "without an answer nothing is said of answers"


# -- the probe --------------------------------------------------------------------------------


def test_a_probe_reaches_what_listens(tmp_path: Path) -> None:
    here = probe.NodeProbe("127.0.0.1")
    facts = here.facts([str(tmp_path)], ["no/model"], str(tmp_path / "logs"))
    port = facts.pop("port")
    found = NodeFacts(node_id="a", address="127.0.0.1", **facts)
    assert found.versions == Versions(**probe.versions())
    assert found.model_problem == f"{tmp_path} has no config.json"
    assert found.uncached_models == ("no/model",)
    assert found.available_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert here.reach([("127.0.0.1", port)]) == {}
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert "refused" in here.reach([bound.getsockname()])["127.0.0.1"]
    here.close()


def test_what_a_probe_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.unwritable("") == ""
    assert "there is no folder" in probe.folder_problem(str(tmp_path / "none"))
    (tmp_path / "config.json").write_text("{}")
    assert probe.folder_problem(str(tmp_path)) == ""
    assert "cannot be written" in probe.unwritable("/proc/llumctl-test")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # of a user who has no entry there
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not probe.is_cached("Q/Q")
    hub = tmp_path / "huggingface" / "hub"
    (hub / "models--Q--Q" / "snapshots" / "1").mkdir(parents=True)
    assert probe.is_cached("Q/Q")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert not probe.is_cached("Q/Q")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HF_HUB_CACHE")
    assert not probe.is_cached("Q/Q")
    assert (probe.gpu("NVIDIA H100, 81559, 9.0") or {})["memory_mib"] == 81559
    assert probe.gpu("No devices were found") is None
    assert probe.fingerprint("no_such_package_of_a_test") == ""


# -- the process that asks ----------------------------------------------------------------------


@pytest.mark.process
def test_how_asking_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for script, problem in (
        ("print('noise'); print('{\"problem\": \"so\"}')", "so"),
        ("import os; os._exit(7)", "it ended with 7"),
        ("import time; time.sleep(60)", "it did not answer within 1 s"),
    ):
        monkeypatch.setattr(doctor, "COMMAND", (sys.executable, "-c", script))
        monkeypatch.setattr(doctor, "TIMEOUT_S", 1.0 if "sleep" in script else 30.0)
        assert doctor.facts_of("192.0.2.1:6379", Questions()).problem == problem


def test_no_node_is_asked_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(doctor, "ask_nodes", lambda _: asked.append("asked") or [])

    def found(address: str | None) -> list[str]:
        checks = doctor.ray_checks(Settings(cluster=ClusterTable(ray_address=address)))
        return [check.result.value for check in checks]

    assert found(None) == []
    with socket.create_server(("127.0.0.1", 0)) as ray:
        address = f"127.0.0.1:{ray.getsockname()[1]}"
        assert found(address) == ["ok"]
    assert found(address) == found("auto") == ["fail"]
    assert asked == ["asked"]
