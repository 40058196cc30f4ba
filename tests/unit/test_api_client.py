"""The control client: what it sends, and what each answer becomes. Where a follower goes on."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Self

import httpx
import pytest

import controller
from controller.api import client as client_module
from controller.api.client import ControlClient, Follower, Lost
from controller.api.errors import AnswerLostError, ConflictError, LlumctlError, UnreachableError
from controller.api.operations.on_cluster import Scale, ScaleRequest, SetSettings, SettingsPatch
from controller.api.operations.on_instances import Drain, DrainRequest
from controller.api.wire.status import ClusterState, StopRequest
from controller.api.wire.stream import EventFrame, Frame, GapFrame, PingFrame, StatusFrame
from controller.core.fleet.cluster_spec import OrderRefusal
from controller.core.fleet.rolling import RollingRefusal
from tests.unit.cli_support import TOKEN, cluster
from tests.unit.fake_controller import FakeController, event, until

STATUS = cluster().model_dump(mode="json")

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> ControlClient:
    transport = httpx.MockTransport(handler)
    return ControlClient("http://127.0.0.1:8700/", "t0ken", 2.0, transport=transport)


def answering(code: int, body: object) -> Handler:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda _: httpx.Response(code, content=content)


def failing(error: Exception) -> Handler:
    def handler(_: httpx.Request) -> httpx.Response:
        raise error

    return handler


def test_a_call_sends_its_token_and_body_and_ignores_unknown_fields() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.method == "GET":
            return httpx.Response(200, json=STATUS | {"later": 1})
        return httpx.Response(202, json={"stopped": False, "num_live_reqs": 3})

    with client(handler) as control:
        assert control.status().state is ClusterState.READY
        assert control.stop(StopRequest(drain=False, grace_s=4)).num_live_reqs == 3
    look, stop = seen
    assert (look.method, str(look.url)) == ("GET", "http://127.0.0.1:8700/v1/status")
    assert look.headers["Authorization"] == "Bearer t0ken"
    assert (stop.method, stop.url.path) == ("POST", "/v1/stop")
    assert stop.headers["Content-Type"] == "application/json"
    assert json.loads(stop.content) == {"drain": False, "grace_s": 4.0}


BODY = {"code": "x", "message": "what and why", "hint": "llumctl something"}
NEWER = STATUS | {"schema_version": 2}
EXIT_CODES = ((400, 1), (401, 5), (403, 5), (404, 4), (409, 6), (500, 1))
NO_STREAMS = (b"<html>", b"{}", b"[1]", b'{"type": "ping"}', b'{"type": "ping", "time_s": 1}\n<p>')
NOT_OURS = "not a controller of llumctl"


@pytest.mark.parametrize(
    ("call", "status", "body", "exit_code", "words"),
    [
        *(("status", status, BODY, code, "what and why") for status, code in EXIT_CODES),
        *(("status", 502, body, 1, "502") for body in (b"", b"<html>", b"[1]", b"\xff")),
        *(("status", 200, body, 3, NOT_OURS) for body in (b"hello", b"{}", b"[]")),
        *(("watch", 200, body, 3, NOT_OURS) for body in NO_STREAMS),
        ("status", 200, NEWER, 1, "newer schema"),
        ("status", 200, {"schema_version": 2, "members": []}, 1, "newer schema"),
    ],
)
def test_which_error_an_answer_becomes(
    call: str, status: int, body: object, exit_code: int, words: str
) -> None:
    with (
        client(answering(status, body)) as control,
        pytest.raises(LlumctlError, match=words) as caught,
    ):
        list(control.watch()) if call == "watch" else control.status()
    assert caught.value.exit_code == exit_code
    if body is BODY:
        assert caught.value.hint == BODY["hint"]


def test_a_controller_that_cannot_be_reached() -> None:
    for error, why in (
        (httpx.ConnectError("Connection refused"), "Connection refused"),
        (httpx.ReadTimeout("slow"), "did not answer within 2 s"),
        (httpx.ReadError(""), "cannot be reached"),
    ):
        with client(failing(error)) as control, pytest.raises(LlumctlError, match=why) as caught:
            control.status()
        assert caught.value.exit_code == 3
        assert caught.value.hint == "llumctl down      then      llumctl up"


LOST, CUT = httpx.ReadTimeout("slow"), httpx.ReadError("")
REFUSED = httpx.ConnectError("refused")
DRAIN, DRY = Drain("i-0", DrainRequest(deadline_s=60.0)), Drain("i-0", DrainRequest(dry_run=True))
SCALE = Scale(ScaleRequest(target=2, if_revision=0))
SET = SetSettings(SettingsPatch(changes={"a.b": 1}))
ANSWERS: dict[str, dict[str, object]] = {
    "/v1/status": STATUS,
    "/v1/instances/i-0/drain": {"instance_id": "i-0", "state": "draining"},
    "/v1/scale": {"previous": 1, "target": 2},
    "/v1/settings": {"changes": [], "revision": 1},
}


Order = Drain | Scale | SetSettings | None
Raised = type[Exception] | None


@pytest.mark.parametrize(
    ("order", "key", "failures", "raised", "num_sent"),
    [
        (DRAIN, "", [CUT], None, 2),
        (DRAIN, "", [LOST, LOST], AnswerLostError, 2),
        (DRAIN, "k", [LOST], AnswerLostError, 1),
        (DRY, "", [LOST], AnswerLostError, 1),
        (SET, "", [LOST], None, 2),
        (SCALE, "", [LOST, LOST], AnswerLostError, 2),
        (SCALE, "", [REFUSED], UnreachableError, 1),
        (None, "", [CUT], None, 2),
        (None, "", [CUT, CUT], UnreachableError, 2),
        (None, "", [LOST], UnreachableError, 1),
    ],
)
def test_what_is_sent_again_after_a_failure(
    order: Order, key: str, failures: list[Exception], raised: Raised, num_sent: int
) -> None:
    """An order with a key of its own, unless the caller gave the key and goes on itself; an order
    that states how it should be; and a question whose connection was closed."""
    left, sent = list(failures), []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        if left:
            raise left.pop(0)
        return httpx.Response(200, json=ANSWERS[request.url.path])

    with client(handler) as control:
        call = control.status if order is None else partial(control.send, order, key=key)
        if raised is None:
            call()
        else:
            with pytest.raises(raised) as caught:
                call()
            assert type(caught.value) is raised, "nothing was sent if the connection was refused"
        assert len(sent) == num_sent
        keys = [request.headers.get("Idempotency-Key") for request in sent]
        if order is DRAIN and not key:
            call()
            another = sent[-1].headers["Idempotency-Key"]
            assert keys[0] == keys[1] != another, "another order has another key"
        else:
            assert set(keys) == {key or None}
    assert len({request.content for request in sent}) == 1


@pytest.mark.parametrize("figure", ["1e999", "-1e300", "NaN", "9" * 400])
def test_a_stream_with_figures_that_nobody_measures_is_an_error(figure: str) -> None:
    """Such figures used to end the dashboard that drew them."""
    body = f'{{"type": "ping", "time_s": 1}}\n{{"type": "ping", "time_s": {figure}}}\n'.encode()
    with client(answering(200, body)) as control:
        frames = control.watch()
        assert next(frames) == PingFrame(time_s=1)
        with pytest.raises(UnreachableError, match="bad answer of the controller") as caught:
            next(frames)
    assert figure[:20] in caught.value.message
    answer = json.dumps(STATUS).replace("{", f'{{"uptime_s": {figure}, ', 1).encode()
    with client(answering(200, answer)) as control, pytest.raises(UnreachableError, match="bad"):
        control.status()
    with client(answering(200, answer)) as control, pytest.raises(AnswerLostError, match="bad"):
        control.send(Scale(ScaleRequest(target=2)), key="k")


def test_an_event_that_cannot_be_shown_is_a_gap_and_the_stream_goes_on() -> None:
    """The event stays in the controller's log, so it used to end every stream that asked for it
    again."""
    for bad, reason in (
        ('"time_s": 1e30', "1e30 is no figure"),
        ('"time_s": "noon"', "no event of llumctl's"),
    ):
        good = '{"kind": "a", "time_s": 3, "cause_id": "c", "position": "a-2"}'
        lines = [
            '{"type": "ping", "time_s": 7}',
            f'{{"type": "event", "time_s": 8, "event": {{{bad}, "position": "a-1"}}}}',
            f'{{"type": "event", "time_s": 8, "event": {good}}}',
        ]
        with client(answering(200, "\n".join([*lines, ""]).encode())) as control:
            _, gap, event = islice(control.watch(), 3)
        assert (gap.missed, gap.position, gap.time_s) == (1, "a-1", 7)
        assert reason in gap.reason
        assert event.event.position == "a-2"


def test_a_stream_goes_over_frames_of_later_versions_and_ends_as_an_error() -> None:
    body = b'{"type": "later"}\n\n{"type": "ping", "time_s": 1}\n'
    with client(answering(200, body)) as control:
        frames = control.watch()
        assert next(frames) == PingFrame(time_s=1)
        with pytest.raises(LlumctlError, match="ended the stream") as caught:
            next(frames)
    assert caught.value.exit_code == 3


def test_a_redirect_is_not_followed() -> None:
    calls: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(302, headers={"Location": "http://elsewhere/"})

    with client(handler) as control, pytest.raises(LlumctlError):
        control.status()
    assert len(calls) == 1


@pytest.mark.parametrize("url", ["http://[::1", "nonsense://x", "http://127.0.0.1:99999"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(LlumctlError) as caught, ControlClient(url, "t", 0.5) as control:
        control.status()
    assert caught.value.exit_code == 3


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with FakeController() as fake, ControlClient(fake.url, TOKEN, 5.0) as control:
        assert control.status().cluster == "default"


def test_every_refusal_is_a_kind_of_its_own() -> None:
    """Otherwise the client would call the answer a conflict, after which looking again should
    help."""
    spelt_out = re.compile(
        r'(?:(?:ApiError|error_response)\(\s*409,|OperationRefusedError\()\s*"(\w+)"'
    )
    found = {each.value for each in (*OrderRefusal, *RollingRefusal)}
    for path in Path(next(iter(controller.__path__))).rglob("*.py"):
        found.update(spelt_out.findall(path.read_text()))
    assert {"stopping", "max_instances", "ended", "ambiguous", "rolling"} <= found
    for code in found:
        body = {"code": code, "message": "why"}
        with client(answering(409, body)) as control, pytest.raises(LlumctlError) as caught:
            control.status()
        is_conflict = type(caught.value) is ConflictError
        assert is_conflict == (code in ("ambiguous", "plan_changed", "revision_conflict")), code


# -- the follower -------------------------------------------------------------------------


Stream = Callable[[], Iterator[Frame]]


def gone(*frames: Frame) -> Stream:
    """A stream of these frames, after which the connection is lost."""

    def stream() -> Iterator[Frame]:
        yield from frames
        raise UnreachableError("gone")

    return stream


class FakeClient:
    """Serves the next of some streams at each `watch`; `asked` are the positions asked for."""

    def __init__(self, *streams: Stream) -> None:
        self.streams = list(streams)
        self.asked: list[str] = []
        self.num_closed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.num_closed += 1

    def watch(self, *, after: str, status_every_s: float | None) -> Iterator[Frame]:
        assert status_every_s == 0.5
        self.asked.append(after)
        return (self.streams.pop(0) if self.streams else gone())()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_S", 0.001)


def follow(client: FakeClient, num_asked: int, after: str = "latest") -> list[Frame | Lost]:
    """What the follower hears until it has asked this often."""
    heard: list[Frame | Lost] = []
    follower = Follower(lambda: client, heard.append, after=after, status_every_s=0.5)
    follower.start()
    until(lambda: len(client.asked) >= num_asked)
    follower.stop()
    assert follower.stopped
    return heard


def happened(position: str) -> EventFrame:
    return EventFrame(time_s=1.0, event=event("admitted", position=position))


def status(last_event: str) -> StatusFrame:
    found = cluster().model_copy(update={"last_event": last_event})
    return StatusFrame(time_s=1.0, status=found)


PING = PingFrame(time_s=1.0)
LEFT_OUT = GapFrame(time_s=1.0, missed=1, reason="absurd", position="a-2")


@pytest.mark.parametrize(
    ("after", "streams", "asked"),
    [
        ("", [gone(happened("a-1"), happened("a-2")), gone(PING)], ["", "a-2", "a-2"]),
        ("", [gone(happened("a-1"), LEFT_OUT, GapFrame(time_s=1.0))], ["", "a-2", "a-2"]),
        ("latest", [gone(status("a-7"), PING), gone(status("a-9"))], ["latest", "a-7", "a-7"]),
        ("latest", [gone(PING), gone(status(""))], ["latest"] * 3),
    ],
    ids=[
        "behind the last event",
        "behind an event that was left out",
        "the latest, of which nothing is missed in a break",
        "the latest, of which nothing was heard yet",
    ],
)
def test_where_it_goes_on(after: str, streams: list[Stream], asked: list[str]) -> None:
    client = FakeClient(*streams)
    heard = follow(client, 3, after=after)
    assert client.asked[:3] == asked
    assert [type(item) for item in heard].count(Lost) >= 2
    assert client.num_closed >= 2


def test_every_failure_is_a_loss_and_is_tried_again() -> None:
    client = FakeClient()
    failures: list[Exception] = [LlumctlError("refused"), ZeroDivisionError("oops")]
    heard: list[Frame | Lost] = []

    def connect() -> FakeClient:
        if failures:
            raise failures.pop(0)
        return client

    follower = Follower(connect, heard.append, status_every_s=0.5)
    follower.start()
    until(lambda: len(heard) >= 3)
    follower.stop()
    errors = [item.error for item in heard if isinstance(item, Lost)]
    messages = [error.message for error in errors]
    assert messages[:3] == ["refused", "unexpected ZeroDivisionError: oops", "gone"]
    assert isinstance(errors[2], UnreachableError)


def test_once_stopped_nothing_is_heard() -> None:
    heard: list[Frame | Lost] = []

    def endless() -> Iterator[Frame]:
        yield PingFrame(time_s=1.0)
        follower.stop()
        yield PingFrame(time_s=2.0)
        raise UnreachableError("gone")

    client = FakeClient(endless)
    follower = Follower(lambda: client, heard.append, status_every_s=0.5)
    follower.start()
    until(lambda: client.num_closed == 1)
    assert heard == [PingFrame(time_s=1.0)]
