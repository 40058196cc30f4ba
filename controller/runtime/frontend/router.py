"""A frontend's side of the cluster: its requests go out, and their tokens come back in order.

dispatcher.py finds the instance where a request will run; route_runner.py knows where it runs by
now, and has it go on elsewhere when that instance dies.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.core.admission.api_keys import NO_KEYS, OwnLimits
from controller.core.admission.asking import Answered
from controller.core.migration import routes
from controller.core.migration.ownership import Delivery, Epoch
from controller.core.migration.rank_changes import RankChanges
from controller.core.migration.routes import ConfirmTokens, Emitted, Routes
from controller.core.record.request_record import ENDED, RequestRecord, RequestState
from controller.core.replay import replay_machine as replays
from controller.core.replay.replay_machine import ReplayRefusal
from controller.core.scheduler_events import DispatchRequested
from controller.ports.processes import Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.frontend.dispatcher import (
    Dispatcher,
    FrontendKeys,
    KnownInstances,
    NotDispatchedError,
)
from controller.runtime.frontend.prompt_hashes import PromptPrefixes
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.frontend.route_runner import RankRunner, RouteRunner
from controller.runtime.frontend.traffic_recorder import TrafficRecorder
from controller.runtime.messages.codec import Inbox, encode
from controller.runtime.messages.members import (
    Directory,
    DrainFrontend,
    FrontendLimits,
    InstanceEntry,
    Welcome,
)
from controller.runtime.messages.requests import (
    AbortAnswered,
    AbortAsked,
    Dispatched,
    KeysCounted,
    OutputsEmitted,
    OutputsReceived,
    RankChangeAsked,
    RankConfirmed,
    Refused,
    RequestEvents,
    RequestsAnswered,
    RequestsAsked,
    TrafficAsked,
)

# The operator's reason is for the record, and not for the client.
TOLD_TO_THE_CLIENT = "an operator ended this request"


@dataclass(frozen=True, slots=True)
class RouterEvents:
    """What the router tells the OpenAI app."""

    on_failed: Callable[[str, str], None]
    """A live request (id, why) that no instance runs any more; it may be sent again."""
    on_refused: Callable[[str, str], None]
    """A request (id, why) that no instance would take."""
    on_aborted: Callable[[str, str], None]
    """A request (id, why) that an operator ended. It is over everywhere but at its client."""
    on_directory: Callable[[Sequence[InstanceEntry]], None]
    on_drain: Callable[[DrainFrontend], None]
    on_limits: Callable[[FrontendLimits], None]


class Router:
    """The app adds a handler to `inbox` that decodes OutputsEmitted and passes it to `accept`."""

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
        """For each item of each step; to look it up each time took a part of its time."""
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
    ) -> None:
        """Finds an instance and sends the request there, unless it is aborted meanwhile.
        `parent_id` is set if `n` > 1 made several of one request; `not_replayable` says why it
        cannot go on elsewhere once it has outputs. Raises NotDispatchedError."""
        request_id = request.request_id
        self._book.arrived(request, client_request_id, parent_id)
        self.traffic.arrived(request, prompt_token_ids)
        request = self.keys.began(request)
        self.routes.take(replays.Arrived(request, payload, not_replayable))
        try:
            found = await self.dispatcher.find(request)
        except NotDispatchedError as refusal:
            self._book.refused(request_id, refusal.code)
            raise
        if found is None:
            return
        dispatch, entry = found
        self.routes.send_first(request, dispatch, entry.ref, payload)

    def abort(
        self,
        request_ids: Sequence[str],
        outcome: RequestState,
        reason: str,
        cause_id: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Forgets these requests and has their instances free their blocks; `outcome` is how they
        ended for their clients. `actor` wanted it."""
        self.routes.take(routes.Aborted(request_ids))
        for request_id in request_ids:
            self._book.ended(request_id, outcome, reason, cause_id, actor)

    def accept(self, emitted: OutputsEmitted, outputs: Sequence[Any]) -> list[tuple[Any, int]]:
        """What is to be delivered now, in order, each without its first so many tokens. Each of
        `outputs` has a `request_id` and `new_token_ids`."""
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
        as one HTTP answer has the choices of all of them."""
        found = self._book.find(asked.request_id)
        if found is None or found.state in ENDED:
            return AbortAnswered(asked.query_id, "unknown" if found is None else "ended")
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
            found.state,
            found.instance_id,
            found.num_output_tokens,
        )

    def _learn(self, directory: Directory) -> None:
        self._known.learn(directory.instances)
        self.dispatcher.heard_controller(directory)
        self.routes.take(routes.InstancesLearned())
        self._events.on_directory(directory.instances)
