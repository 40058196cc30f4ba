"""`llumctl status --wait`: reading conditions, judging them, and waiting until they hold."""

from collections.abc import Iterator

import pytest
from test_cli_requests import fields

from controller.api.errors import NotFoundError, UsageError
from controller.api.state import run_state
from controller.api.wire.requests import RequestDetail, RequestState, RequestStatus
from controller.api.wire.status import ClusterState, ClusterStatus, FrontendStatus, InstanceState
from llumctl.app import run
from llumctl.commands import waiting
from llumctl.commands.waiting import ClusterIs, Idle, MemberIs, RequestIs, Verdict
from tests.unit.cli_process import interrupted, llumctl
from tests.unit.cli_support import cluster, instance, remember
from tests.unit.fake_controller import FakeController, meanwhile, until

Captured = pytest.CaptureFixture[str]

STARTING = cluster(
    instance("i-0", InstanceState.STARTING, detail="importing vLLM"), state=ClusterState.STARTING
)
READY = cluster(instance("i-0", num_running_reqs=0, num_waiting_reqs=0))


@pytest.fixture(autouse=True)
def _asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.01)


@pytest.fixture
def fake() -> Iterator[FakeController]:
    with FakeController(status=STARTING) as served:
        remember(served.url)
        yield served


def waited(*arguments: str) -> int:
    return run(["status", *arguments])


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("ready", ClusterIs(ClusterState.READY)),
        (" idle ", Idle()),
        ("cluster=degraded", ClusterIs(ClusterState.DEGRADED)),
        ("instance/i-0=active", MemberIs("instance", "i-0", "active")),
        ("instance/i-0=gone", MemberIs("instance", "i-0", "gone")),
        ("frontend/f-0=restarting", MemberIs("frontend", "f-0", "restarting")),
        ("request/a/b=finished", RequestIs("a/b", RequestState.FINISHED)),
    ],
)
def test_conditions_are_read(text: str, condition: waiting.Condition) -> None:
    assert waiting.parse(text) == condition


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("redy", "--wait: 'redy' is not a condition; did you mean ready?", "one of ready, idle, "),
        ("", "--wait: '' is not a condition", "one of ready"),
        ("instance/i-0", "did you mean instance/ID=STATE?", "request/ID=STATE"),
        ("instanc/i-0=active", "did you mean instance/ID=STATE?", ""),
        ("instance/=active", "did you mean instance/ID=STATE?", ""),
        ("cluster", "did you mean cluster=STATE?", ""),
        ("ready=true", "did you mean ready?", ""),
        ("instance/i-0=activ", "'activ' is not a state of an instance; did you mean active?", ""),
        ("frontend/f-0=gone", "'gone' is not a state of a frontend", "one of starting, active"),
        ("cluster=", "'' is not a state of a cluster", "one of starting, ready"),
        ("request/r=done", "'done' is not a state of a request", "finished, aborted, failed"),
        ("zzz", "--wait: 'zzz' is not a condition", ""),
    ],
)
def test_bad_conditions_name_the_nearest(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        waiting.parse(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def member(state: InstanceState) -> ClusterStatus:
    return cluster(instance("i-0", state), state=ClusterState.DEGRADED)


@pytest.mark.parametrize(
    ("text", "status", "verdict", "now"),
    [
        ("ready", READY, "holds", "cluster default is ready"),
        ("ready", STARTING, "not yet", "cluster default is starting"),
        ("ready", cluster(state=ClusterState.DEGRADED, detail="x"), "not yet", "degraded (x)"),
        ("ready", cluster(state=ClusterState.FAILED), "never", "cluster default is failed"),
        ("ready", cluster(state=ClusterState.STOPPING), "never", "is stopping"),
        ("cluster=failed", cluster(state=ClusterState.STOPPING), "not yet", "is stopping"),
        ("cluster=degraded", READY, "not yet", "is ready"),
        ("instance/i-0=active", READY, "holds", "instance i-0 is active"),
        ("instance/i-0=active", STARTING, "not yet", "i-0 is starting (importing vLLM)"),
        ("instance/i-0=active", member(InstanceState.FAILED), "never", "i-0 is failed"),
        ("instance/i-0=failed", member(InstanceState.FAILED), "holds", "i-0 is failed"),
        ("instance/i-0=gone", member(InstanceState.DRAINING), "not yet", "i-0 is draining"),
        ("instance/i-1=gone", READY, "holds", "instance i-1 is gone"),
        ("frontend/f-0=active", READY, "holds", "frontend f-0 is active"),
        ("idle", READY, "holds", "no request is live"),
        ("idle", cluster(), "not yet", "5 requests are live"),
        ("idle", READY.model_copy(update={"num_held_reqs": 1}), "not yet", "1 request is live"),
    ],
)
def test_conditions_of_the_cluster_are_judged(
    text: str, status: ClusterStatus, verdict: str, now: str
) -> None:
    condition = waiting.parse(text)
    assert not isinstance(condition, RequestIs)
    judged = condition.judge(status)
    assert judged.verdict == verdict
    assert judged.now.endswith(now)


def test_a_request_that_only_its_frontend_knows_is_live() -> None:
    frontend = FrontendStatus(id="f-0", state=InstanceState.ACTIVE, incarnation=1, num_live_reqs=2)
    judged = Idle().judge(READY.model_copy(update={"frontends": (frontend,)}))
    assert judged == waiting.Judged(Verdict.NOT_YET, "2 requests are live")


@pytest.mark.parametrize(
    ("wanted", "state", "verdict"),
    [
        ("running", RequestState.RUNNING, "holds"),
        ("finished", RequestState.RUNNING, "not yet"),
        ("finished", RequestState.FAILED, "never"),
        ("running", RequestState.FINISHED, "never"),
        ("aborted", RequestState.ABORTED, "holds"),
    ],
)
def test_conditions_of_a_request_are_judged(wanted: str, state: RequestState, verdict: str) -> None:
    condition = waiting.parse(f"request/r={wanted}")
    assert isinstance(condition, RequestIs)
    assert condition.judge(RequestStatus(**fields("r-1", state))).verdict == verdict


@pytest.mark.parametrize("text", ["instance/i-9=active", "frontend/i-0=active"])
def test_a_member_that_there_is_not(text: str) -> None:
    condition = waiting.parse(text)
    assert isinstance(condition, MemberIs)
    with pytest.raises(NotFoundError, match="there is no") as caught:
        condition.judge(READY)
    assert caught.value.hint.endswith("s: f-0)" if "frontend" in text else "s: i-0)")


def test_what_already_holds_ends_at_once(fake: FakeController, capsys: Captured) -> None:
    fake.status = READY
    for timeout in ("0", "600"):
        assert waited("--wait", "ready", "--timeout", timeout) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "cluster default is ready\n" * 2
    assert fake.asked == ["/v1/status"] * 2


def test_it_waits_until_the_condition_holds(fake: FakeController, capsys: Captured) -> None:
    def happen() -> None:
        fake.until_asked("/v1/status", times=3)
        fake.status = READY

    with meanwhile(happen):
        assert waited("--wait=instance/i-0=active", "--timeout", "20s") == 0
    assert capsys.readouterr().err == "instance i-0 is active\n"


def test_a_request_is_polled(fake: FakeController, capsys: Captured) -> None:
    fake.details["r-1"] = RequestDetail(**fields("r-1"))

    def happen() -> None:
        fake.until_asked("/v1/requests/r-1", times=3)
        fake.details["r-1"] = RequestDetail(
            **fields("r-1", RequestState.FINISHED, finish_reason="stop")
        )

    with meanwhile(happen):
        assert waited("--wait=request/r-1=finished") == 0
    assert capsys.readouterr().err == "request r-1 is finished (stop)\n"


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("text", "timeout", "message"),
    [
        ("ready", "0.05", "ready did not become true within 50ms: cluster default is starting"),
        ("ready", "0", "ready is not true: cluster default is starting"),
        ("instance/i-0=active", "50ms", ": instance i-0 is starting (importing vLLM)"),
        ("idle", "0", "idle is not true: 5 requests are live"),
    ],
)
def test_a_timeout_names_the_condition_and_what_holds_instead(
    text: str, timeout: str, message: str, capsys: Captured
) -> None:
    assert waited("--wait", text, "--timeout", timeout) == 124
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.endswith("try:   llumctl status\n")


def test_what_can_never_hold_fails_at_once(fake: FakeController, capsys: Captured) -> None:
    fake.status = cluster(state=ClusterState.FAILED, detail="i-0: out of memory")
    assert waited("--wait=ready") == 1
    assert capsys.readouterr().err == (
        "error: ready can no longer become true: cluster default is failed (i-0: out of memory)\n"
        "try:   llumctl status\n"
    )
    fake.details["r-1"] = RequestDetail(**fields("r-1", RequestState.ABORTED))
    assert waited("--wait=request/r-1=finished") == 1
    assert capsys.readouterr().err.endswith("try:   llumctl requests r-1\n")


@pytest.mark.usefixtures("fake")
def test_unknown_members_and_requests(capsys: Captured) -> None:
    assert waited("--wait=instance/i-9=active") == 4
    assert "there is no instance i-9 in cluster default" in capsys.readouterr().err
    assert waited("--wait=request/r-9=running") == 4
    assert "there is no request r-9" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["idle", "instance/i-0=active", "request/r=running"])
def test_without_a_controller(text: str, capsys: Captured) -> None:
    assert waited("--wait", text) == 3
    assert capsys.readouterr().err == "error: cluster default is not running\ntry:   llumctl up\n"
    remember("http://127.0.0.1:1")
    assert waited("--wait", text) == 3
    assert "cannot be reached" in capsys.readouterr().err


def test_ready_may_be_waited_for_before_there_is_a_controller(capsys: Captured) -> None:
    assert waited("--wait=ready", "--timeout", "0") == 3
    assert waited("--wait=ready", "--timeout", "0.05") == 124
    err = capsys.readouterr().err
    assert "cluster default is not running; waiting for it\n" in err
    assert "within 50ms: cluster default is not running\n" in err
    fake = FakeController(status=READY)
    fake.start()
    fake.stop()
    remember(fake.url)
    with meanwhile(fake.start):
        assert waited("--wait=ready", "--timeout", "20") == 0
    fake.stop()
    assert capsys.readouterr().err.endswith("cluster default is ready\n")


def test_a_controller_may_be_gone_for_a_while(
    fake: FakeController, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting.output, "say", said.append)

    def happen() -> None:
        fake.until_asked("/v1/status")
        fake.stop()
        until(lambda: bool(said))
        fake.status = READY
        fake.start()

    with meanwhile(happen):
        assert waited("--wait=instance/i-0=active") == 0
    trouble, done = said
    assert trouble.endswith("; waiting for it")
    assert done == "instance i-0 is active"
    assert capsys.readouterr().out == ""


def test_a_cluster_that_is_stopped_meanwhile(fake: FakeController, capsys: Captured) -> None:
    def happen() -> None:
        fake.until_asked("/v1/status")
        run_state.remove("default")

    with meanwhile(happen):
        assert waited("--wait=ready") == 3
    assert "cluster default is not running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--wait=ready", "-w"), "--watch: not with --wait"),
        (("--wait=ready", "--check"), "--check: not with --wait"),
        (("--wait=ready", "-o", "json"), "--output: not with --wait"),
        (("--wait=redy",), "--wait: 'redy' is not a condition; did you mean ready?"),
        (("--wait=ready", "--timeout", "-1"), "--timeout: '-1' is not a duration"),
        (("--wait=ready", "--timeout", "nan"), "--timeout: 'nan' is not a duration"),
        (("--wait=ready", "--timeout", "soon"), "--timeout: 'soon' is not a duration"),
        (("--wait=ready", "--timeout", "9" * 400), "--timeout: '9999"),
        (("ready",), "Got unexpected extra argument"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], message: str, capsys: Captured) -> None:
    assert waited(*arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.process
def test_ctrl_c(fake: FakeController) -> None:
    with llumctl("status", "--wait=ready") as process:
        fake.until_asked("/v1/status", times=2)
        assert interrupted(process) == (130, "")
