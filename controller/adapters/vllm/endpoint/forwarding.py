"""The app of a model that runs on attached servers only. It forwards the bodies of requests as they
came, and sends the servers' answers as they come (docs/decisions/0079).

It stands behind the same gate and switch as vLLM's apps, but needs neither weights nor a tokenizer:
the length of a prompt is estimated from its characters. Nothing here imports vLLM.

Touch points of vLLM: entrypoints/openai/models/serving.py `show_available_models`,
`base_model_paths`, `lora_requests`, which the list of this model has too."""

import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import msgspec
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controller.adapters.forward_wire import (
    ForwardedRequest,
    Piece,
    decode_pieces,
    encode,
)
from controller.adapters.vllm.endpoint.answers import error_body, last_events
from controller.adapters.vllm.endpoint.exchange import PLACING, Placing
from controller.adapters.vllm.endpoint.gate import REQUEST_ID, add_model_route, add_ready_route
from controller.adapters.vllm.endpoint.headers import (
    ASKED_KEY,
    ASKED_PRIORITY,
    ASKED_SESSION,
    AskedPriority,
    RefusedError,
    not_dispatched,
)
from controller.core.record.request_record import RequestState
from controller.core.replay.replay_machine import ReplayRefusal
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.frontend.dispatcher import NotDispatchedError
from controller.runtime.frontend.router import Router
from controller.runtime.messages.requests import OutputsEmitted

FORWARDED = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
        *("/v1/messages", "/v1/messages/count_tokens", "/v1/rerank", "/rerank", "/v1/score"),
        *("/score", "/pooling", "/classify", "/tokenize", "/detokenize"),
    }
)
"""The paths of requests that are forwarded. A server that has no such path says so itself."""
HEADERS = ("accept", "anthropic-version", "anthropic-beta", "x-request-id")
"""The headers of the client that a server gets."""
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
BYTES_PER_TOKEN = 4.0
"""About what English text has, until a server has told how many tokens a prompt has."""
LEARNED = 0.1
"""How much the latest count of a server weighs in the estimate."""
MIN_BYTES_PER_TOKEN, MAX_BYTES_PER_TOKEN = 0.5, 16.0
CLIENT_LEFT = "the client left"


class PromptLengths:
    """Estimates how many tokens a prompt has. It learns from what servers count."""

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN

    def estimate(self, num_bytes: float, longest: int) -> int:
        """`longest`: the most tokens that a request may have; 0: not known. The answer has a token
        at least."""
        estimate = max(1, round(num_bytes / self.bytes_per_token))
        return min(estimate, longest - 1) if longest > 1 else estimate

    def learn(self, num_bytes: float, num_tokens: int) -> None:
        seen = min(max(num_bytes / num_tokens, MIN_BYTES_PER_TOKEN), MAX_BYTES_PER_TOKEN)
        self.bytes_per_token += LEARNED * (seen - self.bytes_per_token)


def text_bytes(found: Any) -> float:
    """How many bytes of text are in a body's values. In a list of numbers, which may be ids, each
    one counts as a token. Data URLs, such as of images, do not count."""
    total, left = 0.0, [found]
    while left:
        match left.pop():
            case str() as text if not text.startswith("data:"):
                total += len(text.encode("utf-8", "replace"))
            case list() as items:
                if items and all(type(each) is int for each in items):
                    total += BYTES_PER_TOKEN * len(items)
                else:
                    left += items
            case dict() as entries:
                left += entries.values()
    return total


@dataclass(frozen=True, slots=True)
class _Asked:
    """`num_bytes`: of text in the body."""

    dispatch: DispatchRequested
    forwarded: ForwardedRequest
    client_id: str
    num_bytes: float


@dataclass(frozen=True, slots=True)
class _Failure:
    status: HTTPStatus
    why: str


class ForwardedRequests:
    """The requests of one model that are forwarded. `levels`: the rank of each priority level.
    `longest`: the most tokens that a request may have; 0 if that is not known."""

    def __init__(
        self, router: Router, levels: Mapping[str, int], longest: Callable[[], int]
    ) -> None:
        self._router = router
        self._levels = levels
        self._longest = longest
        self._lengths = PromptLengths()
        self._answers: dict[str, asyncio.Queue[Piece | _Failure]] = {}
        """What has come for each live request, by its id."""
        self._frontend, self._number = secrets.token_hex(4), itertools.count()
        router.inbox.with_payload[OutputsEmitted] = self._receive

    # -- what comes ----------------------------------------------------------------------

    def _receive(self, emitted: OutputsEmitted, payload: Sequence[memoryview]) -> None:
        for piece, num_skip in self._router.accept(emitted, decode_pieces(payload).pieces):
            answer = self._answers.get(piece.request_id)
            if answer is not None and not num_skip:
                answer.put_nowait(piece)

    def fail(self, request_id: str, why: str, status: HTTPStatus, outcome: RequestState) -> None:
        """Ends the request with this error. `outcome` goes into its record."""
        if answer := self._answers.get(request_id):
            answer.put_nowait(_Failure(status, why))
            self._router.abort([request_id], outcome, why)

    # -- what goes out -------------------------------------------------------------------

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request. Raises RefusedError as long as the answer has not begun."""
        body = await _body(receive)
        asked = self._prepared(scope, body)
        request_id = asked.dispatch.request_id
        self._answers[request_id] = asyncio.Queue()
        serving = asyncio.create_task(self._serve(asked, send))
        leaving = asyncio.create_task(_until_client_leaves(receive))
        try:
            await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # raises what ended it
        finally:
            leaving.cancel()
            if not serving.done():
                serving.cancel()
                self._router.abort([request_id], RequestState.ABORTED, CLIENT_LEFT)
                with suppress(asyncio.CancelledError):
                    await serving
            del self._answers[request_id]

    def _prepared(self, scope: Scope, body: bytes) -> _Asked:
        """Raises RefusedError."""
        fields = msgspec.json.decode(body, type=dict[str, Any])
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        rank = (ASKED_PRIORITY.get() or AskedPriority(self._levels)).rank(fields.get("priority"))
        client_id = headers.get(REQUEST_ID.decode(), "") or f"fwd-{secrets.token_hex(8)}"
        request_id = f"{client_id}-{self._frontend}{next(self._number):x}"
        now_s = time.time()
        num_bytes = text_bytes(fields)
        num_tokens = self._lengths.estimate(num_bytes, self._longest())
        placing = PLACING.get()
        trace = placing.trace.onward() if placing is not None and placing.trace is not None else {}
        limits = [fields[name] for name in LIMITS if type(fields.get(name)) is int]
        asked = DispatchRequested(
            request_id,
            self._router.frontend_id,
            num_tokens,
            rank,
            now_s,
            ASKED_SESSION.get(),
            api_key=ASKED_KEY.get(),
        )
        forwarded = ForwardedRequest(
            request_id,
            now_s,
            rank,
            num_tokens,
            max(1, limits[0]) if limits else None,
            scope["path"],
            body,
            {name: headers[name] for name in HEADERS if name in headers} | trace,
        )
        return _Asked(asked, forwarded, client_id, num_bytes)

    async def _serve(self, asked: _Asked, send: Send) -> None:
        placing = PLACING.get()
        if placing is not None:
            placing.began()
        await self._submit(asked, placing)
        if placing is not None:
            await placing.placed()
        await self._send_answer(asked, send)

    async def _submit(self, asked: _Asked, placing: Placing | None) -> None:
        """Raises RefusedError."""
        records = [] if placing is None else placing.records
        try:
            await self._router.submit(
                asked.dispatch,
                encode(asked.forwarded),
                asked.client_id,
                not_replayable=ReplayRefusal.FORWARDED,
                on_arrived=records.append,
            )
        except NotDispatchedError as refusal:
            refused = not_dispatched(refusal.code, refusal.retry_after_s)
            if placing is not None:
                placing.refused(refused)
            raise refused from None

    async def _send_answer(self, asked: _Asked, send: Send) -> None:
        """Raises RefusedError as long as the answer has not begun."""
        answer = self._answers[asked.dispatch.request_id]
        has_begun = False
        while True:
            came = await answer.get()
            if isinstance(came, Piece) and came.failure:
                came = _Failure(HTTPStatus.BAD_GATEWAY, came.failure)
            if isinstance(came, _Failure):
                if not has_begun:
                    raise RefusedError(came.status, came.why)
                last = last_events(came.status, came.why, asked.forwarded.path)
                await send({"type": "http.response.body", "body": last})
                return
            if not has_begun:
                has_begun = True
                headers = [(b"content-type", came.content_type.encode("latin-1"))]
                start = {"type": "http.response.start", "status": came.status, "headers": headers}
                await send(start)
            is_last = came.finish_reason is not None
            await send({"type": "http.response.body", "body": came.data, "more_body": not is_last})
            if is_last:
                if came.num_prompt_tokens:
                    self._lengths.learn(asked.num_bytes, came.num_prompt_tokens)
                return


async def _body(receive: Receive) -> bytes:
    """The gate has read the body, so it comes in few pieces."""
    pieces = [await receive()]
    while pieces[-1].get("more_body"):
        pieces.append(await receive())
    return b"".join(each.get("body", b"") for each in pieces)


async def _until_client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- the app ---------------------------------------------------------------------------------------


class ListedModel:
    """The list of the models that clients may name, as vLLM's apps have it: this one."""

    def __init__(self, name: str) -> None:
        self.base_model_paths = [SimpleNamespace(name=name)]
        self.lora_requests: dict[str, Any] = {}
        told = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "llumctl"}
        self._card = SimpleNamespace(id=name, model_dump=lambda: told)

    async def show_available_models(self) -> Any:
        return SimpleNamespace(data=[self._card])


def build_forward_app(
    name: str, requests: ForwardedRequests, why_not_ready: Callable[[], str]
) -> FastAPI:
    """`why_not_ready`: returns an empty text while new requests are accepted."""
    app = FastAPI(openapi_url=None)
    app.state.model_name = name
    app.state.openai_serving_models = ListedModel(name)
    add_model_route(app)
    add_ready_route(app, why_not_ready)
    for path in FORWARDED:
        app.router.routes.append(Route(path, _Forward(requests), methods=["POST"]))
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_api_route("/metrics", _metrics, methods=["GET"])
    app.add_exception_handler(RefusedError, _refusal)
    return app


async def _health() -> Response:
    return Response()


async def _metrics() -> Response:
    """The metrics of this process; of several frontends those of all."""
    registry = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _refusal(request: Request, error: Exception) -> Response:
    """Without this, Starlette would answer with 500. The gate gives the answer its last form."""
    assert isinstance(error, RefusedError)
    body = error_body(error.status, error.message, error.param, request.url.path)
    return Response(body, error.status, media_type="application/json")


class _Forward:
    """An ASGI app for a route."""

    def __init__(self, requests: ForwardedRequests) -> None:
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._requests.answer(scope, receive, send)
