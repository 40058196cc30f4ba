"""`llumctl doctor --engine` on real clusters, and on engines with a planted defect."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controller.main.doctor.engine_trial import SEEDED, EngineTrial
from controller.main.doctor.trial_judge import judge
from tools.cluster import LLUMCTL, Cluster, hear_interrupts, marked_processes, wait_for

COMMAND = (LLUMCTL, "doctor", "--engine", "-o", "json")
EMULATED = {"LLUMCTL_CLUSTER_ENGINE": "emulated"}
TRIAL_S = 600.0

ZEROES_BLOCKS = """
import importlib.abc, importlib.util, sys

class Planting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "controller.adapters.vllm.kv_blocks":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            scatter = module.HostBlocks.scatter

            def zeroing(self, block_ids, buffer):
                module.first_rows(buffer, 1).zero_()
                scatter(self, block_ids, buffer)

            module.HostBlocks.scatter = zeroing

        spec.loader.exec_module = executed
        return spec

sys.meta_path.insert(0, Planting())
"""
"""Of the blocks that arrive at a time, the first one is lost."""


def folders(env: dict[str, str]) -> list[Path]:
    return list((Path(env["XDG_STATE_HOME"]) / "llumctl").glob("doctor-*"))


def tried(env: dict[str, str], code: int) -> dict[str, Any]:
    done = subprocess.run(
        COMMAND, env=env, capture_output=True, text=True, timeout=TRIAL_S, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    (logs,) = map(Path, re.findall(r"; logs: (\S+)", done.stderr))
    assert not (logs.parent / "run.json").exists()
    assert logs.exists() is (code != 0)
    found: dict[str, Any] = json.loads(done.stdout)["engine"]
    return found


def test_requests_move_unharmed_on_emulated_engines(six: Cluster) -> None:
    with six.control() as client:
        trial = EngineTrial(six.url, client, lambda _: None, num_moves=2)
        try:
            found = [judge(each) for each in trial.run((SEEDED,), whole=False)]
        finally:
            trial.close()
    assert [(each.kind, each.result, each.num_moves) for each in found] == [
        ("greedy", "ok", 2),
        ("seeded", "ok", 2),
    ]
    assert all(each.downtime_median_s for each in found)
    six.wait_quiet()


@pytest.mark.full
@pytest.mark.timeout(700)
def test_requests_of_every_kind_move_unharmed(base_env: dict[str, str]) -> None:
    found = tried(base_env, 0)
    kinds = {each["kind"]: each for each in found["kinds"]}
    assert len(kinds) == 10
    for each in kinds.values():
        # On a busy machine a short answer may end before it has moved.
        moved = (each["result"], each["tokens"]) == ("ok", "equal")
        assert moved or each["what"].startswith("not tried: it ended"), each
    for kind in ("greedy", "seeded", "penalties", "long prompt", "waiting in a queue"):
        assert kinds[kind]["num_moves"] > 0
        assert kinds[kind]["kv_equal"]
    long = kinds["long prompt"]
    block_size = int(re.findall(r" of (\d+) tokens", found["facts"]["kv blocks"])[0])
    if (slowdown := found["slowdown"]) is not None:  # its prompt is as long
        num_blocks = slowdown["num_tokens"] // block_size
        assert long["num_equal_blocks"] >= long["num_digests"] * num_blocks, "all were copied"
    assert found["facts"]["trial sets"] == "enable_prefix_caching false, max_num_seqs 16"
    assert found["facts"]["fingerprint"].startswith("runner=")


@pytest.mark.full
@pytest.mark.timeout(700)
def test_a_lost_block_is_found(base_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ZEROES_BLOCKS)
    found = tried(base_env | {"PYTHONPATH": str(tmp_path)}, 1)
    greedy = found["kinds"][0]
    assert (greedy["result"], greedy["tokens"], greedy["kv_equal"]) == ("fail", "differ", False)
    assert "the KV blocks of the two sides differ" in greedy["what"]
    assert "differs from that of unmoved requests" in greedy["what"]


@pytest.mark.full
def test_an_interrupt_leaves_nothing_but_logs(base_env: dict[str, str], tmp_path: Path) -> None:
    env = base_env | EMULATED | {"XDG_STATE_HOME": str(tmp_path)}
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            COMMAND, env=env, stdout=err, stderr=err, preexec_fn=hear_interrupts
        )
    try:
        wait_for(lambda: "greedy: " in (tmp_path / "err").read_text(), "the first kind", 180)
        (folder,) = folders(env)
        nonce = json.loads((folder / "run.json").read_text())["nonce"]
        assert marked_processes(nonce)
        process.send_signal(2)
        assert process.wait(60) == 130
        told = f"the logs stay in {folder / 'logs'}"
        assert told in (tmp_path / "err").read_text().rpartition("greedy: ")[2]
    finally:
        process.kill()
        process.wait()
    assert not marked_processes(nonce)
    assert not (folder / "run.json").exists()
    assert (folder / "logs" / "i-0.log").exists()
