"""Carries out what `core/replay/replay_machine.py` decides: which lost requests go on elsewhere."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from controller.core.instance_ref import InstanceRef
from controller.core.record.request_record import RequestState
from controller.core.replay.replay import ReplayRefusal, cause_of
from controller.core.replay.replay_machine import (
    Ask,
    CallOff,
    Decline,
    Dispatched,
    Event,
    Fail,
    Found,
    Instructions,
    Kept,
    Lost,
    Mark,
    NotDispatched,
    NotSent,
    Over,
    RecordFound,
    RecordLoss,
    Refuse,
    Refused,
    ReplayMachine,
    Send,
    WakeAt,
    Woken,
)
from controller.core.scheduler_events import DispatchRequested
from controller.ports.mailbox import Mailbox
from controller.runtime.frontend.dispatcher import Dispatcher, NotDispatchedError
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.frontend.routes import Routes
from controller.runtime.messages import output_tokens
from controller.runtime.messages.codec import encode
from controller.runtime.messages.requests import AddRequest, RequestRefused

log = logging.getLogger(__name__)


class ReplayRunner:
    """`on_failed` hears of a live request (id, why) that ends here and may be sent again,
    `on_refused` of one that no instance would take, `on_sent` of one that an instance gets anew."""

    def __init__(
        self,
        mailbox: Mailbox,
        routes: Routes,
        dispatcher: Dispatcher,
        book: RequestBook,
        on_failed: Callable[[str, str], None],
        on_refused: Callable[[str, str], None],
        on_sent: Callable[[str], None],
    ) -> None:
        self._mailbox = mailbox
        self._routes = routes
        self._dispatcher = dispatcher
        self._book = book
        self._on_failed = on_failed
        self._on_refused = on_refused
        self._on_sent = on_sent
        self.machine = ReplayMachine()
        self._pending: dict[str, asyncio.Task[None] | asyncio.TimerHandle] = {}
        """By request id, while an instance is asked for or is to be."""
        routes.on_lost, routes.on_found = self._lost, self._found
        routes.is_lost = self.machine.is_lost

    def close(self) -> None:
        for request_id in list(self._pending):
            self._call_off(request_id)

    # -- events --------------------------------------------------------------------------

    def keep(
        self,
        request: DispatchRequested,
        frames: Sequence[bytes | memoryview],
        mark: ReplayRefusal | None = None,
    ) -> None:
        """`mark`: why it cannot be replayed once it has outputs."""
        self._take(Kept(request, frames, mark))

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._take(Over(request_id))

    def refused(self, refused: RequestRefused) -> None:
        request_id = refused.request_id
        route = self._routes.live.get(request_id)
        if route is not None:
            self._take(
                Refused(
                    request_id,
                    route.ownership.owner,
                    refused.message,
                    refused.retryable,
                    refused.attempt,
                    self._silent_s(request_id),
                )
            )

    def _lost(self, request_id: str, owner: InstanceRef, what: str) -> None:
        self._take(Lost(request_id, owner, what, self._silent_s(request_id)))

    def _found(self, request_id: str) -> None:
        self._take(Found(request_id))

    def _silent_s(self, request_id: str) -> float | None:
        token_s = self._routes.live[request_id].token_s
        return None if token_s is None else asyncio.get_running_loop().time() - token_s

    def _take(self, event: Event) -> None:
        self.follow(self.machine.handle(event, asyncio.get_running_loop().time()))

    # -- instructions --------------------------------------------------------------------

    def follow(self, instructions: Instructions) -> None:
        loop = asyncio.get_running_loop()
        for instruction in instructions:
            match instruction:
                case Ask(request):
                    self._pending[request.request_id] = loop.create_task(self._ask(request))
                case WakeAt(request_id, time_s):
                    woken = Woken(request_id, time_s)
                    wake = partial(self._answer, request_id, woken)
                    self._pending[request_id] = loop.call_at(time_s, wake)
                case CallOff(request_id):
                    self._call_off(request_id)
                case Send():
                    self._send(instruction)
                case Decline(dispatch):
                    self._dispatcher.decline(dispatch)
                case Mark(request_id, refusal):
                    self._book.marked(request_id, refusal)
                case RecordLoss(request_id, loss):
                    self._book.lost(request_id, loss)
                case RecordFound(request_id, num_replays):
                    self._book.found(request_id, num_replays)
                case Fail():
                    self._fail(instruction)
                case Refuse(request_id, message, retryable):
                    del self._routes.live[request_id]
                    self._book.ended(request_id, RequestState.FAILED, message)
                    tell = self._on_failed if retryable else self._on_refused
                    tell(request_id, message)

    async def _ask(self, request: DispatchRequested) -> None:
        request_id = request.request_id
        try:
            found = await self._dispatcher.find(replace(request, rank=self._rank(request)))
            if found is not None:
                dispatch, entry = found
                self._answer(request_id, Dispatched(dispatch, entry.ref))
        except NotDispatchedError:
            self._answer(request_id, NotDispatched(request_id))
        except Exception:
            log.exception("request %s cannot be replayed", request_id)
            self._answer(request_id, NotSent(request_id))

    def _answer(self, request_id: str, event: Event) -> None:
        """Ends what is pending: the event is its outcome."""
        self._pending.pop(request_id, None)
        self._take(event)

    def _rank(self, request: DispatchRequested) -> int:
        """The rank as it is now: an operator may have changed it."""
        record = self._book.find(request.request_id)
        return request.rank if record is None else record.rank

    def _call_off(self, request_id: str) -> None:
        self._dispatcher.abort(request_id)
        if pending := self._pending.pop(request_id, None):
            pending.cancel()

    def _send(self, send: Send) -> None:
        request, outputs = send.request, send.outputs
        request_id = request.request_id
        route = self._routes.live[request_id]
        attempt = route.ownership.replayed(send.instance).attempt
        assert (attempt, len(outputs)) == (send.replay.attempt, route.next_index)
        route.timed, route.replay = None, send.replay
        add = AddRequest(
            request_id,
            self._mailbox.address,
            send.instance.incarnation,
            send.dispatch.seq,
            request.arrival_time_s,
            attempt,
            rank=self._rank(request),
            num_output_tokens=len(outputs),
        )
        payload = list(send.frames)
        if outputs:
            payload.append(output_tokens.encode(outputs))
        self._book.dispatched(send.dispatch, send.replay)
        self._mailbox.send(send.instance.address, encode(add), payload)
        self._on_sent(request_id)

    def _fail(self, fail: Fail) -> None:
        request_id, owner = fail.request_id, fail.owner
        self._routes.live.pop(request_id, None)
        self._book.not_replayed(request_id, fail.refusal)
        labels = {"from": owner.instance_id, "code": str(fail.refusal)}
        self._book.ended(
            request_id, RequestState.FAILED, fail.message, cause_of(owner), labels=labels
        )
        self._on_failed(request_id, fail.message)
