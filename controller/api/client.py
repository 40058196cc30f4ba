"""The typed client of the control API: the command line and the dashboard share it."""

import getpass
import platform
import secrets
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar
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
from controller.api.frames import AbsurdFigureError, FrameReader, check_figures
from controller.api.wire.audit import OperationList
from controller.api.wire.base import SCHEMA_VERSION, WireModel
from controller.api.wire.explain import Explanation
from controller.api.wire.models import (
    ClusterStatus,
    ErrorBody,
    EventPage,
    Frame,
    MemberLog,
    RequestDetail,
    RequestList,
    RequestState,
    StopProgress,
    StopRequest,
)
from controller.api.wire.moves import MigrateRequest, MigrationReport
from controller.api.wire.operations import (
    AbortReport,
    AbortRequest,
    DrainList,
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    PriorityReport,
    PriorityRequest,
    RestartRequest,
    ScaleReport,
    ScaleRequest,
    UndrainRequest,
)
from controller.api.wire.rolling import (
    RollingDismissRequest,
    RollingReport,
    RollingRequest,
    RollingStopRequest,
)
from controller.api.wire.settings import SettingChanges, SettingList, SettingsPatch
from controller.api.wire.traffic import TrafficBatch, TrafficRequest

DEFAULT_TIMEOUT_S = 5.0
# The controller pings an idle stream every second.
STREAM_SILENCE_S = 5.0
# Well before the controller's own 5 s: a call on a connection that is being closed gets no answer.
IDLE_CONNECTION_S = 2.0
UNREACHABLE_HINT = "llumctl down      then      llumctl up"

_BY_STATUS: dict[int, type[LlumctlError]] = {
    401: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: ConflictError,
    504: TimedOutError,
}

_BY_CODE: dict[str, type[LlumctlError]] = {
    **dict.fromkeys(("bad_setting", "no_such_level"), UsageError),
    **dict.fromkeys(
        ("ended", "not_dispatched", "not_serving", "same_instance", "unschedulable"), RefusedError
    ),
    **dict.fromkeys(("leaving", "not_started", "no_instances", "rolling"), RefusedError),
    **dict.fromkeys(
        (
            *("key_reused", "min_instances", "max_instances", "no_room", "recorded_already"),
            "stopping",
        ),
        RefusedError,
    ),
    "last_instance": LastInstanceError,
    "no_such_call": NoSuchCallError,
    "not_draining": NotDrainingError,
    "not_rolling": NotRollingError,
    "under_way": UnderWayError,
    **dict.fromkeys(("ambiguous", "plan_changed", "revision_conflict"), ConflictError),
}
"""Looked up before the status: some answers with 409 are refusals, and no conflict."""

_CUT_OFF = (httpx.ReadError, httpx.RemoteProtocolError)
_ANSWER_LOST = (*_CUT_OFF, httpx.ReadTimeout)
"""After these errors the controller may have done what was asked."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.InvalidURL)

Answer = TypeVar(
    "Answer",
    ClusterStatus,
    StopProgress,
    EventPage,
    RequestList,
    RequestDetail,
    MigrationReport,
    SettingList,
    SettingChanges,
    Explanation,
    DrainReport,
    DrainList,
    ScaleReport,
    PriorityReport,
    AbortReport,
    OperationList,
    MemberLog,
    RollingReport,
)
Params = Mapping[str, str | int | float | list[str]]


class _Versioned(WireModel):
    """The part that answers of all schemas share."""

    schema_version: int = 0


class ControlClient:
    """Calls one controller; every failure is a LlumctlError with the exit code of its kind.

    Ignores proxies of the environment and follows no redirect: the token goes to the
    controller and nowhere else. Not thread-safe across `close`.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        unreachable_hint: str = UNREACHABLE_HINT,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`unreachable_hint`: what to try where no controller answers."""
        self._url = base_url.rstrip("/")
        self._unreachable_hint = unreachable_hint
        self._timeout_s = timeout_s
        try:
            self._http = httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {token}", "X-Llumctl-Actor": actor()},
                timeout=timeout_s,
                limits=httpx.Limits(keepalive_expiry=IDLE_CONNECTION_S),
                trust_env=False,
                verify=_certificates(base_url),
                follow_redirects=False,
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UnreachableError(
                f"{base_url[:100]!r} is no address of a controller: {error}", unreachable_hint
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

    def status(self) -> ClusterStatus:
        return self._call(ClusterStatus, "GET", "/v1/status")

    def stop(self, request: StopRequest) -> StopProgress:
        return self._call(StopProgress, "POST", "/v1/stop", request)

    def events(self, after: str = "", limit: int = 1000) -> EventPage:
        """The oldest `limit` events after a position; "" begins with the oldest kept."""
        return self._call(EventPage, "GET", "/v1/events", params={"after": after, "limit": limit})

    def requests(
        self,
        instance: str | None = None,
        states: tuple[RequestState, ...] = (),
        limit: int = 1000,
        *,
        movable: bool = False,
    ) -> RequestList:
        """Live requests and those that ended lately, in any state if `states` is empty. `movable`:
        the instances are asked which requests could move now."""
        params: dict[str, str | int | list[str]] = {"limit": limit, "state": list(states)}
        if movable:
            params["movable"] = "true"
        if instance is not None:
            params["instance"] = instance
        return self._call(RequestList, "GET", "/v1/requests", params=params)

    def request(self, reference: str) -> RequestDetail:
        """`reference`: an id, the client's id or a unique beginning. Raises NotFoundError,
        ConflictError."""
        return self._call(RequestDetail, "GET", f"/v1/requests/{quote(reference, safe='')}")

    def explain(self, reference: str) -> Explanation:
        """Why the request is where it is, step by step. Takes and raises what `request` does."""
        path = f"/v1/requests/{quote(reference, safe='')}/explain"
        return self._call(Explanation, "GET", path)

    def member_log(self, member_id: str, lines: int = 100) -> MemberLog:
        """The last lines of a member's log. Raises NotFoundError where the controller's machine
        has none."""
        path = f"/v1/members/{quote(member_id, safe='')}/log"
        return self._call(MemberLog, "GET", path, params={"lines": lines})

    def answer(self, answer: type[Answer], key: str) -> Answer:
        """What the call with this key was answered; asking changes nothing.

        Raises:
            LlumctlError: whatever that call raised.
            NoSuchCallError: the controller got no such call since it started.
            UnderWayError: the call is not over.
        """
        return self._call(answer, "GET", f"/v1/answers/{quote(key, safe='')}")

    def migrate(self, reference: str, wanted: MigrateRequest, *, key: str = "") -> MigrationReport:
        """Returns when the move is over, however it ended.

        Raises:
            NotFoundError, ConflictError: there is no such request or instance, several requests
                have that name, or it has finished.
            TimedOutError: the move is not over after `timeout_s`, and goes on.
        """
        path = f"/v1/requests/{quote(reference, safe='')}/migrate"
        timeout_s = self._timeout_s + wanted.timeout_s
        return self._call(MigrationReport, "POST", path, wanted, timeout_s=timeout_s, key=key)

    def drain(self, instance_id: str, wanted: DrainRequest, *, key: str = "") -> DrainReport:
        """Returns when the drain has begun; it goes on without this client."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/drain"
        return self._once(DrainReport, path, wanted, key)

    def restart(self, instance_id: str, wanted: RestartRequest, *, key: str = "") -> DrainReport:
        """Returns when the instance begins to be emptied, or with `now` when its process is to end.
        It goes on without this client."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/restart"
        return self._once(DrainReport, path, wanted, key)

    def evacuate(self, instance_id: str, wanted: EvacuateRequest, *, key: str = "") -> DrainReport:
        """Returns when it has begun; it goes on without this client."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/evacuate"
        return self._once(DrainReport, path, wanted, key)

    def undrain(self, instance_id: str, wanted: UndrainRequest, *, key: str = "") -> DrainReport:
        """Raises NotDrainingError: the instance is not being drained."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/undrain"
        return self._call(DrainReport, "POST", path, wanted, key=key)

    def rolling(self) -> RollingReport:
        """The last rolling restart; its state is `none` if there was none."""
        return self._call(RollingReport, "GET", "/v1/rolling-restart")

    def begin_rolling(self, wanted: RollingRequest, *, key: str = "") -> RollingReport:
        """Returns when it has begun; it goes on without this client."""
        return self._once(RollingReport, "/v1/rolling-restart", wanted, key)

    def dismiss_rolling(self, wanted: RollingDismissRequest) -> RollingReport:
        """The last rolling restart is not shown any more. Raises RefusedError: it goes on."""
        return self._call(RollingReport, "POST", "/v1/rolling-restart/dismiss", wanted)

    def stop_rolling(self, wanted: RollingStopRequest, *, key: str = "") -> RollingReport:
        """Raises NotRollingError: no rolling restart goes on."""
        return self._call(RollingReport, "POST", "/v1/rolling-restart/stop", wanted, key=key)

    def drains(self) -> DrainList:
        return self._call(DrainList, "GET", "/v1/drains")

    def scale(self, wanted: ScaleRequest, *, key: str = "") -> ScaleReport:
        """Returns when the scaling has begun: instances start and leave in the background."""
        return self._call(ScaleReport, "POST", "/v1/scale", wanted, key=key, repeatable=not key)

    def set_priority(
        self, reference: str, wanted: PriorityRequest, *, key: str = ""
    ) -> PriorityReport:
        path = f"/v1/requests/{quote(reference, safe='')}/priority"
        return self._call(PriorityReport, "POST", path, wanted, key=key)

    def abort(self, reference: str, wanted: AbortRequest, *, key: str = "") -> AbortReport:
        """Returns when the request is over. Raises RefusedError if it was already."""
        path = f"/v1/requests/{quote(reference, safe='')}/abort"
        return self._once(AbortReport, path, wanted, key)

    def operations(self, limit: int = 20) -> OperationList:
        """What operators did lately, the newest first, and what takes each back."""
        params = {"limit": limit}
        return self._call(OperationList, "GET", "/v1/operations", params=params)

    def settings(self) -> SettingList:
        return self._call(SettingList, "GET", "/v1/settings")

    def change_settings(self, patch: SettingsPatch, *, key: str = "") -> SettingChanges:
        path = "/v1/settings"
        return self._call(SettingChanges, "PATCH", path, patch, key=key, repeatable=not key)

    def watch(
        self, *, after: str = "latest", status_every_s: float | None = 1.0, events: bool = True
    ) -> Iterator[Frame]:
        """Yields frames as they come, for ever: statuses every `status_every_s` (None: none) and
        events after a position ("latest": only new ones, "": from the oldest kept).

        Raises:
            UnreachableError: nothing, not even a ping, came for 5 s, the stream ended, it is no
                stream of llumctl's, or has absurd figures. Of an event that has some, and of one
                that cannot be read, a gap is told instead.
        """
        params: dict[str, str | float] = {"after": after, "events": str(events).lower()}
        if status_every_s is not None:
            params["status_every_s"] = status_every_s
        reader = FrameReader()
        for line in self._lines("GET", "/v1/watch", params=params):
            if (frame := self._frame(reader, line)) is not None:
                yield frame

    def traffic(self, wanted: TrafficRequest) -> Iterator[TrafficBatch]:
        """Records the traffic from now on, for ever: yields what has ended, at least once a second.

        Raises:
            RefusedError: another recording is on.
            UnreachableError: nothing came for 5 s, or the stream ended or is none of llumctl's.
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

    def _lines(
        self, method: str, path: str, params: Params | None = None, body: WireModel | None = None
    ) -> Iterator[str]:
        """Those of a stream that are not empty."""
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        content = None if body is None else body.model_dump_json()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            with self._http.stream(
                method, path, params=params, content=content, headers=headers, timeout=timeout
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

    def _once(
        self,
        answer: type[Answer],
        path: str,
        wanted: DrainRequest | RestartRequest | EvacuateRequest | AbortRequest | RollingRequest,
        key: str,
    ) -> Answer:
        """Calls what has another effect the second time: with a key of its own, unless the caller
        gave one, and then a lost answer is asked for again."""
        once = key or ("" if wanted.dry_run else secrets.token_hex(8))
        again = bool(once) and not key
        return self._call(answer, "POST", path, wanted, key=once, repeatable=again)

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
        """`timeout_s`: None takes the client's own. By its `key` the controller knows a call again.
        A call whose answer is lost is sent again if it is `repeatable`; a caller that gave the key
        asks for the answer instead (`answer`)."""
        timeout_s = timeout_s or self._timeout_s
        response = self._send(method, path, body, params, timeout_s, repeatable, key)
        if not response.is_success:
            raise self._refusal(response)
        try:
            check_figures(response.content)
            found = answer.model_validate_json(response.content)
        except AbsurdFigureError as error:
            raise self._bad_answer(error, lost=method != "GET") from error
        except ValidationError as error:
            self._check_schema(_schema_version(response.content))
            raise self._stranger() from error
        self._check_schema(found.schema_version)
        return found

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
        content = None if body is None else body.model_dump_json()
        headers = {} if body is None else {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        request = self._http.build_request(
            method, path, content=content, headers=headers, params=params, timeout=timeout_s
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

    def _frame(self, reader: FrameReader, line: str) -> Frame | None:
        try:
            return reader.read(line.encode())
        except AbsurdFigureError as error:
            raise self._bad_answer(error) from error
        except ValueError as error:
            raise self._stranger() from error

    def _unreachable(
        self, error: Exception, timeout_s: float = 0.0, *, lost: bool = False
    ) -> UnreachableError:
        why = f"cannot be reached: {_reason(error)}"
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
                "git pull      then      make install",
            )


def actor() -> str:
    """The caller's name for the audit log: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user, no environment
        user = "unknown"
    return f"{user}@{platform.node()}".encode("ascii", "replace").decode()


def _certificates(url: str) -> bool | ssl.SSLContext:
    """Loads no certificates for plain http, which saves 36 ms of each command."""
    return url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _schema_version(body: bytes) -> int:
    """The schema of an answer that this llumctl cannot parse; 0 if the answer names none."""
    try:
        return _Versioned.model_validate_json(body).schema_version
    except ValidationError:
        return 0
