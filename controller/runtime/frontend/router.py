"""A frontend's side of the cluster: its requests go out, and their tokens come back in order.

`dispatcher` finds the instance where a request will run. `RouteRunner` carries out what
`core/migration/routes.py` decides: which instance runs each live request, and which lost requests
go on elsewhere when their instance dies. `RankRunner` does the same for changed priorities
(`core/migration/rank_changes.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from controller.core.admission.api_keys import NO_KEYS, OwnLimits
from controller.core.admission.asking import Aborted, Answered, RankChanged, Unused
from controller.core.load.snapshot import InstanceRef
from controller.core.migration import rank_changes, routes
from controller.core.migration.ownership import Delivery, Epoch
from controller.core.migration.rank_changes import RankChanges
from controller.core.migration.routes import ConfirmTokens, Emitted, Routes
from controller.core.record.request_record import ENDED, RequestRecord, RequestState
from controller.core.replay import replay_machine as replays
from controller.core.replay.replay_machine import ReplayRefusal, cause_of
from controller.core.scheduler_events import Dispatch, DispatchRequested, Fetch
from controller.ports.processes import Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.frontend.dispatcher import (
    Dispatcher,
    FrontendKeys,
    KnownInstances,
    NotDispatchedError,
)
from controller.runtime.frontend.request_book import RecordNow, RequestBook
from controller.runtime.frontend.traffic_recorder import PromptPrefixes, TrafficRecorder
from controller.runtime.messages import move_messages as moves
from controller.runtime.messages import requests
from controller.runtime.messages.codec import Handlers, Inbox, encode, encode_tokens
from controller.runtime.messages.members import (
    AdaptersSet,
    Directory,
    DrainFrontend,
    FrontendLimits,
    InstanceEntry,
    InstanceLost,
    Message,
    Welcome,
)
from controller.runtime.messages.requests import (
    AbortAnswered,
    AbortAsked,
    Dispatched,
    FetchFrom,
    KeysCounted,
    OutputsEmitted,
    OutputsReceived,
    RankChangeAnswered,
    RankChangeAsked,
    RankConfirmed,
    RankSet,
    Refused,
    RequestEvents,
    RequestsAnswered,
    RequestsAsked,
    TrafficAsked,
)
from controller.runtime.repeating import repeat

log = logging.getLogger(__name__)


class RouteRunner:
    """`on_failed`: called with a live request (id, why) that ends here and may be sent again.
    `on_refused`: called with a request that no instance would take. `on_sent`: called with a
    request that is sent to another instance."""

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
        """What is under way or planned in order to find another instance for each lost request, by
        request id."""

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
            requests.ReplayOrdered: lambda m: take(
                routes.ReplayOrdered((m.instance_id, m.incarnation), m.request_ids, m.why)
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
            adapter=request.adapter,
            fetch=self._fetch(request, dispatch.fetch),
        )
        self._mailbox.send(to.address, encode(add), frames)
        self._on_sent(request_id)  # the request's rank may have changed since it was encoded
        self._book.dispatched(dispatch)  # the instance prepares the request in the meantime

    def _fetch(self, request: DispatchRequested, fetch: Fetch | None) -> FetchFrom | None:
        """None also if the source is not known here, or not any more."""
        if fetch is None:
            return None
        source = self._known.find(fetch.instance_id, fetch.incarnation)
        if source is None and fetch.instance_id:
            return None
        ref = None if source is None else source.ref
        return FetchFrom(ref, fetch.num_tokens, request.num_prompt_tokens, fetch.limit_s)

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
            except Exception:  # the other requests are looked after in any case
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
            # If an earlier instruction ended a request, its siblings have ended too; no instance is
            # sought for them any more.
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
        if address:  # the address is unknown if the instance is in no list and was not announced
            self._mailbox.send(address, encode(message))

    async def _ask(self, request: DispatchRequested) -> None:
        request_id = request.request_id
        try:
            decision = await self._dispatcher.find(replace(request, rank=self._rank(request)))
            if decision is not None:
                dispatch, entry = decision
                self._answer(request_id, replays.Dispatched(dispatch, entry.ref))
        except NotDispatchedError:
            self._answer(request_id, replays.NotDispatched(request_id))
        except Exception:
            log.exception("request %s cannot be replayed", request_id)
            self._answer(request_id, replays.NotSent(request_id))

    def _answer(self, request_id: str, event: routes.Event) -> None:
        """Ends the search that is under way for the request. This event is the outcome of the
        search."""
        self._pending.pop(request_id, None)
        self.take(event)

    def _rank(self, request: DispatchRequested) -> int:
        """The request's present rank, which an operator may have changed."""
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
            adapter=request.adapter,
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
    """Tells the owners of requests about changed ranks. If no instance has the request yet, the
    controller is asked anew with the new rank. `send` takes an address and a message."""

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
        record = self._book.find(request_id)
        if record is None or record.state in ENDED:
            return RankChangeAnswered(ask.query_id, "unknown" if record is None else "ended")
        previous, level = record.level, self._book.level_name(ask.rank)
        if not ask.dry_run and previous != level:
            self._book.level_changed(request_id, ask.rank, ask.cause_id, ask.actor, ask.reason)
            self._dispatcher.take(RankChanged(request_id, ask.rank))
            self._take(rank_changes.Changed(request_id, ask.rank))
            self._has_changes.set()
        return RankChangeAnswered(ask.query_id, "", previous, record.instance_id)

    def sent(self, request_id: str) -> None:
        """Notes that the request is sent to an instance."""
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


# The operator's reason is recorded, but not told to the client.
TOLD_TO_THE_CLIENT = "an operator ended this request"


@dataclass(frozen=True, slots=True)
class RouterEvents:
    """What the router tells the OpenAI app."""

    on_failed: Callable[[str, str], None]
    """Called with a live request (id, why) that no instance runs any more; it may be sent again."""
    on_refused: Callable[[str, str], None]
    """Called with a request (id, why) that no instance would take."""
    on_aborted: Callable[[str, str], None]
    """Called with a request (id, why) that an operator ended. It is over everywhere but at its
    client."""
    on_directory: Callable[[Sequence[InstanceEntry]], None]
    on_drain: Callable[[DrainFrontend], None]
    on_limits: Callable[[FrontendLimits], None]
    on_adapters: Callable[[AdaptersSet], None]


class Router:
    """A frontend's side of the cluster. The app adds a handler to `inbox` that decodes
    OutputsEmitted and passes it to `accept`."""

    def __init__(
        self,
        member: ControllerLink,
        mailbox: Mailbox,
        book: RequestBook,
        events: RouterEvents,
        own_key_limits: OwnLimits = NO_KEYS,
    ) -> None:
        self._member = member
        self.frontend_id = member.member_id
        self._book = book
        self._mailbox = mailbox
        self._events = events
        self._known = KnownInstances()
        machine = Routes(self._known)
        self.keys = FrontendKeys(
            self.frontend_id,
            lambda told: mailbox.send(member.controller_address, encode(KeysCounted(told))),
            own_key_limits,
        )
        self.dispatcher = Dispatcher(member, mailbox, self._known, machine, self.keys)
        self.ranks = RankRunner(
            RankChanges(machine),
            self.dispatcher,
            book,
            lambda to, message: self.routes.send(to, message),
        )
        self.routes = RouteRunner(
            mailbox,
            self._known,
            machine,
            self.dispatcher,
            book,
            events.on_failed,
            events.on_refused,
            self.ranks.sent,
        )
        self._emitted = machine.emitted
        """Called for each item of each step. The method is looked up only once, because the lookup
        is a part of the cost of each call."""
        self.traffic = TrafficRecorder(
            self.frontend_id,
            lambda: member.incarnation,
            lambda told: mailbox.send(member.controller_address, encode(told), droppable=True),
        )
        self.prompt_prefixes = PromptPrefixes()
        book.on_ended = self._ended
        self.inbox = Inbox(
            {
                Dispatched: lambda told: self.dispatcher.take(Answered(told.dispatch)),
                Refused: lambda told: self.dispatcher.take(Answered(told.reject)),
                RequestEvents: self._happened,
                RequestsAsked: self._answer,
                Directory: self._learn,
                RankChangeAsked: self._change_rank,
                RankConfirmed: self.ranks.confirmed,
                AbortAsked: self._abort_asked,
                TrafficAsked: self.traffic.asked,
                Welcome: member.welcomed,
                DrainFrontend: events.on_drain,
                FrontendLimits: self._limit,
                AdaptersSet: events.on_adapters,
                **self.routes.handlers,
            }
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def num_live_reqs(self) -> int:
        return len(self.live_request_ids)

    @property
    def live_request_ids(self) -> list[str]:
        live = self.routes.machine.live
        return [*live, *(r for r in self.dispatcher.asked if r not in live)]

    def why_not_ready(self) -> str:
        """Why a request that came now would get no instance; empty if it would get one."""
        return self.dispatcher.why_not_ready()

    def start(self) -> None:
        self._mailbox.start(self.inbox.take, self.routes.address_lost)
        self._tasks = [
            asyncio.create_task(self._member.keep_saying_hello()),
            asyncio.create_task(self.routes.keep_looking()),
            asyncio.create_task(self.ranks.keep_telling()),
            asyncio.create_task(self.traffic.keep_telling()),
            asyncio.create_task(self.keys.keep_telling()),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.routes.close()
        self.dispatcher.close()
        await self._mailbox.close()

    async def submit(
        self,
        request: DispatchRequested,
        payload: Sequence[Any],
        client_request_id: str,
        parent_id: str | None = None,
        prompt_token_ids: Sequence[int] = (),
        not_replayable: ReplayRefusal | None = None,
        adapter: str = "",
        on_arrived: Callable[[RecordNow], None] = lambda _: None,
    ) -> None:
        """Finds an instance and sends the request to it, unless the request is aborted meanwhile.
        `parent_id` is set if one request with `n` > 1 became several. `not_replayable`: why the
        request cannot go on elsewhere once it has outputs. `adapter`: the name of its LoRA adapter.
        `on_arrived`: called once with what gives the request's record from now on. Raises
        NotDispatchedError."""
        request_id = request.request_id
        on_arrived(self._book.arrived(request, client_request_id, parent_id, adapter))
        self.traffic.arrived(request, prompt_token_ids)
        request = self.keys.began(request)
        self.routes.take(replays.Arrived(request, payload, not_replayable))
        try:
            decision = await self.dispatcher.find(request)
        except NotDispatchedError as refusal:
            self._book.refused(request_id, refusal.code)
            raise
        if decision is None:
            return
        dispatch, entry = decision
        self.routes.send_first(request, dispatch, entry.ref, payload)

    def abort(
        self,
        request_ids: Sequence[str],
        outcome: RequestState,
        reason: str,
        cause_id: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Forgets these requests and has their instances free their blocks. `outcome`: how the
        requests ended for their clients. `actor`: who ended them."""
        self.routes.take(routes.Aborted(request_ids))
        for request_id in request_ids:
            self._book.ended(request_id, outcome, reason, cause_id, actor)

    def accept(self, emitted: OutputsEmitted, outputs: Sequence[Any]) -> list[tuple[Any, int]]:
        """The outputs to deliver now, in order, each with the number of leading tokens to leave
        out. Each of `outputs` has a `request_id` and `new_token_ids`."""
        by_id = {output.request_id: output for output in outputs}
        sender, now_s = emitted.sender, asyncio.get_running_loop().time()
        due: list[tuple[Any, int]] = []
        received: list[tuple[str, int]] = []
        for item in emitted.items:
            output = by_id.get(item.request_id)
            if output is None:
                continue
            event = Emitted(
                sender,
                item.request_id,
                Epoch(item.attempt, item.hop),
                item.first_index,
                output.new_token_ids,
                item.finish_reason,
                output,
            )
            for instruction in self._emitted(event, now_s):
                if type(instruction) is Delivery:
                    (_, request_id, _, _, token_ids, finish_reason, output), num_skip = instruction
                    num_new = len(token_ids) - num_skip
                    due.append((output, num_skip))
                    self.keys.use.emitted(request_id, num_new, now_s)
                    self._book.emitted(request_id, num_new, finish_reason)
                elif type(instruction) is ConfirmTokens:
                    received.append((instruction.request_id, instruction.next_index))
                else:
                    self.routes.carry_out(instruction)
        if received:
            confirmed = OutputsReceived(tuple(received))
            self._mailbox.send(sender.address, encode(confirmed), droppable=True)
        self.routes.look_if_needed()
        return due

    def _happened(self, told: RequestEvents) -> None:
        for event in told.events:
            self._book.happened(event)

    def _ended(self, record: RequestRecord) -> None:
        self.traffic.ended(record)
        self.keys.ended(record)
        self.ranks.ended(record.request_id)
        self.routes.take(replays.Over(record.request_id))

    def _limit(self, limits: FrontendLimits) -> None:
        self.routes.machine.replays.config = limits.replay
        self.prompt_prefixes.switch(limits.hash_prefixes)
        self.keys.limits = limits.key_limits
        self._events.on_limits(limits)

    def _answer(self, asked: RequestsAsked) -> None:
        requests, num_matching = self._book.answer(asked)
        answer = RequestsAnswered(asked.query_id, self.frontend_id, requests, num_matching)
        self._mailbox.send(self._member.controller_address, encode(answer), droppable=True)

    def _change_rank(self, asked: RankChangeAsked) -> None:
        self.routes.send(self._member.controller_address, self.ranks.asked(asked))

    def _abort_asked(self, asked: AbortAsked) -> None:
        self.routes.send(self._member.controller_address, self._aborted(asked))

    def _aborted(self, asked: AbortAsked) -> AbortAnswered:
        """Ends the request as an operator asked, unless it is a dry run. Its siblings end with it,
        because one HTTP answer has the choices of all of them."""
        record = self._book.find(asked.request_id)
        if record is None or record.state in ENDED:
            return AbortAnswered(asked.query_id, "unknown" if record is None else "ended")
        request_ids = self._book.siblings(asked.request_id)
        if not asked.dry_run:
            because = f": {asked.reason}" if asked.reason else ""
            reason = f"an operator ended it{because}"
            self.abort(request_ids, RequestState.ABORTED, reason, asked.cause_id, asked.actor)
            self._events.on_aborted(asked.request_id, TOLD_TO_THE_CLIENT)
        return AbortAnswered(
            asked.query_id,
            "",
            request_ids,
            record.state,
            record.instance_id,
            record.num_output_tokens,
        )

    def _learn(self, directory: Directory) -> None:
        self._known.learn(directory.instances)
        self.dispatcher.heard_controller(directory)
        self.routes.take(routes.InstancesLearned())
        self._events.on_directory(directory.instances)
