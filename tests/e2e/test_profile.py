"""`llumctl profile` on the built-in model: an engine of its own, measured, gone."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from controller.model.profile import load_profile
from tools.cluster import LLUMCTL, hear_interrupts, wait_for

ENGINE = "controller.main.profile.engine_process"
READY_S = 180.0


def started(folder: Path, env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    small = ("--engine-arg", "max_model_len=512", "--engine-arg", "max_num_seqs=8")
    return subprocess.Popen(
        [LLUMCTL, "profile", *small, "--rounds", "1", *arguments],
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )


def engines_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if ENGINE in child.cmdline()]


@pytest.mark.full
def test_a_profile_is_measured(base_env: dict[str, str], tmp_path: Path) -> None:
    out, err = started(tmp_path, base_env).communicate(timeout=READY_S)
    path = tmp_path / "embedded.toml"
    assert path.exists(), err
    profile = load_profile(str(path))
    assert profile.measured
    assert (profile.max_model_len, profile.max_num_running) == (512, 8)
    assert (profile.num_total_blocks, profile.kv_bytes_per_token) == (1023, 4096)
    assert profile.copy_bytes_per_s > 1e6
    assert profile.step_time_s([(511, 0)], 0, 0) > profile.step_time_s([(64, 0)], 0, 0) > 0
    assert "off in the median" in out
    assert [each.name for each in tmp_path.iterdir()] == ["embedded.toml"]


def test_an_interrupt_leaves_nothing(base_env: dict[str, str], tmp_path: Path) -> None:
    process = started(tmp_path, base_env)
    try:
        (engine,) = wait_for(lambda: engines_of(process), "the engine's process", READY_S)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 1"):
                break
        os.killpg(process.pid, signal.SIGINT)
        began_s = time.monotonic()
        assert process.wait(timeout=60) == 130
        assert time.monotonic() - began_s < 30
        assert not engine.is_running()
        assert not list(tmp_path.iterdir())
    finally:
        process.kill()
        process.communicate()
