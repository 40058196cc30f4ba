"""`llumctl status`: lines, columns, tables, formats and every exit code."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from controller.api.state import run_state
from controller.api.wire.status import (
    ClusterState,
    ClusterStatus,
    DrainStatus,
    InstanceState,
    KeptForStatus,
    QueueHeadStatus,
    RefusedStatus,
    SavedStatus,
)
from llumctl.app import run
from llumctl.commands.status_table import render
from tests.unit.cli_support import Cli, cluster, remember
from tests.unit.fake_controller import FakeController
from tools import synthetic_cluster as synthetic
from tools.synthetic_cluster import instance

DRAINING = InstanceState.DRAINING
HEAD = QueueHeadStatus(
    request_id="r1", level="high", demand_blocks=118, waited_s=3.21, evicted=False
)
FOR_LONG: dict[str, Any] = {
    "level": "normal",
    "demand_blocks": 90,
    "waited_s": 600.0,
    "evicted_for_s": 4.0,
}
EVICTED = QueueHeadStatus(request_id="r7", evicted=True, why="memory", **FOR_LONG)


def drain(**fields: Any) -> DrainStatus:
    return DrainStatus(**({"drain_id": "d-1", "num_requests_left": 12, "num_moved": 3} | fields))


def summary(status: ClusterStatus) -> list[str]:
    """The lines above the table of instances."""
    return render(status, wide=False).split("\n\n")[0].splitlines()


def columns(status: ClusterStatus, *, wide: bool = False) -> list[dict[str, str]]:
    header, *rows = render(status, wide=wide).split("\n\n")[1].splitlines()
    return [dict(zip(header.split(), row.split(), strict=False)) for row in rows]


def tables(status: ClusterStatus) -> dict[str, list[str]]:
    """The rows of the tables that `-o wide` adds, each row with one space between its cells."""
    parts = (part.splitlines() for part in render(status, wide=True).split("\n\n")[2:])
    return {lines[0].split()[0]: [" ".join(row.split()) for row in lines[1:]] for lines in parts}


# -- what is shown ------------------------------------------------------------------------


def test_the_summary_and_the_columns() -> None:
    draining = instance("i-1", DRAINING, freeness_steps=None)
    status = cluster(instance(queue_head=HEAD, num_waiting_reqs=1), draining)
    (first,) = summary(status)
    assert first.startswith("cluster default  ready  model embedded  policy llumnix  endpoint http")
    assert "up 2h03m  controller up 3m05s" in first
    row, other = columns(status)
    head = "high/118of440blk/3.2s"
    assert list(row.values()) == f"i-0 active 521 55% 61% 12 1 {head} 0 21.0ms 0.2s".split()
    assert (other["FREENESS"], other["HEAD"]) == ("-inf", "-")
    emulated = status.model_copy(update={"engine": "emulated", "revision": 7})
    assert "  engine emulated  policy llumnix  revision 7  " in summary(emulated)[0]


def test_wide_adds_columns_and_frontends() -> None:
    status = cluster(instance(detail="well", headroom_blocks=11, num_moves_in=1))
    (row,) = columns(status, wide=True)
    added = ("MIG-IN/OUT", "INCARNATION", "RESTARTS", "NODE", "PID", "BLOCKS", "HEADROOM")
    assert [row[name] for name in added] == ["1/0", "1", "0", "10.0.0.11", "4242", "550/1000", "11"]
    assert (row["CORES"], row["DETAIL"]) == ("-", "well")
    assert tables(status)["FRONTEND"] == ["f-0 active 0 0.2s 1 0 - - -"]


KEPT = KeptForStatus(
    request_id="r-1", level="high", demand_blocks=60, lacking_blocks=18, waited_s=3.2
)


def test_columns_that_are_there_only_while_an_instance_has_a_value() -> None:
    empty = drain(num_requests_left=0, safe_to_delete=True)
    rows = columns(
        cluster(
            instance(drain=drain()), instance("i-1", drain=empty), instance("i-2", kept_for=KEPT)
        )
    )
    assert [row["DRAIN"] for row in rows] == ["12-left", "safe-to-delete", "-"]
    assert [row["KEPT-FOR"] for row in rows] == ["-", "-", "r-1"]
    assert not {"DRAIN", "KEPT-FOR"} & set(columns(cluster(instance()))[0])


def test_what_was_refused_lately_is_a_line() -> None:
    refused = tuple(
        RefusedStatus(reason=reason, level=level, num_refused=99, num_refused_last_minute=lately)
        for reason, level, lately in (
            ("full", "high", 3),
            ("full", "normal", 58),
            ("off", "low", 0),
        )
    )
    line = "refused in the last minute: full 61 (high 3, normal 58)"
    assert line in summary(cluster().model_copy(update={"refused": refused}))
    assert len(summary(cluster().model_copy(update={"refused": refused[2:]}))) == 1


def test_replays_stand_beside_moves() -> None:
    status = synthetic.with_replays(cluster(), (instance(),))
    saved = (
        SavedStatus(way="replayed", reason="death", num_saved=12),
        SavedStatus(way="moved", reason="scale_in", num_saved=4),
    )
    replays = status.replays.model_copy(update={"saved": saved})
    status = status.model_copy(update={"replays": replays})
    first, *lines = summary(status)
    assert "  replaying 2  " in first
    assert lines[0] == "replays: 2 under way, 11 went on and 1 failed in the last minute"
    assert lines[1].endswith("started: moved 4 (scale in 4), replayed 12 (death 12)")
    rows = tables(status)["REPLAY"]
    assert rows[0] == "r9c0 i-9>? placing 1800 1.7s - death"
    assert rows[-1] == "r9d2 i-8 failed 140 - 2.5s death: too often"


def test_wide_has_what_the_dashboards_panes_have() -> None:
    instances = (instance(queue_head=HEAD), instance("i-1", queue_head=EVICTED))
    status = synthetic.moving(synthetic.cluster(instances))
    busy = status.model_copy(
        update={"moves": status.moves * 3, "queued_moves": (status.moves[0],) * 2}
    )
    assert summary(busy)[1].startswith("level high: run 0 wait 0 ttft99 300ms")
    found = tables(busy)
    assert found["LEVEL"][1] == "normal 0 24 0 1.9s 0"
    assert found["QUEUE-HEAD"] == [
        "r7 i-1 normal 4.0s 90 440 memory (evicted)",
        "r1 i-0 high 3.2s 118 440 -",
    ], "the longest waiting first"
    assert found["MOVE"][1] == "r77c1 i-3>i-2 copying 88/118 0.7s by hand"
    assert found["MOVE"][-2:] == [
        "r77c0 i-3>i-1 queued 64/64 0.9s by hand",
        "... and 1 more: llumctl top",
    ]
    assert columns(busy)[1]["HEAD"] == "normal/90of440blk/4.0s/memory/evicted"


def test_wide_says_how_far_drains_are() -> None:
    for fields, row in (
        ({"deadline_s": 130.0, "removes": True}, "12 3 in 30s removed"),
        ({"deadline_s": 95.0, "removes": True, "evacuates": True}, "12 3 5.0s over gone"),
        ({"num_requests_left": 0, "safe_to_delete": True}, "nothing 3 - -"),
    ):
        status = cluster(instance("i-1", DRAINING, drain=drain(**fields)))
        assert tables(status.model_copy(update={"time_s": 100.0}))["DRAIN"] == [f"i-1 {row}"]


def test_alarms_stand_below_the_cluster() -> None:
    failed = [instance(f"i-{n}", InstanceState.FAILED, detail="no GPU") for n in range(1, 8)]
    lines = summary(cluster(instance(), *failed))
    assert lines[1] == "! i-1: failed (no GPU)"
    assert lines[6:] == ["! and 2 more: i-6, i-7"]


# -- formats and exit codes ---------------------------------------------------------------


def test_formats(fake: FakeController, cli: Cli) -> None:
    fake.status = status = cluster(instance("i-0"), instance("i-1"))
    assert cli.out("status") == render(status, wide=False) + "\n"
    assert cli.out("status", "-o", "wide") == render(status, wide=True) + "\n"
    assert cli.out("status", "-o", "name") == "i-0\ni-1\n"
    whole = json.loads(cli.out("status", "-o", "json"))
    assert (whole["schema_version"], len(whole["instances"])) == (1, 2)
    rows = [json.loads(line) for line in cli.out("status", "-o", "jsonl").splitlines()]
    assert [(row["id"], row["schema_version"]) for row in rows] == [("i-0", 1), ("i-1", 1)]
    assert "cluster: default" in cli.out("status", "-o", "yaml")


def test_alarms_have_limits_in_the_config_file(
    fake: FakeController, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "llumctl.toml"
    monkeypatch.setenv("LLUMCTL_CONFIG", str(config))
    config.write_text("[console]\nalarm_head_waited_s = 3\n")
    head = {"queue_head": HEAD, "num_waiting_reqs": 1, "num_free_blocks": 60}
    fake.status = cluster(instance(**head))
    assert "\n! i-0: 1 wait, head for 3.2s needs 118 of 50 " in cli.out("status")
    config.write_text("[console]\nalarm_head_waited_s = -1\n")
    assert f"{config}:2: console.alarm_head_waited_s" in cli("status", code=2).err


def test_check(fake: FakeController, cli: Cli) -> None:
    for status, code, complaint in (
        (cluster(), 0, ""),
        (cluster(instance(ttft_p99_s=99.0)), 0, ""),
        (cluster(instance("i-4", InstanceState.STALLED)), 1, "instance i-4 is stalled\n"),
        (cluster(state=ClusterState.DEGRADED, detail="d"), 1, "cluster default is degraded: d\n"),
        (cluster().model_copy(update={"instances": ()}), 1, "there are no instances\n"),
    ):
        fake.status = status
        captured = cli("status", "--check", code=code)
        assert captured.out
        assert captured.err == complaint
        assert run(["status"]) == 0, "only a check fails"


def test_a_controller_that_is_not_there(cli: Cli) -> None:
    """A cluster that another command is starting is not to be stopped."""
    wait = "try:   llumctl status --wait=ready"
    with socket.socket() as bound:  # bound and not listening: nobody else can answer there
        bound.bind(("127.0.0.1", 0))
        with run_state.lock("default"):
            assert cli("status", code=3).err == f"error: cluster default is being started\n{wait}\n"
            remember(f"http://127.0.0.1:{bound.getsockname()[1]}")
            told = f"{wait}      as another command starts or stops it now"
            assert told in cli("status", code=3).err
        err = cli("status", code=3).err
    assert "cannot be reached" in err
    assert err.endswith("try:   llumctl down      then      llumctl up\n")


def test_a_controller_that_does_not_answer(fake: FakeController, cli: Cli) -> None:
    fake.is_silent = True
    assert "did not answer within 0.1 s" in cli("status", "--timeout", "0.1", code=3).err
