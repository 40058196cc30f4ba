"""`llumctl status`: lines, tables, formats, exit codes, conditions to wait for, watching."""

import json
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from controller.api.errors import UsageError
from controller.api.operations.on_instances import DrainList, DrainReport
from controller.api.state import run_state
from controller.api.wire.history import HistoryReport, LevelHistory
from controller.api.wire.requests import RequestDetail, RequestState
from controller.api.wire.status import (
    AutoscaleHoldStatus,
    ClusterState,
    ClusterStatus,
    DrainStatus,
    InstanceState,
    KeptForStatus,
    NoticeStatus,
    QueueHeadStatus,
    RefusedStatus,
    RollingReport,
    SavedStatus,
    VerdictOrder,
    VerdictStatus,
)
from controller.core.record.history import COUNTS, GAUGES
from llumctl.app import run
from llumctl.commands import status_history, waiting
from llumctl.commands.status_table import render
from llumctl.commands.waiting import ClusterIs, Drained, Idle, MemberIs, RequestIs
from tests.unit.cli_process import LIMIT_S, interrupted, llumctl, reader_left
from tests.unit.cli_support import Cli, cluster, remember
from tests.unit.fake_controller import FakeController, meanwhile, request_fields, until
from tools import synthetic_cluster as synthetic
from tools.pty_process import Terminal, terminal
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
    assert "  engine emulated  policy" in summary(emulated)[0]
    assert "  revision 7  " in summary(emulated)[0]


OVERLOADED = VerdictStatus(
    word="overloaded",
    since_s=1000.0,
    why="106 wait",
    order=VerdictOrder(deed="add", expected="serving in 25 s"),
)


def test_the_verdict_is_below_the_cluster_with_its_order() -> None:
    status = cluster(instance()).model_copy(update={"verdict": OVERLOADED, "time_s": 1042.0})
    assert summary(status)[1:] == [
        "OVERLOADED  106 wait, for 42s",
        "try:   llumctl scale +1   adds an instance (serving in 25 s)",
    ]
    quiet = VerdictStatus(word="ok", severity="quiet", since_s=1000.0, why="6 serve")
    assert summary(status.model_copy(update={"verdict": quiet}))[1:] == ["OK  6 serve"]


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
        update={
            "moves": status.moves * 3,
            "queued_moves": (status.moves[0],) * 2,
            "levels": tuple(
                level.model_copy(update={"goodput": 0.987} if level.name == "high" else {})
                for level in status.levels
            ),
        }
    )
    assert summary(busy)[1].startswith("level high: run 0 wait 0 ttft99 300ms goodput 98.7%")
    found = tables(busy)
    assert found["LEVEL"][1] == "normal 0 24 0 1.9s - 0"
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
        ({"deadline_s": 130.0, "removes": True}, "12 3 in 30s removed -"),
        (
            {"deadline_s": 95.0, "removes": True, "evacuates": True, "why": "notice: a file"},
            "12 3 5.0s over gone notice: a file",
        ),
        ({"num_requests_left": 0, "safe_to_delete": True}, "nothing 3 - - -"),
    ):
        status = cluster(instance("i-1", DRAINING, drain=drain(**fields)))
        assert tables(status.model_copy(update={"time_s": 100.0}))["DRAIN"] == [f"i-1 {row}"]


def test_notices_say_who_leaves_which_machine_and_why() -> None:
    why = "Ray drains its node"
    told = [
        NoticeStatus(node="n-1", why=why, leaves_at_s=28.0, instance_ids=("i-0", "i-3")),
        NoticeStatus(node="", why="its process was told to end", leaves_at_s=-1.0,
                     instance_ids=("i-1",)),
        NoticeStatus(node="n-2", why="a\x1b[31m file", leaves_at_s=9.0, takes_endpoint=True),
    ]  # fmt: skip
    status = cluster().model_copy(update={"notices": tuple(told), "time_s": 0.0})
    lines = [line for line in summary(status) if line.startswith("notice")]
    assert lines[0] == "notice  i-0 i-3 leave n-1 in 28s: Ray drains its node"
    assert lines[1] == "notice  i-1 ends now: its process was told to end"
    assert lines[2].startswith("notice  no instance is started on n-2: a")
    assert lines[2].endswith("the endpoint and the controller end with it")
    assert "\x1b" not in lines[2]


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
    assert "\n! i-0: 1 wait, head for 3.2s needs 118 blocks, 50 are free" in cli.out("status")
    config.write_text("[console]\nalarm_head_waited_s = -1\n")
    assert f"{config}:2: console.alarm_head_waited_s" in cli("status", code=2).err


def test_output_and_what_it_costs(
    fake: FakeController, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "llumctl.toml"
    monkeypatch.setenv("LLUMCTL_CONFIG", str(config))
    config.write_text("")
    idle = cluster()
    assert "output" not in cli.out("status")
    output = {"tokens_per_s": 1234.0, "tokens_per_instance_hour": 740_400.0}
    fake.status = idle.model_copy(update=output)
    words = "\noutput 1.23k tokens/s  740k per instance-hour"
    assert f"{words}\n" in cli.out("status")
    config.write_text("[console]\ninstance_cost_per_hour = 2.5\n")
    assert f"{words}  a million costs 3.38\n" in cli.out("status")


def test_the_history_goes_back_as_far_as_a_controller_remembers(cli: Cli) -> None:
    assert "--since: must be at most 6h, not '7h'" in cli("status", "--since", "7h", code=2).err


def test_the_history_has_the_output_that_the_controller_told() -> None:
    counts = dict.fromkeys((*GAUGES, *COUNTS), (1.0,))
    told = {"tokens_per_s": (1234.0,), "tokens_per_instance_hour": (740_400.0,)}
    report = HistoryReport(time_s=(9.0,), span_s=(10.0,), cluster=counts | told)
    heads, cells = (line.split() for line in status_history.table(report, 2.5).splitlines())
    row = dict(zip(heads, cells, strict=True))
    assert [row[each] for each in ("TOK/s", "TOK/INST-H", "COST/M")] == ["1234", "740k", "3.38"]


NAMES = (*GAUGES, *COUNTS, "tokens_per_s", "tokens_per_instance_hour")
WAITING = LevelHistory(ttft_p99_s=(None, 0.2, 34.0))
HISTORY = HistoryReport(
    time_s=(1000.0, 1010.0, 1020.0),
    span_s=(10.0, 10.0, 10.0),
    cluster=dict.fromkeys(NAMES, (0.0, 0.0, 0.0))
    | {"num_waiting_reqs": (0.0, 3.0, 106.0), "kv_held_share": (0.0812, 0.5, 0.91)},
    levels={"normal": WAITING},
)


def test_the_history_as_a_table_as_json_and_as_curves(fake: FakeController, cli: Cli) -> None:
    assert "there is no history yet" in cli("status", "--since", "1m").err
    fake.history = HISTORY
    head, *rows = cli.out("status", "--since", "1m").splitlines()
    table = [dict(zip(head.split(), row.split(), strict=True)) for row in rows]
    assert [row["WAIT"] for row in table] == ["0", "3", "106"]
    assert [row["KV"] for row in table] == ["8%", "50%", "91%"]
    assert [row["TTFT99"] for row in table] == ["-", "200ms", "34s"]
    whole = json.loads(cli.out("status", "--since", "1m", "-o", "json"))
    assert whole["levels"]["normal"]["ttft_p99_s"] == [None, 0.2, 34.0]
    curves = cli.out("status", "--since", "1m", "--plot", "-").splitlines()
    assert [line.split()[0] for line in curves] == ["FIGURE", "WAIT", "KV", "TTFT99"], (
        "what is always the same has no curve"
    )
    assert curves[1].split()[1::2] == ["0", "106"]
    asked = {
        int(path.split("points=")[1].split("&")[0]) for path in fake.asked if "history" in path
    }
    rows_and_cells = {status_history.MAX_ROWS, status_history.NUM_CELLS}
    assert asked == {*rows_and_cells, status_history.PLOT_POINTS}


def test_the_history_as_a_picture_and_what_does_not_go_together(
    fake: FakeController, cli: Cli, tmp_path: Path
) -> None:
    fake.history = HISTORY
    cli("status", "--since", "1m", "--plot", str(tmp_path / "h.png"))
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    for words in (
        ("--since", "1m", "--check"),
        ("--since", "1m", "-o", "name"),
        ("--since", "1m", "-o", "json", "--plot", "-"),
        ("--since", "1m", "--plot", "h.pdf"),
        ("--plot", "-"),
        ("--since", "1m", "--wait", "ready"),
    ):
        assert cli("status", *words, code=2).err.startswith("error: ")


def test_check(fake: FakeController, cli: Cli) -> None:
    for status, code, complaint in (
        (cluster(), 0, ""),
        (cluster(instance(ttft_p99_s=99.0)), 0, ""),
        (cluster(instance("i-4", InstanceState.STALLED)), 1, "instance i-4 is stalled\n"),
        (cluster(state=ClusterState.DEGRADED, detail="d"), 1, "cluster default is degraded: d\n"),
        (cluster().model_copy(update={"instances": ()}), 1, "there are no instances\n"),
        (cluster().model_copy(update={"verdict": OVERLOADED}), 0, ""),
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


STARTING = cluster(
    instance("i-0", InstanceState.STARTING, detail="importing vLLM"), state=ClusterState.STARTING
)
READY = cluster(instance("i-0", num_running_reqs=0))


@pytest.fixture(autouse=True)
def _asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.01)
    monkeypatch.setattr(waiting, "DRAINS_POLL_S", 0.01)


@pytest.fixture
def starting(fake: FakeController) -> FakeController:
    fake.status = STARTING
    return fake


def waited(cli: Cli, condition: str, *options: str, code: int = 0) -> CaptureResult[str]:
    return cli("status", f"--wait={condition}", *options, code=code)


# -- conditions of --wait -----------------------------------------------------------------


def test_bad_conditions_name_the_nearest() -> None:
    for text, message, nearest in (
        ("redy", "--wait: 'redy' is not a condition (ready, idle, ", "ready"),
        ("instanc/i-0=active", "--wait: 'instanc/i-0=active' is not", "instance/ID=STATE"),
        ("instance/i-0=activ", "'activ' is not a state of an instance (starting, ", "active"),
        ("frontend/f-0=gone", "'gone' is not a state of a frontend (starting, active", ""),
        ("drained=", "--wait: '' is not an id", ""),
    ):
        with pytest.raises(UsageError) as caught:
            waiting.parse(text)
        assert message in caught.value.message
        assert caught.value.message.endswith(f"; did you mean {nearest}?" if nearest else "")


def member(state: InstanceState) -> ClusterStatus:
    return cluster(instance("i-0", state), state=ClusterState.DEGRADED)


def frontend(num_live_reqs: int) -> ClusterStatus:
    """Only the frontend knows of its requests."""
    known = READY.frontends[0].model_copy(update={"num_live_reqs": num_live_reqs})
    return READY.model_copy(update={"frontends": (known,)})


def test_conditions_of_the_cluster_are_judged() -> None:
    for text, status, verdict, now in (
        ("ready", STARTING, "not yet", "cluster default is starting"),
        ("ready", cluster(state=ClusterState.DEGRADED, detail="x"), "not yet", "degraded (x)"),
        ("ready", cluster(state=ClusterState.STOPPING), "never", "is stopping"),
        ("cluster=failed", cluster(state=ClusterState.STOPPING), "not yet", "is stopping"),
        ("instance/i-0=active", STARTING, "not yet", "i-0 is starting (importing vLLM)"),
        ("instance/i-0=active", member(InstanceState.FAILED), "never", "i-0 is failed"),
        ("instance/i-0=failed", member(InstanceState.FAILED), "holds", "i-0 is failed"),
        ("instance/i-0=gone", member(InstanceState.FAILED), "not yet", "i-0 is failed"),
        ("instance/i-1=gone", READY, "holds", "instance i-1 is gone"),
        ("idle", READY, "holds", "no request is live"),
        ("idle", cluster(instance(num_waiting_reqs=2)), "not yet", "14 requests are live"),
        ("idle", READY.model_copy(update={"num_held_reqs": 1}), "not yet", "1 request is live"),
        ("idle", frontend(2), "not yet", "2 requests are live"),
    ):
        condition = waiting.parse(text)
        assert isinstance(condition, ClusterIs | MemberIs | Idle)
        judged = condition.judge(status)
        assert judged.verdict == verdict
        assert judged.now.endswith(now)


def test_conditions_of_a_request_are_judged() -> None:
    for wanted, state, verdict in (
        (RequestState.RUNNING, RequestState.RUNNING, "holds"),
        (RequestState.FINISHED, RequestState.RUNNING, "not yet"),
        (RequestState.FINISHED, RequestState.FAILED, "never"),
        (RequestState.RUNNING, RequestState.FINISHED, "never"),
    ):
        found = RequestDetail(**request_fields("a/b", state=state))
        condition = waiting.parse(f"request/a/b={wanted}")
        assert condition == RequestIs("a/b", wanted)
        assert condition.judge(found).verdict == verdict


def draining(**fields: Any) -> DrainReport:
    known = {"state": "draining", "num_requests_left": 2}
    return DrainReport(instance_id="i-0", **(known | fields))


def test_a_drain_that_is_not_over_is_judged() -> None:
    for drains, now in (
        ((draining(),), "is draining, 2 left"),
        ((), "is active, and nobody drains it"),
    ):
        judged = Drained("i-0").judge(DrainList(drains=drains), lambda: READY)
        assert (judged.verdict, judged.now) == ("not yet", f"instance i-0 {now}")


# -- waiting, with --wait -----------------------------------------------------------------


def test_what_already_holds_ends_at_once(fake: FakeController, cli: Cli) -> None:
    for timeout in ("0", "600"):
        assert waited(cli, "ready", "--timeout", timeout) == ("", "cluster default is ready\n")
    assert fake.asked == ["/v1/status"] * 2


def becomes_active(fake: FakeController) -> None:
    fake.until_asked("/v1/status", times=3)
    fake.status = READY


def finishes(fake: FakeController) -> None:
    fake.until_asked("/v1/requests/r-1", times=3)
    ended = request_fields("r-1", state=RequestState.FINISHED, finish_reason="stop")
    fake.details["r-1"] = RequestDetail(**ended)


def is_drained(fake: FakeController) -> None:
    fake.until_asked("/v1/drains", times=3)
    fake.drains = [draining(safe_to_delete=True)]


def is_removed(fake: FakeController) -> None:
    fake.until_asked("/v1/drains", times=3)
    fake.status = cluster(instance("i-7"))
    fake.drains = []


Happening = Callable[[FakeController], None]


@pytest.mark.parametrize(
    ("condition", "happens", "told"),
    [
        ("instance/i-0=active", becomes_active, "instance i-0 is active"),
        ("request/r-1=finished", finishes, "request r-1 is finished (stop)"),
        ("drained=i-0", is_drained, "instance i-0 is drained: safe to delete"),
        ("drained=i-0", is_removed, "instance i-0 is gone"),
    ],
)
def test_it_waits_until_the_condition_holds(
    starting: FakeController, cli: Cli, condition: str, happens: Happening, told: str
) -> None:
    starting.details["r-1"] = RequestDetail(**request_fields("r-1"))
    starting.drains = [draining()]
    with meanwhile(lambda: happens(starting)):
        assert waited(cli, condition) == ("", f"{told}\n")


@pytest.mark.usefixtures("starting")
def test_a_timeout_names_the_condition_and_what_holds_instead(cli: Cli) -> None:
    for timeout, what in (("0.05", "did not become true within 50ms"), ("0", "is not true")):
        told = f"error: ready {what}: cluster default is starting\ntry:   llumctl status\n"
        assert waited(cli, "ready", "--timeout", timeout, code=124) == ("", told)


def test_what_can_never_hold_fails_at_once(fake: FakeController, cli: Cli) -> None:
    fake.status = cluster(state=ClusterState.FAILED, detail="i-0: out of memory")
    assert waited(cli, "ready", code=1).err.startswith(
        "error: ready can no longer become true: cluster default is failed (i-0: out of memory)\n"
    )
    fake.details["r-1"] = RequestDetail(**request_fields("r-1", state=RequestState.ABORTED))
    assert waited(cli, "request/r-1=finished", code=1).err.endswith("try:   llumctl requests r-1\n")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "condition",
    ["instance/i-9=active", "frontend/i-0=active", "request/r-9=running", "drained=i-9"],
)
def test_what_there_is_not_from_the_beginning_is_a_mistake(condition: str, cli: Cli) -> None:
    assert "error: there is no " in waited(cli, condition, code=4).err


def test_ready_may_be_waited_for_before_there_is_a_controller(cli: Cli) -> None:
    waited(cli, "ready", "--timeout", "0", code=3)
    err = waited(cli, "ready", "--timeout", "0.05", code=124).err
    assert "cluster default is not running; waiting for it\n" in err
    assert "within 50ms: cluster default is not running\n" in err
    fake = FakeController()
    fake.start()
    fake.stop()
    remember(fake.url)
    with meanwhile(fake.start):
        found = waited(cli, "ready", "--timeout", "60")
    fake.stop()
    assert found.err.endswith("cluster default is ready\n")


def test_a_controller_may_be_gone_for_a_while(
    starting: FakeController, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting.output, "say", said.append)

    def happen() -> None:
        starting.until_asked("/v1/status")
        starting.stop()
        until(lambda: bool(said))
        starting.status = READY
        starting.start()

    with meanwhile(happen):
        waited(cli, "instance/i-0=active")
    trouble, done = said
    assert trouble.endswith("; waiting for it")
    assert done == "instance i-0 is active"


def test_a_cluster_that_is_stopped_meanwhile(starting: FakeController, cli: Cli) -> None:
    def happen() -> None:
        starting.until_asked("/v1/status")
        run_state.remove("default")

    with meanwhile(happen):
        assert "cluster default is not running" in waited(cli, "ready", code=3).err


# -- watching, with --watch ---------------------------------------------------------------


WATCH = ("status", "--watch", "--every", "0.05")


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def block(process: subprocess.Popen[str]) -> list[str]:
    """Time, summary, nothing, header, an instance, nothing."""
    return [line(process).rstrip("\n") for _ in range(6)]


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
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


# -- several models -----------------------------------------------------------------------


def test_several_models_have_a_table_and_their_instances_stand_below_their_names() -> None:
    status = synthetic.two_models()
    text = render(status, wide=False)
    lines, models, instances = (part.splitlines() for part in text.split("\n\n"))
    assert "  models big, small  " in lines[0]
    assert lines[2] == "try:   llumctl scale --model small +1   adds an instance (serving in 25 s)"
    assert lines[5] == "small: autoscale on  3 of 1..8, wanted 4"
    assert [" ".join(line.split()) for line in models] == [
        "MODEL SERVE RUN WAIT HELD TOK/S TTFT99 AUTO WANTS VERDICT",
        "big 2/2 24 0 0 1.2k 1.9s off - OK",
        "small 2/3 36 9 0 1.2k 1.9s on 4 OVERLOADED",
    ]
    assert [line.split()[0] for line in instances] == [
        "ID", "big:", "i-0", "i-1", "small:", "i-2", "i-3", "i-4", "i-5",
    ]  # fmt: skip
    assert max(map(len, models)) <= 80


def test_wide_has_a_column_for_the_model_and_says_why_each_model_is_as_it_is() -> None:
    _, models, rows, *_ = render(synthetic.two_models(), wide=True).split("\n\n")
    assert models.splitlines()[1].endswith("OK  2 serve, 24 run")
    assert [line.split()[1] for line in rows.splitlines()] == [
        "MODEL",
        *["big"] * 2,
        *["small"] * 4,
    ]


def test_a_held_autoscale_and_rolling_restarts_are_said_for_each_model() -> None:
    status = synthetic.two_models()
    hold = AutoscaleHoldStatus(num_instances=3, since_s=status.time_s - 60, actor="ana@desk")
    rolling = RollingReport(state="going", left=("i-2", "i-3"))
    models = tuple(
        each.model_copy(
            update={
                "autoscale": each.autoscale.model_copy(update={"mode": "on", "held": hold}),
                "rolling": rolling,
            }
        )
        for each in status.models
    )
    lines = render(status.model_copy(update={"models": models}), wide=False).splitlines()
    assert len([line for line in lines if ": autoscale on, held" in line]) == 2
    assert len([line for line in lines if ": rolling restart" in line]) == 2
    rows = [line.split() for line in lines if line.startswith(("big  ", "small  "))]
    assert [row[7] for row in rows] == ["held", "held"]


def test_model_asks_about_one_of_several(cli: Cli) -> None:
    with FakeController() as fake:
        remember(fake.url)
        fake.orders["GET /models/small/v1/status"] = lambda _: (200, cluster(instance("i-7")))
        assert cli.out("status", "--model", "small", "-o", "name") == "i-7\n"
        assert cli.out("status", "-o", "name") == "i-0\n"
