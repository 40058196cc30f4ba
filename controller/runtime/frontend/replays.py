"""Requests whose instance died go on elsewhere, from the tokens that their clients have.

The frontend keeps each live request as it was sent, and its outputs, within a limit of tokens in
all. After a loss it asks for an instance anew and sends both there: the outputs beside the prompt
and not as part of it, so that the request is exactly the one that it was. core/replay says which
requests cannot be replayed. A request that was refused only because its instance had restarted is
sent again too, and that counts as no replay.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.record.request_record import RequestState
from controller.core.replay.replay import (
    ALWAYS,
    SENTENCES,
    Replay,
    ReplayConfig,
    ReplayRefusal,
    RequestLoss,
    cause_of,
    why_not,
)
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.ports.mailbox import Mailbox
from controller.runtime.frontend.dispatcher import Dispatcher, NotDispatchedError
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.frontend.routes import Routes
from controller.runtime.messages import output_tokens
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import InstanceEntry
from controller.runtime.messages.requests import AddRequest, RequestRefused

log = logging.getLogger(__name__)

ASK_AGAIN_S = 0.25
# An instance that restarted refuses what was meant for its predecessor. The wait doubles each time.
MAX_REFUSALS = 6
AFTER_REFUSAL_S = 0.05


@dataclass(slots=True)
class _Kept:
    request: DispatchRequested
    frames: Sequence[bytes]
    """As it was sent first; none of a request that is not kept."""
    mark: ReplayRefusal | None
    outputs: "array[int]" = field(default_factory=lambda: array("i"))
    num_replays: int = 0
    num_refusals: int = 0
    """In a row."""
    placing: asyncio.Task[None] | None = None

    @property
    def num_tokens(self) -> int:
        return self.request.num_prompt_tokens + len(self.outputs) if self.frames else 0


class Replays:
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
        self.config = ReplayConfig()
        """May be set at any time; requests that are not kept by then stay so."""
        self._kept: dict[str, _Kept] = {}
        self.num_tokens_kept = 0
        routes.on_lost, routes.on_found = self.lost, self.found

    # -- what is kept --------------------------------------------------------------------

    def keep(
        self,
        request: DispatchRequested,
        frames: Sequence[Any],
        mark: ReplayRefusal | None = None,
    ) -> None:
        """`mark`: why it cannot be replayed once it has outputs."""
        if self.config.max_replays == 0:
            mark = ReplayRefusal.OFF
        elif self.num_tokens_kept + request.num_prompt_tokens > self.config.max_tokens_kept:
            mark = ReplayRefusal.NOT_KEPT
        kept = () if mark in ALWAYS else tuple(bytes(frame) for frame in frames)
        self._kept[request.request_id] = known = _Kept(request, kept, mark)
        self.num_tokens_kept += known.num_tokens
        if mark is not None:
            self._book.marked(request.request_id, mark)

    def delivered(self, request_id: str, token_ids: Sequence[int]) -> None:
        """These are the next tokens that the client gets."""
        kept = self._kept.get(request_id)
        if kept is None:
            return
        kept.num_refusals = 0
        if kept.mark is not None:
            return
        kept.outputs.extend(token_ids)
        self.num_tokens_kept += len(token_ids)
        if self.num_tokens_kept > self.config.max_tokens_kept:
            self._drop(kept)
            kept.mark = ReplayRefusal.NOT_KEPT
            self._book.marked(request_id, kept.mark)

    def forget(self, request_id: str) -> None:
        """The request is over."""
        if kept := self._kept.pop(request_id, None):
            self._drop(kept)
            self._call_off(request_id, kept)

    def _drop(self, kept: _Kept) -> None:
        self.num_tokens_kept -= kept.num_tokens
        kept.frames, kept.outputs = (), array("i")

    # -- what happens --------------------------------------------------------------------

    def lost(self, request_id: str, owner: InstanceRef, what: str) -> None:
        """`what` happened to the request, which no instance has any more."""
        kept, route = self._kept[request_id], self._routes.live[request_id]
        refusal = why_not(self.config, kept.num_replays, route.next_index, kept.mark)
        if refusal is not None:
            self._end(request_id, owner, what, refusal)
            return
        kept.num_replays += 1
        self._place_again(request_id, kept, owner, what)

    def found(self, request_id: str) -> None:
        """An instance has the request after all: it had moved before its owner died."""
        kept = self._kept[request_id]
        kept.num_replays = max(0, kept.num_replays - 1)
        self._book.found(request_id, kept.num_replays)
        self._call_off(request_id, kept)

    def refused(self, refused: RequestRefused) -> None:
        request_id = refused.request_id
        route, kept = self._routes.live.get(request_id), self._kept.get(request_id)
        if route is None or kept is None or route.waiting or refused.attempt != route.attempt:
            return
        owner = route.ownership.owner
        if not refused.retryable and route.next_index:
            what = f"instance {owner.instance_id} refused this request as a replay"
            self._end(request_id, owner, what, ReplayRefusal.NOT_TAKEN, refused.message)
        elif refused.retryable and kept.frames and kept.num_refusals < MAX_REFUSALS:
            wait_s = AFTER_REFUSAL_S * 2**kept.num_refusals
            kept.num_refusals += 1
            self._place_again(request_id, kept, owner, refused.message, wait_s)
        else:
            del self._routes.live[request_id]
            self._book.ended(request_id, RequestState.FAILED, refused.message)
            tell = self._on_failed if refused.retryable else self._on_refused
            tell(request_id, refused.message)

    def _end(
        self,
        request_id: str,
        owner: InstanceRef,
        what: str,
        refusal: ReplayRefusal,
        detail: str | None = None,
    ) -> None:
        why = f", and it cannot be replayed: {detail or SENTENCES[refusal]}"
        if refusal is ReplayRefusal.OFF:
            why = ""
        self._routes.live.pop(request_id, None)
        self._book.not_replayed(request_id, refusal)
        told = f"{what}{why}; send it again"
        labels = {"from": owner.instance_id, "code": str(refusal)}
        self._book.ended(request_id, RequestState.FAILED, told, cause_of(owner), labels=labels)
        self._on_failed(request_id, told)

    # -- elsewhere -----------------------------------------------------------------------

    def _place_again(
        self, request_id: str, kept: _Kept, owner: InstanceRef, what: str, wait_s: float = 0.0
    ) -> None:
        route = self._routes.live[request_id]
        route.waiting = True
        now_s = asyncio.get_running_loop().time()
        silent_s = None if route.token_s is None else now_s - route.token_s
        num_tokens = kept.request.num_prompt_tokens + route.next_index
        loss = RequestLoss(owner, what, num_tokens, silent_s, kept.num_replays)
        self._book.lost(request_id, loss)
        placing = self._place(request_id, kept, owner, what, wait_s)
        kept.placing = asyncio.get_running_loop().create_task(placing)

    async def _place(
        self, request_id: str, kept: _Kept, owner: InstanceRef, what: str, wait_s: float
    ) -> None:
        try:
            await asyncio.sleep(wait_s)
            found = await self._find(request_id, kept)
            if found is not None:
                self._send(request_id, kept, owner, what, *found)
        except NotDispatchedError:
            self._end(request_id, owner, what, ReplayRefusal.NO_INSTANCE)
        except Exception:
            log.exception("request %s cannot be replayed", request_id)
            self._end(request_id, owner, what, ReplayRefusal.NOT_TAKEN)

    async def _find(self, request_id: str, kept: _Kept) -> tuple[Dispatch, InstanceEntry] | None:
        """None if the request is over. Raises NotDispatchedError."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            try:
                return await self._dispatcher.find(self._as_of_now(request_id, kept))
            except NotDispatchedError:
                if loop.time() - began_s >= self.config.patience_s:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)

    def _as_of_now(self, request_id: str, kept: _Kept) -> DispatchRequested:
        """The request as the controller places it: in its old order, and with all its tokens."""
        record, first = self._book.find(request_id), kept.request
        return replace(
            first,
            rank=first.rank if record is None else record.rank,
            num_prompt_tokens=first.num_prompt_tokens + len(kept.outputs),
            replayed=True,
        )

    def _send(
        self,
        request_id: str,
        kept: _Kept,
        lost_owner: InstanceRef,
        what: str,
        dispatch: Dispatch,
        entry: InstanceEntry,
    ) -> None:
        route = self._routes.live[request_id]
        if kept.mark in ALWAYS or (kept.mark is not None and route.next_index):
            self._dispatcher.decline(dispatch)  # tokens came meanwhile
            self._end(request_id, lost_owner, what, kept.mark)
            return
        kept.placing, route.waiting, route.timed = None, False, None
        epoch = route.ownership.replayed(entry.ref)
        num_outputs = len(kept.outputs)
        assert num_outputs == route.next_index
        route.replay = Replay(
            lost_owner.instance_id,
            kept.request.num_prompt_tokens + num_outputs,
            epoch.attempt,
            cause_of(lost_owner),
        )
        record = self._book.find(request_id)
        add = AddRequest(
            request_id,
            self._mailbox.address,
            entry.incarnation,
            dispatch.seq,
            kept.request.arrival_time_s,
            epoch.attempt,
            rank=kept.request.rank if record is None else record.rank,
            num_output_tokens=num_outputs,
        )
        payload = list(kept.frames)
        if num_outputs:
            payload.append(output_tokens.encode(kept.outputs))
        self._book.dispatched(dispatch, route.replay)
        self._mailbox.send(entry.address, encode(add), payload)
        self._on_sent(request_id)

    def _call_off(self, request_id: str, kept: _Kept) -> None:
        placing, kept.placing = kept.placing, None
        if placing is None:
            return
        self._dispatcher.abort(request_id)
        if placing is not asyncio.current_task():
            placing.cancel()

    def close(self) -> None:
        for request_id, kept in self._kept.items():
            self._call_off(request_id, kept)
