"""The gate in front of vLLM's OpenAI app: keys, limits, deadlines, and checks that vLLM lacks.

Every error that leaves has the shape and the size of error_bodies.py.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

from starlette.types import ASGIApp, Receive, Scope, Send

from controller.adapters.vllm.checks.body import LEAST_MAX_TOKEN_IDS, find_fault, find_id_fault
from controller.adapters.vllm.checks.headers import RefusedError, check_headers, check_host
from controller.adapters.vllm.endpoint.callers import (
    ASKED_KEY,
    ASKED_PRIORITY,
    ASKED_SESSION,
    ApiKeys,
    AskedPriority,
    KeyHolder,
    read_asked_priority,
    read_session,
)
from controller.adapters.vllm.endpoint.error_bodies import INTERNAL
from controller.adapters.vllm.endpoint.exchange import (
    PLACING,
    BodyRoom,
    ClientLeftError,
    Exchange,
    Turns,
)
from controller.api.hosts import own_names

log = logging.getLogger(__name__)

# Load balancers and metrics collectors have no key, and these paths tell no secrets.
OPEN_PATHS = frozenset({"/health", "/metrics", "/ready"})
STOPPING = "the cluster is stopping"
# These paths take texts longer than the model's context: 8 MB kept the event loop for 5 s, and
# 1 MB, answered with each token's string, 0.13 s.
TOKEN_PATHS = frozenset({"/tokenize", "/detokenize"})
MAX_TOKEN_BODY_BYTES = 512 * 1024
# To read a body, check it and bring it through vLLM's app takes some 2 ms of the event loop: 900
# requests at once kept the streams that ran waiting for 2.5 s.
REQUESTS_PER_TURN = 1
# The bodies that are being read may have the size of so many bodies of the largest size.
MAX_LARGE_BODIES = 32
DEFAULT_LEVELS: Mapping[str, int] = MappingProxyType({"normal": 0})


@dataclass(frozen=True, slots=True)
class GateLimits:
    max_body_bytes: int = 2 * 1024 * 1024
    max_live_requests: int = 4096
    request_timeout_s: float | None = None
    """The longest time from a request's headers to the end of its answer; None: no limit."""
    max_token_ids: int = LEAST_MAX_TOKEN_IDS


class Gate:
    def __init__(
        self,
        limits: GateLimits | None = None,
        api_keys: Sequence[str] = (),
        levels: Mapping[str, int] = DEFAULT_LEVELS,
        hosts: Collection[str] = (),
    ) -> None:
        """`api_keys`: lines of the key file. `levels`: rank by name. `hosts`: names and addresses
        under which clients may call, beside loopback; with API keys any Host will do."""
        self.app: ASGIApp
        self.closed = False
        """Whether the cluster stops: new requests are refused, live ones go on."""
        self.num_live = 0
        """Live requests whose bodies are complete, so that slow senders keep nobody out."""
        self.json_paths: frozenset[str] = frozenset()
        """Paths that take a JSON object by POST."""
        self.limits = limits or GateLimits()
        """May be set at any time, and holds for later requests."""
        self.room = BodyRoom(MAX_LARGE_BODIES * self.limits.max_body_bytes)
        self._keys = ApiKeys(api_keys)
        self._turns = Turns(REQUESTS_PER_TURN)
        self._hosts = None if api_keys else own_names(hosts)
        self._levels = levels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":  # no model served here has a use for it
            await send({"type": "websocket.close"})
        else:
            scope = _as_routed(scope)
            exchange = Exchange(scope, receive, send)
            try:
                await self._pass(scope, exchange)
            except RefusedError as refused:
                await exchange.refuse(refused)
            except ClientLeftError:
                pass
            except Exception as error:
                if why := _late_refusal(error):
                    await exchange.fail(HTTPStatus.BAD_REQUEST, why)
                    return
                log.exception("%s %s failed", scope["method"], scope["path"])
                await exchange.fail(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)
            finally:
                exchange.placing.close()

    async def _pass(self, scope: Scope, exchange: Exchange) -> None:
        path, method = scope["path"], scope["method"]
        check_headers(scope["headers"])
        if self._hosts is not None:
            check_host(scope["headers"], self._hosts)
        holder = self._keys.find(scope["headers"])
        # A browser asks by OPTIONS, without a key, whether it may ask at all.
        if holder is None and method != "OPTIONS" and path not in OPEN_PATHS:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "give a valid API key as a bearer token")
        if method != "POST":
            await self.app(scope, exchange.receive, exchange.send)
            return
        self._check_open()
        holder = holder or KeyHolder()
        asked_priority = read_asked_priority(scope["headers"], self._levels, holder.levels)
        before = ASKED_PRIORITY.set(asked_priority)
        key_before = ASKED_KEY.set(holder.key_id)
        session_before = ASKED_SESSION.set(read_session(scope["headers"]))
        try:
            await self._post(scope, exchange, asked_priority)
        finally:
            ASKED_PRIORITY.reset(before)
            ASKED_KEY.reset(key_before)
            ASKED_SESSION.reset(session_before)

    async def _post(self, scope: Scope, exchange: Exchange, asked_priority: AskedPriority) -> None:
        path = scope["path"]
        if path not in self.json_paths:
            await self.app(scope, exchange.receive, exchange.send)
            return
        exchange.set_deadline(self.limits.request_timeout_s)
        self._check_place()  # before the body is read, to refuse early
        max_bytes = self.limits.max_body_bytes
        if path in TOKEN_PATHS:
            max_bytes = min(max_bytes, MAX_TOKEN_BODY_BYTES)
        body = await exchange.read_body(max_bytes, self.room)
        self._check_open()
        self._check_place()
        self.num_live += 1
        try:
            await self._turns.take()
            await self._serve(scope, exchange, body, asked_priority)
        finally:
            self.num_live -= 1

    def _check_open(self) -> None:
        if self.closed:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{STOPPING}; send it to another one"
            )

    def _check_place(self) -> None:
        if self.num_live >= self.limits.max_live_requests:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"this frontend serves {self.num_live} requests already; send it again",
            )

    async def _serve(
        self, scope: Scope, exchange: Exchange, body: bytes, asked_priority: AskedPriority
    ) -> None:
        own_id = exchange.headers.get(b"x-request-id", b"").decode("latin-1")
        if why := find_id_fault(own_id):
            raise RefusedError(HTTPStatus.BAD_REQUEST, why, "X-Request-Id")
        if fault := find_fault(body, asked_priority.rank, self.limits.max_token_ids):
            raise RefusedError(HTTPStatus.BAD_REQUEST, *fault)
        before = PLACING.set(exchange.placing)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            if not exchange.timed_out:  # the app may fail in any way when its request is cut
                raise
        finally:
            PLACING.reset(before)
        if exchange.timed_out:
            overdue = exchange.overdue
            await exchange.fail(overdue.status, overdue.message)


def _as_routed(scope: Scope) -> Scope:
    """vLLM's routes know no HEAD, which is GET without the body; uvicorn sends none then. And its
    app answers a path with a slash at its end by a redirect, which clients follow as they like."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return {**scope, "method": method, "path": scope["path"].rstrip("/") or "/"}


def _late_refusal(error: Exception) -> str | None:
    """Why vLLM refuses a request after the stream has begun; None for other errors. Starlette
    raises a RuntimeError then, as its handler cannot answer any more."""
    cause = error.__cause__
    return str(cause) if isinstance(error, RuntimeError) and isinstance(cause, ValueError) else None
