"""`llumctl status` against a small server: formats, columns and every exit code."""

import json
import socket
from pathlib import Path

import pytest

from controller.api.state import run_state
from controller.api.wire.status import (
    ClusterState,
    ClusterStatus,
    DrainStatus,
    EndedReplayStatus,
    HeldHeadStatus,
    HeldStatus,
    InstanceState,
    KeptForStatus,
    LevelStatus,
    MoveStatus,
    QueueHeadStatus,
    RefusedStatus,
    ReplaysStatus,
    ReplayStatus,
    SavedStatus,
)
from llumctl.app import run
from tests.unit.cli_support import cluster, controller, instance, remember

Captured = pytest.CaptureFixture[str]


def shown(status: ClusterStatus, capsys: Captured, *options: str) -> tuple[int, str, str]:
    with controller(status) as url:
        remember(url)
        code = run(["status", *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def columns(out: str) -> list[dict[str, str]]:
    lines = out.split("\n\n")[1].splitlines()
    header = lines[0].split()
    return [dict(zip(header, line.split(), strict=False)) for line in lines[1:]]


def test_table(capsys: Captured) -> None:
    draining = instance("i-1", InstanceState.DRAINING, freeness_steps=None, queue_head=None)
    code, out, err = shown(cluster(instance(), draining), capsys)
    assert (code, err) == (0, "")
    first, second = columns(out)
    assert first == {
        "ID": "i-0",
        "STATE": "active",
        "FREENESS": "521",
        "KV-USE": "49%",
        "VIRTUAL": "97%",
        "RUN": "4",
        "WAIT": "1",
        "HEAD": "high/118of50blk/3.2s",
        "EVICT": "9",
        "STEP": "7.2ms",
        "AGE": "0.4s",
    }
    assert second["FREENESS"] == "-inf"
    assert second["HEAD"] == "-"
    assert out.startswith("cluster default  ready  model embedded  policy llumnix  endpoint http")
    assert "up 2h03m  controller up 3m05s" in out


def test_drains_have_a_column_while_there_are_any(capsys: Captured) -> None:
    drain = DrainStatus(drain_id="d-1", num_requests_left=12, num_moved=3)
    going = instance("i-1", InstanceState.DRAINING, drain=drain)
    empty = drain.model_copy(update={"num_requests_left": 0, "safe_to_delete": True})
    gone = instance("i-2", InstanceState.DRAINING, drain=empty)
    status = cluster(instance(), going, gone).model_copy(update={"revision": 7})
    _, out, _ = shown(status, capsys)
    assert [row["DRAIN"] for row in columns(out)] == ["-", "12-left", "safe-to-delete"]
    assert "  revision 7  " in out
    _, out, _ = shown(cluster(instance()), capsys)
    assert "DRAIN" not in columns(out)[0]


def held_status() -> ClusterStatus:
    head = HeldHeadStatus(
        request_id="cmpl-r1",
        frontend_id="f-0",
        level="high",
        rank=1,
        place=1,
        why="kept",
        demand_blocks=60,
        instance_id="i-1",
        lacking_blocks=18,
        num_overtaken=4,
        waited_s=3.2,
    )
    oldest = HeldHeadStatus(
        request_id="cmpl-r2",
        frontend_id="f-0",
        level="normal",
        rank=0,
        place=3,
        why="memory",
        demand_blocks=21,
        lacking_blocks=2,
        waited_s=8.0,
    )
    held = HeldStatus(
        num_by_level={"high": 2, "normal": 9},
        demand_blocks=321,
        oldest_wait_s=8.0,
        head=head,
        oldest=oldest,
    )
    kept_for = KeptForStatus(
        request_id="cmpl-r1", level="high", demand_blocks=60, lacking_blocks=18, waited_s=3.2
    )
    status = cluster(instance("i-0", queue_head=None), instance("i-1", kept_for=kept_for))
    return status.model_copy(update={"num_held_reqs": 11, "held": held})


def test_the_queue_at_the_controller_has_a_line_and_the_kept_instance_a_column(
    capsys: Captured,
) -> None:
    _, out, _ = shown(held_status(), capsys)
    assert (
        "11 held (high 2, normal 9), 321 blocks, longest 8.0s; head cmpl-r1 (high, rank 1) for 3.2s"
        " needs 60 blocks: i-1 is kept for it and lacks 18 blocks"
    ) in out.splitlines()
    assert [row["KEPT-FOR"] for row in columns(out)] == ["-", "cmpl-r1"]
    _, out, _ = shown(cluster(instance()), capsys)
    assert "KEPT-FOR" not in out


def test_what_was_refused_lately_is_a_line(capsys: Captured) -> None:
    def refused(reason: str, level: str, lately: int) -> RefusedStatus:
        return RefusedStatus(
            reason=reason, level=level, num_refused=99, num_refused_last_minute=lately
        )

    status = held_status().model_copy(
        update={
            "refused": (
                refused("overloaded", "high", 3),
                refused("overloaded", "normal", 58),
                refused("token_limit", "normal", 4),
                refused("unavailable", "normal", 0),
            )
        }
    )
    _, out, _ = shown(status, capsys)
    line = "refused in the last minute: overloaded 61 (high 3, normal 58), token_limit 4 (normal 4)"
    assert line in out.splitlines()
    assert "refused" not in shown(held_status(), capsys)[1]


def test_wide_has_the_held_head_and_each_instance_that_is_kept(capsys: Captured) -> None:
    _, out, _ = shown(held_status(), capsys, "-o", "wide")
    tables = {part.split()[0]: part.splitlines() for part in out.split("\n\n")[1:]}
    assert [line.split() for line in tables["HELD"][1:]] == [
        ["cmpl-r1", "1", "high", "3.2s", "60", "i-1", "18", "4", "kept"],
        ["cmpl-r2", "3", "normal", "8.0s", "21", "-", "2", "0", "memory"],
    ]
    assert tables["KEPT-FOR"][1].split() == ["cmpl-r1", "i-1", "high", "3.2s", "60", "18"]


def test_json_has_the_held_head(capsys: Captured) -> None:
    _, out, _ = shown(held_status(), capsys, "-o", "json")
    found = json.loads(out)
    assert found["held"]["num_by_level"] == {"high": 2, "normal": 9}
    assert found["held"]["head"]["instance_id"] == "i-1"
    assert [item["kept_for"] and item["kept_for"]["request_id"] for item in found["instances"]] == [
        None,
        "cmpl-r1",
    ]


def saved_status() -> ClusterStatus:
    replays = ReplaysStatus(
        under_way=(
            ReplayStatus(
                request_id="r-7",
                from_instance_id="i-3",
                state="placing",
                reason="fenced",
                num_tokens=140,
                pause_s=0.75,
            ),
        ),
        ended=(
            EndedReplayStatus(
                request_id="r-6",
                from_instance_id="i-3",
                outcome="failed",
                code="too_often",
                reason="death",
                num_tokens=90,
                ended_s=1_700_000_000.0,
            ),
        ),
        num_replaying=1,
        num_replayed_last_minute=12,
        num_not_replayed_last_minute=1,
        saved=(
            SavedStatus(way="replayed", reason="death", num_saved=12),
            SavedStatus(way="moved", reason="scale_in", num_saved=4),
            SavedStatus(way="moved", reason="drain", num_saved=3),
            SavedStatus(way="failed", reason="death", num_saved=1),
        ),
    )
    status = cluster(instance())
    return status.model_copy(update={"replays": replays, "time_s": 1_700_000_009.0})


def test_replays_stand_beside_moves(capsys: Captured) -> None:
    _, out, _ = shown(cluster(instance()), capsys)
    assert "repla" not in out
    assert "saved" not in out
    _, out, _ = shown(saved_status(), capsys)
    first, *lines = out.split("\n\n")[0].splitlines()
    assert "  replaying 1  " in first
    assert lines[:2] == [
        "replays: 1 under way, 12 went on and 1 failed in the last minute",
        "saved from instances that left or died since the controller started: moved 7 (scale in 4,"
        " drain 3), replayed 12 (death 12), failed 1 (death 1)",
    ]


def test_wide_lists_replays(capsys: Captured) -> None:
    _, out, _ = shown(saved_status(), capsys, "-o", "wide")
    table = next(part for part in out.split("\n\n") if part.startswith("REPLAY"))
    assert [line.split() for line in table.splitlines()] == [
        ["REPLAY", "FROM>TO", "STAGE", "TOKENS", "PAUSE", "AGE", "REASON"],
        ["r-7", "i-3>?", "placing", "140", "750ms", "-", "fenced"],
        ["r-6", "i-3", "failed", "90", "-", "9.0s", "death:", "too", "often"],
    ]


def test_json_has_what_was_saved(capsys: Captured) -> None:
    _, out, _ = shown(saved_status(), capsys, "-o", "json")
    found = json.loads(out)["replays"]
    assert (found["num_replaying"], found["num_replayed_last_minute"]) == (1, 12)
    assert {(each["way"], each["num_saved"]) for each in found["saved"]} >= {("moved", 4)}


def test_alarms_stand_below_the_cluster(capsys: Captured) -> None:
    failed = [instance(f"i-{n}", InstanceState.FAILED, detail="no GPU") for n in range(1, 8)]
    _, out, _ = shown(cluster(instance(), *failed), capsys)
    lines = out.splitlines()
    assert lines[1] == "! i-1: failed (no GPU)"
    assert lines[6:8] == ["! and 2 more: i-6, i-7", ""]
    assert len(columns(out)) == 8


def test_alarms_have_limits_in_the_config_file(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "llumctl.toml"
    monkeypatch.setenv("LLUMCTL_CONFIG", str(config))
    config.write_text("[console]\nalarm_head_waited_s = 3\n")
    code, out, _ = shown(cluster(instance()), capsys)
    assert (
        "! i-0: 1 wait, head for 3.2s needs 118 of 50 blocks, 116% of an instance"
        in out.splitlines()
    )
    config.write_text("[console]\nalarm_head_waited_s = -1\n")
    code, out, err = shown(cluster(instance()), capsys)
    assert (code, out) == (2, "")
    assert f"{config}:2: console.alarm_head_waited_s" in err
    assert shown(cluster(instance()), capsys, "-o", "json")[0] == 0


def test_an_emulated_cluster_says_so(capsys: Captured) -> None:
    _, out, _ = shown(cluster(instance()).model_copy(update={"engine": "emulated"}), capsys)
    assert "model embedded  engine emulated  policy" in out


def test_an_instance_that_never_reported_has_dashes(capsys: Captured) -> None:
    nothing = dict.fromkeys(
        (
            "freeness_steps",
            "virtual_usage_blocks",
            "headroom_blocks",
            "num_total_blocks",
            "num_free_blocks",
            "watermark_blocks",
            "num_running_reqs",
            "num_waiting_reqs",
            "kv_cache_usage",
            "queue_head",
            "num_evictions",
            "step_time_s",
            "age_s",
            "pid",
        )
    )
    starting = instance("i-0", InstanceState.STARTING, detail="importing vLLM", **nothing)
    _, out, _ = shown(cluster(starting), capsys, "-o", "wide")
    (row,) = columns(out)
    assert {value for key, value in row.items() if key not in ("ID", "STATE")} == {
        "-",
        "3",
        "2",
        "n1",
        "importing",
    }


def test_wide_adds_columns_and_frontends(capsys: Captured) -> None:
    _, out, _ = shown(cluster(instance(detail="well")), capsys, "-o", "wide")
    (row,) = columns(out)
    assert row["INCARNATION"] == "3"
    assert row["RESTARTS"] == "2"
    assert (row["NODE"], row["PID"]) == ("n1", "77")
    assert (row["BLOCKS"], row["HEADROOM"], row["DETAIL"]) == ("50/102", "11", "well")
    assert "f-0" in out.split("\n\n")[2]


def test_wide_has_what_the_dashboard_s_panes_have(capsys: Captured) -> None:
    def move(number: int) -> MoveStatus:
        return MoveStatus(
            migration_id=f"m-{number}",
            request_id=f"r-{number}",
            from_instance_id="i-0",
            to_instance_id="i-1",
            state="copying",
            stage=1,
            num_blocks_copied=3,
            num_blocks=8,
            reason="balance",
            age_s=1.2,
        )

    evicted = QueueHeadStatus(
        request_id="r7",
        level="normal",
        demand_blocks=90,
        waited_s=600.0,
        evicted=True,
        evicted_for_s=4.0,
        why="memory",
    )
    drain = DrainStatus(
        drain_id="d-1", num_requests_left=12, num_moved=3, deadline_s=130.0, removes=True
    )
    status = cluster(
        instance(), instance("i-1", InstanceState.DRAINING, drain=drain, queue_head=evicted)
    ).model_copy(
        update={
            "time_s": 100.0,
            "moves": tuple(move(number) for number in range(9)),
            "queued_moves": (move(9), move(10)),
            "levels": (
                LevelStatus(name="normal", rank=0, num_running_reqs=52, num_waiting_reqs=60),
                LevelStatus(
                    name="high",
                    rank=1,
                    num_running_reqs=6,
                    num_waiting_reqs=2,
                    headroom_blocks=743,
                    ttft_p99_s=1.9,
                ),
            ),
        }
    )
    _, out, _ = shown(status, capsys, "-o", "wide")
    summary, _, _, *tables = out.rstrip("\n").split("\n\n")
    assert summary.splitlines()[1] == (
        "level high: run 6 wait 2 ttft99 1.9s kept 743  level normal: run 52 wait 60 ttft99 -"
    )
    levels, drains, heads, moves = (table.splitlines() for table in tables)
    assert [line.split() for line in levels[1:]] == [
        ["high", "1", "6", "2", "1.9s", "743"],
        ["normal", "0", "52", "60", "-", "0"],
    ]
    assert drains[1].split() == ["i-1", "12", "3", "in", "30s", "removed"]
    assert [line.split()[0] for line in heads[1:]] == ["r7", "r1"], "the longest waiting first"
    assert heads[1].split()[3:] == ["4.0s", "90", "50", "memory", "(evicted)"]
    assert moves[1].split() == ["r-0", "i-0>i-1", "copying", "3/8", "1.2s", "balance"]
    assert moves[10].split()[2] == "queued"
    assert moves[11] == "... and 1 more: llumctl top"
    _, brief, _ = shown(status, capsys)
    assert brief.count("\n\n") == 1
    assert columns(brief)[1]["HEAD"] == "normal/90of50blk/4.0s/memory/evicted"


def test_an_alarm_is_no_failure_of_a_check(capsys: Captured) -> None:
    """A script that restarts what is unwell must not do so because there is much to do."""
    code, out, err = shown(cluster(instance(ttft_p99_s=99.0)), capsys, "--check")
    assert (code, err) == (0, "")
    assert "\n! i-0: P99 TTFT 1m39s\n" in out


def test_machine_formats(capsys: Captured) -> None:
    status = cluster(instance("i-0"), instance("i-1", kv_cache_usage=float("nan")))
    assert shown(status, capsys, "-o", "name")[1] == "i-0\ni-1\n"
    whole = json.loads(shown(status, capsys, "-o", "json")[1])
    assert whole["schema_version"] == 1
    assert whole["instances"][1]["kv_cache_usage"] is None
    lines = shown(status, capsys, "-o", "jsonl")[1].splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["id"], row["schema_version"]) for row in rows] == [("i-0", 1), ("i-1", 1)]
    assert "cluster: default" in shown(status, capsys, "-o", "yaml")[1]


@pytest.mark.parametrize(
    ("status", "code", "complaint"),
    [
        (cluster(), 0, ""),
        (cluster(instance("i-4", InstanceState.STALLED)), 1, "instance i-4 is stalled"),
        (cluster(instance("i-4", InstanceState.DRAINING)), 1, "instance i-4 is draining"),
        (cluster(state=ClusterState.DEGRADED, detail="why"), 1, "cluster default is degraded: why"),
        (cluster().model_copy(update={"instances": ()}), 1, "there are no instances"),
    ],
)
def test_check(status: ClusterStatus, code: int, complaint: str, capsys: Captured) -> None:
    found, out, err = shown(status, capsys, "--check")
    assert found == code
    assert out
    assert err.startswith(complaint)
    assert bool(err) == bool(code)


def test_without_check_an_unwell_cluster_is_no_failure(capsys: Captured) -> None:
    assert shown(cluster(state=ClusterState.FAILED), capsys)[0] == 0


def test_nothing_runs(capsys: Captured) -> None:
    assert run(["status"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: cluster default is not running\ntry:   llumctl up\n"


def test_nothing_runs_under_that_name(capsys: Captured) -> None:
    remember("http://127.0.0.1:1", name="prod")
    assert run(["status", "--cluster", "default"]) == 3
    assert "llumctl status --cluster prod" in capsys.readouterr().err


def test_cluster_by_variable_and_flag(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    with controller(cluster()) as url:
        remember(url, name="prod")
        assert run(["status", "--cluster", "prod"]) == 0
        monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "prod")
        assert run(["status"]) == 0
        assert run(["status", "--cluster", "other"]) == 3
        assert run(["status", "--cluster", "No!"]) == 2
    capsys.readouterr()


def test_refused_connection(capsys: Captured) -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else can answer there
        bound.bind(("127.0.0.1", 0))
        remember(f"http://127.0.0.1:{bound.getsockname()[1]}")
        assert run(["status"]) == 3
    err = capsys.readouterr().err
    assert "cannot be reached" in err
    assert err.endswith("try:   llumctl down      then      llumctl up\n")


def test_a_cluster_that_an_up_is_starting_is_not_to_be_stopped(capsys: Captured) -> None:
    wait = "try:   llumctl status --wait=ready"
    with socket.socket() as bound, run_state.lock("default"):
        assert run(["status"]) == 3
        assert capsys.readouterr().err == f"error: cluster default is being started\n{wait}\n"
        bound.bind(("127.0.0.1", 0))
        remember(f"http://127.0.0.1:{bound.getsockname()[1]}")
        assert run(["status"]) == 3
    assert f"{wait}      as another command starts or stops it now" in capsys.readouterr().err


def test_hung_controller(capsys: Captured) -> None:
    with controller(cluster(), hangs=True) as url:
        remember(url)
        assert run(["status", "--timeout", "0.1"]) == 3
    assert "did not answer within 0.1 s" in capsys.readouterr().err


def test_bad_token(capsys: Captured) -> None:
    with controller(cluster()) as url:
        remember(url, token="wrong")
        assert run(["status"]) == 5
    assert capsys.readouterr().err == "error: bad token\ntry:   look\n"


@pytest.mark.parametrize(
    "arguments",
    [["status", "-o", "xml"], ["status", "--nope"], ["nope"], ["status", "--timeout", "-1"]],
)
def test_usage_errors(arguments: list[str], capsys: Captured) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_corrupt_run_state(capsys: Captured) -> None:
    remember("http://127.0.0.1:1")
    (run_state.state_dir("default") / "run.json").write_text("{")
    assert run(["status"]) == 1
    assert "is corrupt" in capsys.readouterr().err
