"""Carries out what `core/migration/routes.py` decides: which instance runs each live request of a
frontend, and which lost ones go on elsewhere; and what `core/migration/rank_changes.py` decides
about changed priorities.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from controller.core.admission.asking import Aborted, RankChanged, Unused
from controller.core.instance_ref import InstanceRef
from controller.core.migration import rank_changes, routes
from controller.core.migration.ownership import Epoch
from controller.core.migration.rank_changes import RankChanges
from controller.core.record.request_record import ENDED, RequestState
from controller.core.replay import replay_machine as replays
from controller.core.replay.replay_machine import cause_of
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.ports.processes import Mailbox
from controller.runtime.frontend.dispatcher import Dispatcher, KnownInstances, NotDispatchedError
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages import move_messages as moves
from controller.runtime.messages import requests
from controller.runtime.messages.codec import Handlers, encode, encode_tokens
from controller.runtime.messages.members import InstanceLost, Message
from controller.runtime.messages.requests import (
    RankChangeAnswered,
    RankChangeAsked,
    RankConfirmed,
    RankSet,
)
from controller.runtime.repeating import repeat

log = logging.getLogger(__name__)


class RouteRunner:
    """`on_failed` hears of a live request (id, why) that ends here and may be sent again,
    `on_refused` of one that no instance would take, `on_sent` of one that an instance gets anew."""

    def __init__(
        self,
        mailbox: Mailbox,
        known: KnownInstances,
        machine: routes.Routes,
        dispatcher: Dispatcher,
        book: RequestBook,
        on_failed: Callable[[str, str], None],
        on_refused: Callable[[str, str], None],
        on_sent: Callable[[str], None],
    ) -> None:
        self._mailbox = mailbox
        self._known = known
        self.machine = machine
        self._dispatcher = dispatcher
        self._book = book
        self._on_failed = on_failed
        self._on_refused = on_refused
        self._on_sent = on_sent
        self._has_to_look = asyncio.Event()
        self._pending: dict[str, asyncio.Task[None] | asyncio.TimerHandle] = {}
        """By id of a lost request, while an instance is asked for or is to be."""

    def close(self) -> None:
        for request_id in list(self._pending):
            self._call_off(request_id)

    # -- events --------------------------------------------------------------------------

    @property
    def handlers(self) -> Handlers:
        take = self.take
        return {
            moves.MoveAnnounced: lambda m: take(
                routes.Announced(m.request_id, m.epoch, m.destination)
            ),
            moves.RequestMoved: lambda m: take(
                routes.Moved(m.request_id, m.epoch, m.owner, m.began_index)
            ),
            moves.RequestNotMoved: lambda m: take(routes.NotMoved(m.request_id, m.epoch)),
            moves.RequestLost: lambda m: take(routes.LostThere(m.request_id, m.epoch, m.owner)),
            moves.FenceAsked: lambda m: take(routes.FenceAsked(m.request_id, m.epoch, m.owner)),
            moves.MoveTimed: lambda m: take(routes.MoveTimed(m.record, m.step_time_s)),
            requests.ReplayTaken: lambda m: take(replays.Taken(m.request_id, m.attempt)),
            requests.RequestRefused: lambda m: take(
                routes.NotTaken(m.request_id, m.message, m.retryable, m.attempt)
            ),
            InstanceLost: self._instance_lost,
        }

    def send_first(
        self, request: DispatchRequested, dispatch: Dispatch, to: InstanceRef, frames: Sequence[Any]
    ) -> None:
        request_id = request.request_id
        self.take(routes.Sent(request_id, to, request.num_prompt_tokens))
        add = requests.AddRequest(
            request_id,
            self._mailbox.address,
            to.incarnation,
            dispatch.seq,
            request.arrival_time_s,
            rank=request.rank,
        )
        self._mailbox.send(to.address, encode(add), frames)
        self._on_sent(request_id)  # its rank may have changed since it was encoded
        self._book.dispatched(dispatch)  # the instance prepares the request meanwhile

    def address_lost(self, address: str) -> None:
        for entry in self._known:
            if entry.address == address:
                self._known.forget(entry)
        self.take(routes.AddressLost(address))

    def _instance_lost(self, lost: InstanceLost) -> None:
        entry = self._known.find(lost.instance_id, lost.incarnation)
        if entry is not None:
            self._known.forget(entry)
            self._mailbox.forget(entry.address)
        self.take(routes.InstanceDied(lost.instance_id, lost.incarnation))

    async def keep_looking(self) -> None:
        """Asks for missing tokens and owners, and tells senders of unread tokens."""
        await repeat(routes.MISSING_S, "the look for missing tokens", self._look, self._has_to_look)

    def _look(self) -> None:
        for instruction in self.machine.handle(routes.Looked(), asyncio.get_running_loop().time()):
            try:
                self.carry_out(instruction)
            except Exception:  # the other requests are looked after all the same
                log.exception("%s failed", type(instruction).__name__)
        if not self.machine.has_to_look:
            self._has_to_look.clear()

    def look_if_needed(self) -> None:
        if self.machine.has_to_look:
            self._has_to_look.set()

    def take(self, event: routes.Event) -> None:
        for instruction in self.machine.handle(event, asyncio.get_running_loop().time()):
            self.carry_out(instruction)
        self.look_if_needed()

    # -- instructions --------------------------------------------------------------------

    def carry_out(self, instruction: routes.Instruction) -> None:
        loop = asyncio.get_running_loop()
        match instruction:
            case routes.TellUnread(address, items):
                self.send(address, requests.OutputsUnread(items))
            case routes.AbortAt(address, request_ids):
                self.send(address, requests.AbortRequests(request_ids))
            case routes.ConfirmOwner(owner, request_id, (attempt, hop)):
                self.send(owner.address, moves.OwnerConfirmed(request_id, hop, attempt))
            case routes.AnswerFence(source, request_id, (attempt, hop), fenced):
                answer = moves.FenceAnswered(request_id, hop, attempt, fenced=fenced)
                self.send(source.address, answer)
            case routes.AskOwner(destination, request_id, (attempt, hop)):
                asked = moves.OwnerAsked(request_id, hop, attempt, frontend=self._mailbox.address)
                self.send(destination.address, asked)
            case routes.AskForTokens(owner, request_id, first_index, end_index):
                missing = requests.OutputsMissing(request_id, first_index, end_index)
                self.send(owner.address, missing)
            case routes.RecordOwner(request_id, owner):
                self._book.moved(request_id, owner.instance_id, owner.incarnation)
            case routes.RecordMove(record, step_time_s, downtime_s):
                self._book.move_timed(record, step_time_s, downtime_s)
            case routes.RecordReplay(request_id, replay, downtime_s):
                self._book.replayed(request_id, replay, downtime_s)
            # What an earlier instruction ended has ended its siblings, too: of those nothing
            # is asked any more.
            case replays.Ask(request) if self._is(request.request_id, replays.CopyState.ASKING):
                self._pending[request.request_id] = loop.create_task(self._ask(request))
            case replays.WakeAt(request_id, time_s) if self._is(
                request_id, replays.CopyState.PAUSING
            ):
                woken = replays.Woken(request_id, time_s)
                wake = partial(self._answer, request_id, woken)
                self._pending[request_id] = loop.call_at(time_s, wake)
            case replays.CallOff(request_id):
                self._call_off(request_id)
            case replays.Send():
                self._send_anew(instruction)
            case replays.Decline(dispatch):
                self._dispatcher.take(Unused(dispatch))
            case replays.Mark(request_id, refusal):
                self._book.marked(request_id, refusal)
            case replays.RecordLoss(request_id, loss):
                self._book.lost(request_id, loss)
            case replays.RecordFound(request_id, num_replays):
                self._book.found(request_id, num_replays)
            case replays.Fail():
                self._fail(instruction)
            case replays.Refuse(request_id, message, retryable):
                self._book.ended(request_id, RequestState.FAILED, message)
                tell = self._on_failed if retryable else self._on_refused
                tell(request_id, message)

    def send(self, address: str, message: Message) -> None:
        if address:  # none is known of an instance that is in no list and was not announced
            self._mailbox.send(address, encode(message))

    async def _ask(self, request: DispatchRequested) -> None:
        request_id = request.request_id
        try:
            found = await self._dispatcher.find(replace(request, rank=self._rank(request)))
            if found is not None:
                dispatch, entry = found
                self._answer(request_id, replays.Dispatched(dispatch, entry.ref))
        except NotDispatchedError:
            self._answer(request_id, replays.NotDispatched(request_id))
        except Exception:
            log.exception("request %s cannot be replayed", request_id)
            self._answer(request_id, replays.NotSent(request_id))

    def _answer(self, request_id: str, event: routes.Event) -> None:
        """Ends what is pending: the event is its outcome."""
        self._pending.pop(request_id, None)
        self.take(event)

    def _rank(self, request: DispatchRequested) -> int:
        """The rank as it is now: an operator may have changed it."""
        record = self._book.find(request.request_id)
        return request.rank if record is None else record.rank

    def _is(self, request_id: str, state: replays.CopyState) -> bool:
        return self.machine.replays.state(request_id) is state

    def _call_off(self, request_id: str) -> None:
        self._dispatcher.take(Aborted(request_id))
        if pending := self._pending.pop(request_id, None):
            pending.cancel()

    def _send_anew(self, send: replays.Send) -> None:
        request, outputs = send.request, send.outputs
        request_id = request.request_id
        add = requests.AddRequest(
            request_id,
            self._mailbox.address,
            send.instance.incarnation,
            send.dispatch.seq,
            request.arrival_time_s,
            send.replay.attempt,
            rank=self._rank(request),
            num_output_tokens=len(outputs),
        )
        payload = list(send.frames)
        if outputs:
            payload.append(encode_tokens(outputs))
        self._book.dispatched(send.dispatch, send.replay)
        self._mailbox.send(send.instance.address, encode(add), payload)
        self._on_sent(request_id)

    def _fail(self, fail: replays.Fail) -> None:
        request_id, owner = fail.request_id, fail.owner
        self._book.not_replayed(request_id, fail.refusal)
        labels = {"from": owner.instance_id, "code": str(fail.refusal)}
        self._book.ended(
            request_id, RequestState.FAILED, fail.message, cause_of(owner), labels=labels
        )
        self._on_failed(request_id, fail.message)


class RankRunner:
    """Tells owners of changed ranks. For a request that no instance has yet, an instance is asked
    for anew with the new rank. `send` takes an address and a message."""

    def __init__(
        self,
        machine: RankChanges,
        dispatcher: Dispatcher,
        book: RequestBook,
        send: Callable[[str, Message], None],
    ) -> None:
        self.machine = machine
        self._dispatcher = dispatcher
        self._book = book
        self._send = send
        self._has_changes = asyncio.Event()

    def asked(self, ask: RankChangeAsked) -> RankChangeAnswered:
        """Changes the rank as an operator asked, unless it is a dry run."""
        request_id = ask.request_id
        found = self._book.find(request_id)
        if found is None or found.state in ENDED:
            return RankChangeAnswered(ask.query_id, "unknown" if found is None else "ended")
        previous, level = found.level, self._book.level_name(ask.rank)
        if not ask.dry_run and previous != level:
            self._book.level_changed(request_id, ask.rank, ask.cause_id, ask.actor, ask.reason)
            self._dispatcher.take(RankChanged(request_id, ask.rank))
            self._take(rank_changes.Changed(request_id, ask.rank))
            self._has_changes.set()
        return RankChangeAnswered(ask.query_id, "", previous, found.instance_id)

    def sent(self, request_id: str) -> None:
        """An instance gets the request."""
        self._take(rank_changes.Sent(request_id))

    def ended(self, request_id: str) -> None:
        self._take(rank_changes.Ended(request_id))

    def confirmed(self, told: RankConfirmed) -> None:
        by, epoch = (told.instance_id, told.incarnation), Epoch(told.attempt, told.hop)
        self._take(rank_changes.Confirmed(told.request_id, told.change, by, epoch))

    async def keep_telling(self) -> None:
        every_s = rank_changes.TELL_EVERY_S
        await repeat(every_s, "the telling of priorities", self._tell_again, self._has_changes)

    def _tell_again(self) -> None:
        self._take(rank_changes.Due())
        if not self.machine.has_changes:
            self._has_changes.clear()

    def _take(self, event: rank_changes.Event) -> None:
        for told in self.machine.handle(event):
            self._send(told.owner.address, RankSet(told.request_id, told.rank, told.number))
