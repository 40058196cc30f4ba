"""`llumctl status --wait`: reading conditions, judging them, and waiting until they hold."""

from collections.abc import Callable
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from controller.api.errors import UsageError
from controller.api.operations.on_instances import DrainList, DrainReport
from controller.api.state import run_state
from controller.api.wire.requests import RequestDetail, RequestState
from controller.api.wire.status import ClusterState, ClusterStatus, InstanceState
from llumctl.commands import waiting
from llumctl.commands.waiting import ClusterIs, Drained, Idle, MemberIs, RequestIs
from tests.unit.cli_support import Cli, cluster, remember
from tests.unit.fake_controller import FakeController, meanwhile, request_fields, until
from tools.synthetic_cluster import instance

Captured = pytest.CaptureFixture[str]

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


# -- conditions ---------------------------------------------------------------------------


def test_bad_conditions_name_the_nearest() -> None:
    for text, message, hint in (
        ("redy", "--wait: 'redy' is not a condition; did you mean ready?", "one of ready, idle, "),
        ("instanc/i-0=active", "did you mean instance/ID=STATE?", ""),
        ("instance/i-0=activ", "'activ' is not a state of an instance; did you mean active?", ""),
        ("frontend/f-0=gone", "'gone' is not a state of a frontend", "one of starting, active"),
        ("drained=", "--wait: '' is not an id", ""),
    ):
        with pytest.raises(UsageError) as caught:
            waiting.parse(text)
        assert message in caught.value.message
        assert hint in caught.value.hint


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


# -- waiting ------------------------------------------------------------------------------


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
