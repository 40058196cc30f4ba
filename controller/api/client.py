"""The typed client of the control API: the command line and the dashboard share it."""

import ssl
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import ValidationError

from controller.api.errors import (
    ConflictError,
    LlumctlError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from controller.api.models import (
    SCHEMA_VERSION,
    ClusterStatus,
    ErrorBody,
    StopProgress,
    StopRequest,
    WireModel,
)

DEFAULT_TIMEOUT_S = 5.0
UNREACHABLE_HINT = "llumctl down      then      llumctl up"

_BY_STATUS: dict[int, type[LlumctlError]] = {
    401: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: ConflictError,
}

Answer = TypeVar("Answer", bound=WireModel)


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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        try:
            self._http = httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=timeout_s,
                trust_env=False,
                verify=_certificates(base_url),
                follow_redirects=False,
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UnreachableError(
                f"{base_url[:100]!r} is no address of a controller: {error}", UNREACHABLE_HINT
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

    def _call(
        self, answer: type[Answer], method: str, path: str, body: WireModel | None = None
    ) -> Answer:
        response = self._send(method, path, body)
        if not response.is_success:
            raise self._refusal(response)
        self._check_schema(response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise UnreachableError(
                f"what answers at {self._url} is not a controller of llumctl", UNREACHABLE_HINT
            ) from error

    def _send(self, method: str, path: str, body: WireModel | None) -> httpx.Response:
        content = None if body is None else body.model_dump_json()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            return self._http.request(method, path, content=content, headers=headers)
        except httpx.TimeoutException as error:
            raise UnreachableError(
                f"the controller at {self._url} did not answer within {self._timeout_s:g} s",
                UNREACHABLE_HINT,
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(
                f"the controller at {self._url} cannot be reached: {_reason(error)}",
                UNREACHABLE_HINT,
            ) from error

    def _refusal(self, response: httpx.Response) -> LlumctlError:
        kind = _BY_STATUS.get(response.status_code, LlumctlError)
        try:
            body = ErrorBody.model_validate_json(response.content)
        except ValidationError:
            return kind(
                f"{self._url} answered {response.status_code} {response.reason_phrase}",
                UNREACHABLE_HINT,
            )
        return kind(body.message, body.hint)

    def _check_schema(self, response: httpx.Response) -> None:
        version = _schema_version(response)
        if version > SCHEMA_VERSION:
            raise LlumctlError(
                f"the controller at {self._url} speaks a newer schema"
                f" ({version}, this llumctl knows {SCHEMA_VERSION})",
                "pip install --upgrade llumctl",
            )


def _certificates(url: str) -> bool | ssl.SSLContext:
    """Plain http needs none: not loading them saves 36 ms of each command."""
    return url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _schema_version(response: httpx.Response) -> int:
    try:
        raw = response.json()
    except ValueError:
        return 0
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    return version if isinstance(version, int) else 0
