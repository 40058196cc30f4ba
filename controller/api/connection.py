"""A controller's HTTP API from the caller's side: calls, and streams of lines. Every failure is an
error that says what, why and the next command."""

import getpass
import platform
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar

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
from controller.api.frames import AbsurdFigureError, check_figures
from controller.api.version import upgrade_command
from controller.api.wire.base import SCHEMA_VERSION, AnswerModel, ErrorBody, WireModel

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

Params = Mapping[str, str | int | float | list[str]]


Answer = TypeVar("Answer", bound=AnswerModel)


class ControlConnection:
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
                upgrade_command(),
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
    """The schema of an answer that this llumctl cannot parse; ours if the answer names none."""
    try:
        return AnswerModel.model_validate_json(body).schema_version
    except ValidationError:
        return SCHEMA_VERSION
