"""`llumctl status --watch`: in a pipe, on a terminal, and when the controller is lost."""

import json
import re
import subprocess

import pytest

from controller.api.state import run_state
from controller.api.wire.status import ClusterState, InstanceState
from tests.unit.cli_process import LIMIT_S, interrupted, llumctl, reader_left
from tests.unit.cli_support import cluster
from tests.unit.fake_controller import FakeController, until
from tools.pty_process import Terminal, terminal
from tools.synthetic_cluster import instance

pytestmark = pytest.mark.process

WATCH = ("status", "--watch", "--every", "0.05")


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def block(process: subprocess.Popen[str]) -> list[str]:
    """Time, summary, nothing, header, an instance, nothing."""
    return [line(process).rstrip("\n") for _ in range(6)]


def test_in_a_pipe_a_block_for_each_look_until_the_reader_leaves(fake: FakeController) -> None:
    with llumctl(*WATCH) as process:
        first = block(process)
        assert re.fullmatch(r"\d\d:\d\d:\d\d", first[0])
        assert first[1].startswith("cluster default  ready")
        assert first[4].startswith("i-0  active")
        fake.status = cluster(state=ClusterState.DEGRADED)
        while "degraded" not in (later := block(process))[1]:
            pass
        assert "\x1b" not in "".join(first + later)
        assert reader_left(process) == (0, "")


def test_as_jsonl_a_status_per_line_and_a_controller_that_vanishes_is_waited_for(
    fake: FakeController,
) -> None:
    with llumctl(*WATCH, "-o", "jsonl") as process:
        assert process.stderr is not None
        status = json.loads(line(process))
        assert (status["schema_version"], status["state"]) == (1, "ready")
        assert [item["id"] for item in status["instances"]] == ["i-0"]
        fake.stop()
        assert process.stderr.readline().endswith("; waiting for it\n")
        fake.status = cluster(state=ClusterState.DEGRADED)
        fake.start()
        assert process.stderr.readline() == "the controller answers again\n"
        while json.loads(line(process))["state"] != "degraded":
            pass
        run_state.remove("default")
        assert process.stderr.readline() == "cluster default is not running; waiting for it\n"
        assert interrupted(process) == (130, "")
    assert set(fake.asked) == {"/v1/status"}


def frames(screen: Terminal) -> list[str]:
    """Whole frames: what stands between going home and clearing the rest."""
    return re.findall(r"\x1b\[\?7l\x1b\[H(.*?)\x1b\[J\x1b\[\?7h", screen.raw, re.DOTALL)


def test_on_a_terminal_it_paints_in_place_and_tells_how_stale_it_is(fake: FakeController) -> None:
    fake.status = cluster(*(instance(f"i-{n}") for n in range(9)))
    with terminal(*WATCH, size=(80, 8)) as screen:
        until(lambda: len(frames(screen)) > 2)
        assert screen.raw.count("\x1b[2J") == 1
        *lines, last = frames(screen)[-1].split("\r\n")
        assert (len(lines), last) == (7, "")
        assert "\x1b[32mactive\x1b[0m" in lines[-1]
        fake.stop()
        until(lambda: "stale for" in frames(screen)[-1])
        stale = frames(screen)[-1]
        assert re.search(r"\d\d:\d\d:\d\d  stale for \d+\.\ds: the controller at http", stale)
        assert "i-0" in stale
        fake.status = cluster(instance("i-7", InstanceState.DRAINING))
        fake.start()
        until(lambda: "i-7" in frames(screen)[-1])
        assert "stale" not in frames(screen)[-1]
        screen.press("\x03")
        assert screen.process.wait(LIMIT_S) == 130
