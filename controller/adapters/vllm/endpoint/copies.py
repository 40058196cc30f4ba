"""Copies of requests, which another model gets (`traffic.mirror`): they are made by this process,
their answers are dropped, and what they took is compared with the original."""

import asyncio
import logging
from uuid import uuid4

from starlette.types import Scope

from controller.adapters.vllm.checks.body import MAX_ID_CHARS
from controller.adapters.vllm.endpoint.gate import REQUEST_ID, Gate, OwnRequest
from controller.core.admission.traffic import Served, TrafficBook, served

log = logging.getLogger(__name__)

SUFFIX = "-copy"


class Copy:
    """A copy that is under way."""

    def __init__(self, request: OwnRequest) -> None:
        self.request = request
        self.original = asyncio.get_running_loop().create_future()

    def original_is_over(self, original: Served | None) -> None:
        """Called once. `original`: what the original got; None if it did not finish, and then the
        copy is given up."""
        self.original.set_result(original)
        if original is None:
            self.request.leave()


class Copies:
    """All copies at one frontend. Half of the places at its gate stay for the requests of
    clients."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tasks: dict[asyncio.Task[None], OwnRequest] = {}

    @property
    def num_live(self) -> int:
        return len(self._tasks)

    def begin(self, scope: Scope, body: bytes, model: str, book: TrafficBook) -> Copy | None:
        """Sends a copy of the request to `model`, which `body` names; None if there is no room."""
        # A copy is counted at the gate only when its turn comes.
        num_live = max(self._gate.num_live, self.num_live)
        if num_live >= self._gate.limits.max_live_requests // 2:
            book.left_out(model)
            return None
        book.copied(model)
        headers = dict(scope["headers"])
        client_id = headers.get(REQUEST_ID, b"").decode("latin-1") or uuid4().hex[:16]
        request_id = f"{client_id[: MAX_ID_CHARS - len(SUFFIX)]}{SUFFIX}"
        session = headers.get(b"x-session-id", b"")
        copy = Copy(OwnRequest(scope["path"], body, None, request_id, session=session))
        task = asyncio.create_task(self._run(copy, model, book))
        self._tasks[task] = copy.request
        task.add_done_callback(self._tasks.pop)
        return copy

    async def _run(self, copy: Copy, model: str, book: TrafficBook) -> None:
        try:
            answer = await self._gate.ask(copy.request)
        except Exception:
            log.exception("a copy for %s failed", model)
            book.ended(model, await copy.original, None)
            return
        book.ended(model, await copy.original, served(answer.records))

    def close(self) -> None:
        """Gives up all copies."""
        for request in self._tasks.values():
            request.leave()
