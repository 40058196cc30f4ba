"""Calls that take effect once, however often they come: a client that missed the answer repeats
its call with the same `Idempotency-Key`, and gets the answer of the first time; or, to change
nothing by asking, gets `/v1/answers/KEY`.

Moves, drains, undrains and aborts need that: the second one would find another state, or count its
deadline anew. Only this process keeps the answers: a controller that starts again carries such a
call out once more.
"""

import asyncio
import hashlib

from starlette.requests import Request
from starlette.responses import Response

from controller.adapters.http.answers import Endpoint
from controller.adapters.http.errors import ApiError

HEADER = "Idempotency-Key"
MAX_KEPT = 1000
MAX_KEY_CHARS = 64


class AnswersByKey:
    """Answers to the last 1,000 calls that had a key, refusals and failures too."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, asyncio.Task[Response]]] = {}
        """By key: a digest of the call, and its answer."""

    def once(self, endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            key = request.headers.get(HEADER)
            if key is None:
                return await endpoint(request)
            if not 0 < len(key) <= MAX_KEY_CHARS:
                raise ApiError(400, "bad_key", f"{HEADER}: 1 to {MAX_KEY_CHARS} characters")
            order = hashlib.sha256(request.url.path.encode() + b"\0" + await request.body())
            if key not in self._kept:
                answering = asyncio.get_running_loop().create_task(endpoint(request))
                self._kept[key] = order.digest(), answering
                if len(self._kept) > MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
            known, answering = self._kept[key]
            if known != order.digest():
                raise ApiError(
                    409, "key_reused", f"that {HEADER} was another order's; each has its own"
                )
            # A client that hangs up must not cancel the answer for its next call.
            return await asyncio.shield(answering)

        return answer

    async def told(self, request: Request) -> Response:
        """The answer, or the refusal, that the call with this key got. Raises ApiError for a key
        that no call had, and for a call that is under way."""
        key = request.path_params["key"]
        if key not in self._kept:
            raise ApiError(404, "no_such_call", f"no call with the {HEADER} {key[:64]!r} came here")
        _, answering = self._kept[key]
        if not answering.done():
            raise ApiError(409, "under_way", "the call is under way")
        return answering.result()
