"""What is wrong with a request's headers, whatever it asks for."""

from collections import Counter
from collections.abc import Collection, Iterable
from http import HTTPStatus

from controller.adapters.vllm.checks.fault import RefusedError
from controller.api.hosts import is_own_host

# Of two of these, one reader takes the first and another the last: the gate judged the last
# X-Request-Id, vLLM used the first.
ONCE = (
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"host",
    b"origin",
    b"transfer-encoding",
    b"x-data-parallel-rank",
    b"x-request-id",
    b"x-session-id",
    b"x-vllm-priority",
)

Headers = Iterable[tuple[bytes, bytes]]


def check_headers(headers: Headers) -> None:
    """Raises RefusedError (400)."""
    given = Counter(name for name, _ in headers)
    if given[b"upgrade"] and (given[b"content-length"] or given[b"transfer-encoding"]):
        _check_upgrade(headers)
    for name in ONCE:
        if given[name] > 1:
            shown = name.decode().title()
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{shown} is given more than once", shown)


def _check_upgrade(headers: Headers) -> None:
    """uvicorn's parser takes what follows for the other protocol, so a body would never come: the
    request waited for it until the deadline. Some clients wish for HTTP/2 (h2c) by default; where
    they send no body, the wish is passed over."""
    wishes = b",".join(value for name, value in headers if name == b"connection").lower()
    if b"upgrade" in (wish.strip() for wish in wishes.split(b",")):
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            "the connection cannot be upgraded; send plain HTTP/1.1, without the header Upgrade",
            "Upgrade",
        )


def check_host(headers: Headers, own: Collection[str]) -> None:
    """For an endpoint that anybody on this machine may use, but no page in a browser there.
    Raises RefusedError (403). Whoever gives no Host is no browser."""
    host = next((value.decode("latin-1") for name, value in headers if name == b"host"), None)
    if host is not None and not is_own_host(host, own):
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "this Host is not the endpoint's; list it in endpoint.allowed_hosts, or use API keys",
            "Host",
        )
