"""A test that times out ends its cluster: tried on a `llumctl` that only pretends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import marked_processes

NONCE = "e2ec1ea9"
LLUMCTL = f"""#!{sys.executable} -S
import os, subprocess, sys, time
folder = os.path.join(os.environ["XDG_STATE_HOME"], "llumctl", "e2e")
if sys.argv[1] == "up":
    os.makedirs(folder)
    idle = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    member = subprocess.Popen(
        idle, env=dict(os.environ, LLUMCTL_NONCE="{NONCE}"), start_new_session=True
    )
    with open(os.path.join(folder, "run.json.tmp"), "w") as file:
        file.write('{{"nonce": "{NONCE}", "temp_dir": ""}}')
    os.rename(os.path.join(folder, "run.json.tmp"), os.path.join(folder, "run.json"))
time.sleep(300)  # `down` hangs, too
"""
TEST = """
import os, pytest, time
from tools import cluster
cluster.DOWN_S = 0.5

@pytest.mark.timeout(5)
def test_that_hangs():
    made = cluster.Cluster(dict(os.environ), llumctl=os.environ["PRETENDED"])
    try:
        made.start()
        assert cluster.marked_processes(made.nonce)
        print("it runs", flush=True)
        time.sleep(300)
    finally:
        made.clean_up()
"""


@pytest.mark.timeout(120)
@pytest.mark.process
def test_a_test_that_times_out_leaves_no_process(tmp_path: Path) -> None:
    llumctl = tmp_path / "pretended"
    llumctl.write_text(LLUMCTL)
    llumctl.chmod(0o755)
    (tmp_path / "test_hanging.py").write_text(TEST)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-c", "/dev/null",
         "test_hanging.py"],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(root), "XDG_STATE_HOME": str(tmp_path), "PRETENDED": str(llumctl)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )  # fmt: skip
    assert "it runs" in done.stdout, done.stdout
    assert "Timeout" in done.stdout, done.stdout
    assert marked_processes(NONCE) == []
