"""The headers of a request, on every path: how they are checked, and which API key, priority and
session the caller gives in them. Also the error with which any check or limit refuses a request.

    Authorization: Bearer KEY      or X-Api-Key, which Anthropic's clients send
    X-Llumctl-Priority: high       the name of a level
    "priority": -1                 a field of the body, as in vLLM: minus the level's rank
    X-Session-Id: ...              vLLM's own router uses this header too

A client gives its priority by header or by field, or by both if they agree. A request without a
priority gets rank 0, or the first level in its key's list if that list lacks rank 0. The gate
refuses bad priorities in JSON bodies. It does not read other bodies; `PoolClient` refuses bad
priorities in these, by the same `AskedPriority`.

The headers of an answer that say how its request was served are here too (`receipt_headers`).

The name that a client gave its session does not leave this module: the rest of the cluster uses the
session's hash.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus

from controller.api.hosts import is_own_host
from controller.api.settings.key_file import key_id, parse_line
from controller.core.record.request_spans import Receipt
from controller.core.scheduler_events import RejectCode


class RefusedError(Exception):
    """The request is answered with this status and message. `retry_after_s`: when the client may
    try again, for 429 and 503."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        param: str | None = None,
        retry_after_s: int = 1,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.retry_after_s = retry_after_s


_NOT_DISPATCHED = {
    RejectCode.OVERLOADED: (HTTPStatus.TOO_MANY_REQUESTS, "too many requests wait for an instance"),
    RejectCode.UNAVAILABLE: (HTTPStatus.SERVICE_UNAVAILABLE, "no instance can take this request"),
    RejectCode.LATE: (
        HTTPStatus.TOO_MANY_REQUESTS,
        "the first token would not come in time for this priority level",
    ),
    RejectCode.LIVE_LIMIT: (
        HTTPStatus.TOO_MANY_REQUESTS,
        "rate limit: this API key has as many live requests as it may have",
    ),
    RejectCode.TOKEN_LIMIT: (
        HTTPStatus.TOO_MANY_REQUESTS,
        "rate limit: this API key has used the tokens that it may use in a minute",
    ),
}


def not_dispatched(code: RejectCode, retry_after_s: int) -> RefusedError:
    """The error for a request that gets no instance."""
    status, why = _NOT_DISPATCHED[code]
    return RefusedError(status, f"{why}; send it again", retry_after_s=retry_after_s)


# -- which headers may come ------------------------------------------------------------------------

# If a header is given twice, some readers take the first value and others the last: the gate judged
# the last X-Request-Id, vLLM used the first.
ONCE = (
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"host",
    b"origin",
    b"transfer-encoding",
    b"x-api-key",
    b"x-data-parallel-rank",
    b"x-request-id",
    b"x-session-id",
    b"x-vllm-priority",
)

Headers = Iterable[tuple[bytes, bytes]]


def check_headers(headers: Headers) -> None:
    """Checks headers that must not be given twice. Raises RefusedError (400)."""
    given = Counter(name for name, _ in headers)
    for name in ONCE:
        if given[name] > 1:
            shown = name.decode().title()
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{shown} is given more than once", shown)


def check_host(headers: Headers, own: Collection[str]) -> None:
    """Protects an endpoint without API keys from pages in a browser on this machine. A request
    without a Host does not come from a browser. Raises RefusedError (403)."""
    host = next((value.decode("latin-1") for name, value in headers if name == b"host"), None)
    if host is not None and not is_own_host(host, own):
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "this Host is not the endpoint's; list it in endpoint.allowed_hosts, or use API keys",
            "Host",
        )


# -- keys ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The caller, as known by its key. `key_id`: the id of the API key; empty if the endpoint has
    no keys. `levels`: the names of the levels that the key may ask for; empty if it may ask for
    all."""

    key_id: str = ""
    levels: tuple[str, ...] = ()


class ApiKeys:
    """Finds keys by their digests; only the digests are stored. The time that a comparison takes
    reveals nothing about the keys. `lines`: the lines of the key file."""

    def __init__(self, lines: Sequence[str]) -> None:
        parsed = [parse_line(line) for line in lines]
        self._digests = [_digest(each.key.encode()) for each in parsed]
        self._holders = [KeyHolder(key_id(each.key), each.levels) for each in parsed]

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> KeyHolder | None:
        """The holder of the key in the headers; None if the key is unknown."""
        if not self._digests:
            return KeyHolder()
        named = dict(headers)
        # Anthropic's clients send their key in another header.
        bearer = named.get(b"authorization", b"Bearer " + named.get(b"x-api-key", b""))
        scheme, _, key = bearer.partition(b" ")
        given = _digest(key.strip())
        # Every key is compared, so that the time does not tell which key matched.
        known = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != b"bearer" or not any(known):
            return None
        return self._holders[known.index(True)]

    def holder(self, key_id: str) -> KeyHolder | None:
        """The holder of the key with this id; None if there is no such key."""
        if not self._digests:
            return None if key_id else KeyHolder()
        return next((each for each in self._holders if each.key_id == key_id), None)


ASKED_KEY: ContextVar[str] = ContextVar("asked_key", default="")
"""The `key_id` of the HTTP request that is being answered by this task, or by the task that started
this one."""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


# -- priorities ------------------------------------------------------------------------------------

PRIORITY_HEADER = "X-Llumctl-Priority"
_PRIORITY_HEADER = PRIORITY_HEADER.lower().encode()
MAX_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class AskedPriority:
    """The priority that one HTTP request asks for, and the priorities that it may have."""

    levels: Mapping[str, int]
    """The rank of each level."""
    by_header: str | None = None
    may: Sequence[str] = ()
    """The levels that the request's key may ask for, in the order of its list; empty if it may ask
    for all."""

    def rank(self, priority: int | None) -> int:
        """The rank that the request gets. `priority`: the field of the body; None if there is no
        such field. Raises RefusedError (400, 403)."""
        rank = self._asked_rank(priority)
        if rank is None:
            return 0 if self._allows(0) else self.levels[self.may[0]]
        if not self._allows(rank):
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                f"this API key may not ask for the priority {self._name(rank)};"
                f" it may ask for {', '.join(self.may)}",
                "priority" if self.by_header is None else PRIORITY_HEADER,
            )
        return rank

    def rank_of_sequence(self, priority: int) -> int:
        """The same as `rank`, for the priority that vLLM passes on, where 0 also stands for an
        absent field."""
        return self.rank(priority or None)

    def _asked_rank(self, priority: int | None) -> int | None:
        if priority is not None and -priority not in self.levels.values():
            allowed = ", ".join(str(-rank) for rank in sorted(self.levels.values()))
            why = f"priority {priority} is not one of {allowed}"
            raise RefusedError(HTTPStatus.BAD_REQUEST, why, "priority")
        if self.by_header is None:
            return None if priority is None else -priority
        rank = self.levels[self.by_header]
        if priority is not None and priority != -rank:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"priority {priority} and the header {PRIORITY_HEADER}: {self.by_header}, which is"
                f" {-rank}, disagree",
                "priority",
            )
        return rank

    def _allows(self, rank: int) -> bool:
        return not self.may or rank in [self.levels[name] for name in self.may]

    def _name(self, rank: int) -> str:
        return next(name for name, known in self.levels.items() if known == rank)


def read_asked_priority(
    headers: Iterable[tuple[bytes, bytes]], levels: Mapping[str, int], may: Sequence[str]
) -> AskedPriority:
    """The priority that the headers ask for. Raises RefusedError (400) if they name an unknown
    level, or two levels."""
    named = {value.strip().decode("latin-1") for name, value in headers if name == _PRIORITY_HEADER}
    if len(named) > 1:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, f"{PRIORITY_HEADER} is given more than once", PRIORITY_HEADER
        )
    name = named.pop() if named else None
    if name is not None and name not in levels:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            f"{PRIORITY_HEADER}: there is no priority level {name[:MAX_SHOWN_CHARS]!r};"
            f" there are {', '.join(levels)}",
            PRIORITY_HEADER,
        )
    return AskedPriority(levels, name, may)


ASKED_PRIORITY: ContextVar[AskedPriority | None] = ContextVar("asked_priority", default=None)
"""The priority of the HTTP request that is being answered by this task, or by the task that started
this one."""


# -- sessions --------------------------------------------------------------------------------------

_SESSION_HEADER = b"x-session-id"
_HASH_BYTES = 8


def read_session(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The hash of the session, which is the same at every frontend; empty if the header is missing
    or empty."""
    given = next((value.strip() for name, value in headers if name == _SESSION_HEADER), b"")
    return blake2b(given, digest_size=_HASH_BYTES).hexdigest() if given else ""


ASKED_SESSION: ContextVar[str] = ContextVar("asked_session", default="")
"""The session of the HTTP request that is being answered by this task, or by the task that started
this one."""


# -- receipts --------------------------------------------------------------------------------------

RECEIPT_HEADERS = (
    "X-Llumctl-Instance",
    "X-Llumctl-Queue-Ms",
    "X-Llumctl-Cached-Tokens",
    "X-Llumctl-Moves",
    "X-Llumctl-Replays",
)


def receipt_headers(receipt: Receipt, *, is_over: bool) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that say how its request was served. `is_over`: whether the request
    has ended. The head of a stream is sent before, and has only the headers that were known."""
    values: list[str | int | None] = [",".join(receipt.instances), round(receipt.queue_s * 1000)]
    if is_over:
        values += [receipt.num_cached_tokens, receipt.num_moves, receipt.num_replays]
    return [
        (name.lower().encode(), str(value).encode())
        for name, value in zip(RECEIPT_HEADERS, values, strict=False)
        if value is not None
    ]
