"""The typed client of a controller's HTTP API, which the command line and the dashboard share, and
the follower of its watch stream. Every failure is an error that says what went wrong, why, and
which command to try next."""

import getpass
import platform
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from controller.api.errors import (
    AnswerLostError,
    ConflictError,
    LastInstanceError,
    LlumctlError,
    NoSuchCallError,
    NotDrainingError,
    NotFoundError,
    NotRollingError,
    RefusedError,
    TimedOutError,
    UnderWayError,
    UnreachableError,
    UsageError,
)
from controller.api.operations.on_cluster import SettingList
from controller.api.operations.on_instances import DrainList
from controller.api.operations.order import Order, Report, Wanted
from controller.api.operations.table import OperationList
from controller.api.text.hints import upgrade_command
from controller.api.wire import SCHEMA_VERSION, AnswerModel, ErrorBody, WireModel
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import (
    EventPage,
    Explanation,
    RequestDetail,
    RequestList,
    RequestName,
    RequestState,
)
from controller.api.wire.status import ClusterStatus, RollingReport, StopProgress, StopRequest
from controller.api.wire.stream import (
    AbsurdFigureError,
    EventFrame,
    Frame,
    FrameReader,
    GapFrame,
    MemberLog,
    StatusFrame,
    TrafficBatch,
    TrafficRequest,
    check_figures,
)

DEFAULT_TIMEOUT_S = 5.0
# The controller pings an idle stream every second. A stream on which nothing comes for this long
# counts as lost.
STREAM_SILENCE_S = 5.0
# The controller closes an idle connection after 5 s. A call on a connection that is being closed
# gets no answer. So the client closes its idle connections well before 5 s have passed.
IDLE_CONNECTION_S = 2.0
RETRY_S = 0.5
"""How long the follower waits, after the loss of a watch stream, before it tries again."""
UNREACHABLE_HINT = "llumctl down      then      llumctl up"

_BY_STATUS: dict[int, type[LlumctlError]] = {
    401: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: ConflictError,
    504: TimedOutError,
}

_BY_CODE: dict[str, type[LlumctlError]] = {
    code: kind
    for kind, codes in (
        (UsageError, "bad_adapter bad_setting no_such_level which_model"),
        (
            RefusedError,
            "adapter_exists attached_only ended key_reused leaving max_instances min_instances"
            " no_instances no_room not_attached not_dispatched not_ready not_serving not_started"
            " noticed other_digest recorded_already rolling same_instance stopping unschedulable",
        ),
        (ConflictError, "ambiguous plan_changed revision_conflict"),
        (LastInstanceError, "last_instance"),
        (NoSuchCallError, "no_such_call"),
        (NotDrainingError, "not_draining"),
        (NotRollingError, "not_rolling"),
        (UnderWayError, "under_way"),
    )
    for code in codes.split()
}
"""The code in an answer decides which error is raised; without a known code the HTTP status does.
Some answers with status 409 are refusals, not conflicts."""

_CUT_OFF = (httpx.ReadError, httpx.RemoteProtocolError)
_ANSWER_LOST = (*_CUT_OFF, httpx.ReadTimeout)
"""After these errors the controller may have done what was asked."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.InvalidURL)

Params = Mapping[str, str | int | float | list[str]]
Answer = TypeVar("Answer", bound=AnswerModel)


class ControlClient:
    """The calls of one controller, a method each. Every failure is a LlumctlError with the exit
    code of its kind.

    The client ignores the environment's proxies and follows no redirect: the token goes to the
    controller and nowhere else. Several threads may use one client, but not while `close` runs.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        unreachable_hint: str = UNREACHABLE_HINT,
        through: str = "",
        transport: httpx.BaseTransport | None = None,
        model: str = "",
    ) -> None:
        """`unreachable_hint`: what to try if no controller answers. `through`: by which program the
        caller acts, for the audit log. `model`: the calls are about this model of the cluster;
        empty: about all of them."""
        self._url = base_url.rstrip("/")
        self._model = model
        self._unreachable_hint = unreachable_hint
        self._timeout_s = timeout_s
        try:
            self._http = httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {token}", "X-Llumctl-Actor": actor(through)},
                timeout=timeout_s,
                limits=httpx.Limits(keepalive_expiry=IDLE_CONNECTION_S),
                trust_env=False,
                verify=_certificates(base_url),
                follow_redirects=False,
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UnreachableError(
                f"{base_url[:100]!r} is not an address of a controller: {error}", unreachable_hint
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def of_model(self, name: str) -> Self:
        """The calls about one model of the cluster, over the connections of this client; of this
        client itself if the name is empty."""
        found = copy(self)
        found._model = name or self._model
        return found

    def status(self) -> ClusterStatus:
        return self._call(ClusterStatus, "GET", "/v1/status")

    def history(
        self,
        last_s: float = 900.0,
        *,
        after_s: float | None = None,
        points: int = 300,
        instances: bool = False,
    ) -> HistoryReport:
        """The last `last_s` seconds, or what of it is newer than `after_s`, in at most `points`
        points."""
        params: dict[str, str | float] = {"last_s": last_s, "points": points}
        if after_s is not None:
            params["after_s"] = after_s
        if instances:
            params["instances"] = "true"
        return self._call(HistoryReport, "GET", "/v1/history", params=params)

    def stop(self, request: StopRequest) -> StopProgress:
        return self._call(StopProgress, "POST", "/v1/stop", request)

    def events(self, after: str = "", limit: int = 1000) -> EventPage:
        """The oldest `limit` events after a position; "" begins with the oldest kept event."""
        return self._call(EventPage, "GET", "/v1/events", params={"after": after, "limit": limit})

    def find_events(self, words: str, limit: int = 1000) -> EventPage:
        """The newest `limit` of all kept events that have the words, the oldest first. A word after
        a `!` must not be in an event."""
        return self._call(
            EventPage, "GET", "/v1/events", params={"matching": words, "limit": limit}
        )

    def requests(
        self,
        instance: str | None = None,
        states: tuple[RequestState, ...] = (),
        limit: int = 1000,
        *,
        movable: bool = False,
    ) -> RequestList:
        """Live requests, and requests that ended lately. If `states` is empty, requests in any
        state are listed. With `movable` the controller asks the instances which requests could move
        now."""
        params: dict[str, str | int | list[str]] = {"limit": limit, "state": list(states)}
        if movable:
            params["movable"] = "true"
        if instance is not None:
            params["instance"] = instance
        return self._call(RequestList, "GET", "/v1/requests", params=params)

    def request(self, reference: str) -> RequestDetail:
        """The request with its history. `reference`: an id, the client's id or a unique beginning
        of an id. Raises NotFoundError, ConflictError."""
        return self._call(RequestDetail, "GET", f"/v1/requests/{quote(reference, safe='')}")

    def whole_id(self, reference: str, *, any_choice: bool = False) -> str:
        """The whole id of the request that `request` finds for this reference. Orders name a
        request by its whole id. `any_choice`: if the reference names several choices of one
        client's request, any of them will do. Raises what `request` raises."""
        path = f"/v1/requests/{quote(reference, safe='')}/id"
        params = {"any_choice": "true"} if any_choice else None
        return self._call(RequestName, "GET", path, params=params).request_id

    def explain(self, reference: str) -> Explanation:
        """Explains step by step why the request is where it is. The argument and the errors are
        those of `request`."""
        path = f"/v1/requests/{quote(reference, safe='')}/explain"
        return self._call(Explanation, "GET", path)

    def member_log(self, member_id: str, lines: int = 100) -> MemberLog:
        """The last lines of a member's log. Raises NotFoundError if the controller's machine does
        not have this log."""
        path = f"/v1/members/{quote(member_id, safe='')}/log"
        return self._call(MemberLog, "GET", path, params={"lines": lines})

    def answer(self, answer: type[Answer], key: str) -> Answer:
        """The answer to the call that had this key; asking changes nothing.

        Raises:
            LlumctlError: whatever that call raised.
            NoSuchCallError: the controller got no such call since it started.
            UnderWayError: the call is not over.
        """
        return self._call(answer, "GET", f"/v1/answers/{quote(key, safe='')}")

    def send(self, order: Order[Wanted, Report], *, key: str = "") -> Report:
        """Gives an order, or asks for its dry run. Returns when the order has been carried out; for
        an order that goes on without this client, when it has begun. A move has ended by then,
        whether it succeeded or not.

        If the answer is lost, the order is sent again, provided that sending it twice does no more
        than sending it once. A caller that gives the `key` must ask for a lost answer itself
        (`answer`).

        Raises:
            NotFoundError: there is no such instance, or no request with that whole id.
            RefusedError: the order cannot be carried out now, or would change nothing.
            ConflictError: the cluster's spec has a different revision. TimedOutError: a move did
            not end in its time, and goes on.
        """
        once = key
        if order.keyed and not key and not order.wanted.dry_run:
            once = secrets.token_hex(8)
        return self._call(
            order.report,
            order.method,
            order.url,
            order.wanted,
            timeout_s=self._timeout_s + order.takes_s,
            key=once,
            repeatable=not key and (order.repeatable or bool(once)),
        )

    def rolling(self) -> RollingReport:
        """The last rolling restart; its state is `none` if there was none."""
        return self._call(RollingReport, "GET", "/v1/rolling-restart")

    def drains(self) -> DrainList:
        return self._call(DrainList, "GET", "/v1/drains")

    def operations(self, limit: int = 20) -> OperationList:
        """What operators did lately, the newest first, and the order that undoes each operation."""
        params = {"limit": limit}
        return self._call(OperationList, "GET", "/v1/operations", params=params)

    def settings(self) -> SettingList:
        return self._call(SettingList, "GET", "/v1/settings")

    def watch(
        self, *, after: str = "latest", status_every_s: float | None = 1.0, events: bool = True
    ) -> Iterator[Frame]:
        """Yields frames as they come, for ever: a status every `status_every_s` (None: no
        statuses), and the events after a position ("latest": only new events, "": from the oldest
        kept event).

        Raises:
            UnreachableError: nothing, not even a ping, came for 5 s; the stream ended; it is not a
                stream of llumctl; or it has absurd figures. An event that has absurd figures or
                cannot be read is replaced by a gap instead.
        """
        params: dict[str, str | float] = {"after": after, "events": str(events).lower()}
        if status_every_s is not None:
            params["status_every_s"] = status_every_s
        reader = FrameReader()
        for line in self._lines("GET", "/v1/watch", params=params):
            try:
                frame = reader.read(line.encode())
            except AbsurdFigureError as error:
                raise self._bad_answer(error) from error
            except ValueError as error:
                raise self._stranger() from error
            if frame is not None:
                yield frame

    def traffic(self, wanted: TrafficRequest) -> Iterator[TrafficBatch]:
        """Records the traffic from now on, for ever: at least once a second it yields the requests
        that have ended.

        Raises:
            RefusedError: another recording is on.
            UnreachableError: nothing came for 5 s, the stream ended, or it is not one of llumctl.
        """
        for line in self._lines("POST", "/v1/traffic", body=wanted):
            try:
                check_figures(line.encode())
                batch = TrafficBatch.model_validate_json(line, strict=True)
            except AbsurdFigureError as error:
                raise self._bad_answer(error) from error
            except ValidationError as error:
                raise self._stranger() from error
            self._check_schema(batch.schema_version)
            yield batch

    def _call(
        self,
        answer: type[Answer],
        method: str,
        path: str,
        body: WireModel | None = None,
        params: Params | None = None,
        timeout_s: float | None = None,
        *,
        repeatable: bool = False,
        key: str = "",
    ) -> Answer:
        """Makes a call and returns its answer. `timeout_s`: None means the client's own timeout.
        `key`: by this key the controller recognises a repeated call. If the answer is lost, a
        `repeatable` call is sent again."""
        timeout_s = timeout_s or self._timeout_s
        response = self._send(method, path, body, params, timeout_s, repeatable, key)
        if not response.is_success:
            raise self._refusal(response)
        try:
            check_figures(response.content)
            parsed = answer.model_validate_json(response.content)
        except AbsurdFigureError as error:
            raise self._bad_answer(error, lost=method != "GET") from error
        except ValidationError as error:
            self._check_schema(_schema_version(response.content))
            raise self._stranger() from error
        self._check_schema(parsed.schema_version)
        return parsed

    def _path(self, path: str) -> str:
        """The path below that of the model, unless the path names one."""
        has_one = not self._model or path.startswith("/models/")
        return path if has_one else f"/models/{quote(self._model)}{path}"

    def _send(
        self,
        method: str,
        path: str,
        body: WireModel | None,
        params: Params | None,
        timeout_s: float,
        repeatable: bool,
        key: str,
    ) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        request = self._http.build_request(
            method, self._path(path), params=params, timeout=timeout_s, **_content(body, headers)
        )
        sent_again = _CUT_OFF if method == "GET" else _ANSWER_LOST if repeatable else ()
        try:
            try:
                return self._http.send(request)
            except sent_again:
                return self._http.send(request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            lost = method != "GET" and not isinstance(error, _NEVER_SENT)
            raise self._unreachable(error, timeout_s, lost=lost) from error

    def _lines(
        self, method: str, path: str, params: Params | None = None, body: WireModel | None = None
    ) -> Iterator[str]:
        """The lines of a stream, leaving out empty ones."""
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        try:
            with self._http.stream(
                method, self._path(path), params=params, timeout=timeout, **_content(body, {})
            ) as stream:
                if not stream.is_success:
                    stream.read()
                    raise self._refusal(stream)
                for line in stream.iter_lines():
                    if line:
                        yield line
        except httpx.TimeoutException as error:
            raise UnreachableError(
                f"the controller at {self._url} said nothing for {STREAM_SILENCE_S:g} s",
                self._unreachable_hint,
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        raise UnreachableError(
            f"the controller at {self._url} ended the stream", self._unreachable_hint
        )

    def _unreachable(
        self, error: Exception, timeout_s: float = 0.0, *, lost: bool = False
    ) -> UnreachableError:
        why = f"cannot be reached: {str(error) or type(error).__name__}"
        if isinstance(error, httpx.TimeoutException):
            why = f"did not answer within {timeout_s:g} s"
        kind = AnswerLostError if lost else UnreachableError
        return kind(f"the controller at {self._url} {why}", self._unreachable_hint)

    def _bad_answer(self, error: Exception, *, lost: bool = False) -> UnreachableError:
        kind = AnswerLostError if lost else UnreachableError
        return kind(f"bad answer of the controller at {self._url}: {error}", self._unreachable_hint)

    def _stranger(self) -> UnreachableError:
        return UnreachableError(
            f"what answers at {self._url} is not a controller of llumctl", self._unreachable_hint
        )

    def _refusal(self, response: httpx.Response) -> LlumctlError:
        kind = _BY_STATUS.get(response.status_code, LlumctlError)
        try:
            body = ErrorBody.model_validate_json(response.content)
        except ValidationError:
            return kind(
                f"{self._url} answered {response.status_code} {response.reason_phrase}",
                self._unreachable_hint,
            )
        return _BY_CODE.get(body.code, kind)(body.message, body.hint)

    def _check_schema(self, version: int) -> None:
        if version > SCHEMA_VERSION:
            raise LlumctlError(
                f"the controller at {self._url} speaks a newer schema"
                f" ({version}, this llumctl knows {SCHEMA_VERSION})",
                upgrade_command(),
            )


def _content(body: WireModel | None, headers: dict[str, str]) -> dict[str, Any]:
    """The arguments with which httpx sends this body."""
    if body is None:
        return {"headers": headers}
    headers = {"Content-Type": "application/json", **headers}
    return {"headers": headers, "content": body.model_dump_json()}


def actor(through: str = "") -> str:
    """The caller's name for the audit log: user@host, or mcp/user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no entry in the password file, and no variable
        user = "unknown"
    before = f"{through}/" if through else ""
    return f"{before}{user}@{platform.node()}".encode("ascii", "replace").decode()


def _certificates(url: str) -> bool | ssl.SSLContext:
    """Loads no certificates for plain http, which saves 36 ms of each command."""
    return url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _schema_version(body: bytes) -> int:
    """The schema version of an answer that this llumctl cannot parse; our own version if the answer
    names none."""
    try:
        return AnswerModel.model_validate_json(body).schema_version
    except ValidationError:
        return SCHEMA_VERSION


Connect = Callable[[], ControlClient]
"""Makes a client from the cluster's present run state; raises LlumctlError."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended or could not be opened. The follower tries again until a frame comes."""

    error: LlumctlError


class Follower:
    """Follows the watch stream across lost connections and new controllers. After a loss the stream
    continues behind the last event.

    A daemon thread reads the stream, and nobody waits for that thread: so a controller that hangs
    delays neither the listener nor the program's end. The thread calls `hear` with each frame and
    each loss. While `hear` blocks, nothing is read, and TCP slows the controller down.
    """

    def __init__(
        self,
        connect: Connect,
        hear: Callable[[Frame | Lost], None],
        *,
        after: str = "latest",
        status_every_s: float | None = 1.0,
    ) -> None:
        self._connect = connect
        self._hear = hear
        self._after = after
        self._status_every_s = status_every_s
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def start(self) -> None:
        threading.Thread(target=self._follow, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Stops the follower: from now on `hear` gets no further frame. This method does not wait
        for the thread."""
        self._stopped.set()

    def _follow(self) -> None:
        while not self.stopped:
            try:
                self._listen()
            except LlumctlError as error:
                self._lose(error)
            except Exception as error:  # any other error is reported too, and the stream retried
                self._lose(LlumctlError(f"unexpected {type(error).__name__}: {error}"))
            self._stopped.wait(RETRY_S)

    def _listen(self) -> None:
        with self._connect() as client:
            for frame in client.watch(after=self._after, status_every_s=self._status_every_s):
                if self.stopped:
                    return
                self._remember(frame)
                self._hear(frame)

    def _lose(self, error: LlumctlError) -> None:
        if not self.stopped:
            self._hear(Lost(error))

    def _remember(self, frame: Frame) -> None:
        if isinstance(frame, EventFrame):
            self._after = frame.event.position or self._after
        elif isinstance(frame, GapFrame):
            self._after = frame.position or self._after
        elif isinstance(frame, StatusFrame) and self._after == "latest":
            self._after = frame.status.last_event or self._after
