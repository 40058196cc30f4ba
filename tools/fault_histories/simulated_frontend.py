"""A frontend of the simulation: one client for each request, and what each client has read. It runs
the machines that a real frontend runs; this module has its messages and its clients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from controller.core.admission import asking
from controller.core.admission.asking import Asking
from controller.core.load.snapshot import InstanceRef
from controller.core.migration import routes
from controller.core.migration.ownership import Delivery, Epoch
from controller.core.migration.routes import Route, Routes, RouteState
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.replay import replay_machine as replay
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.dispatcher import KnownInstances
from controller.runtime.messages.codec import wire_version
from controller.runtime.messages.members import (
    AdaptersSet,
    Directory,
    FrontendLimits,
    Hello,
    InstanceLost,
    Welcome,
)
from controller.runtime.messages.requests import (
    DispatchAsked,
    Dispatched,
    DispatchUnused,
    DispatchWithdrawn,
    Refused,
    ReplayOrdered,
    ReplayTaken,
    RequestRefused,
    RequestsAnswered,
    RequestsAsked,
)
from tools.fault_histories.simulated_engine import Asked, Token, next_value
from tools.fault_histories.simulated_messages import (
    CONTROLLER,
    Abort,
    Add,
    Announced,
    Emitted,
    FenceAnswered,
    FenceAsked,
    LostThere,
    Missing,
    Moved,
    Network,
    NotMoved,
    OwnerAsked,
    OwnerConfirmed,
    Unread,
)
from tools.fault_histories.simulated_moves import Violation


@dataclass(slots=True)
class Client:
    asked: Asked
    value: int
    """Of the last token that the client read, or of its prompt."""
    tokens: list[Token] = field(default_factory=list)
    """All that it read."""
    there: str | None = None
    """The instance that its frontend's book names."""


class Frontend:
    """One process. Who reads a request's tokens is its client, until the request is over."""

    def __init__(self, frontend_id: str, nonce: str, network: Network) -> None:
        self.frontend_id, self.nonce, self.address = frontend_id, nonce, f"{frontend_id}#{nonce}"
        self.incarnation = 0
        self.network = network
        self.known = KnownInstances()
        self.machine = Routes(self.known)
        self.asking = Asking(self.known, self.machine, lambda *_: None)
        self.routes: dict[str, Route] = self.machine.live
        self.clients: dict[str, Client] = {}
        """By request, until it is over."""
        self._wakes: dict[str, float] = {}
        """By lost request, the time of its last WakeAt."""

    @property
    def ref(self) -> InstanceRef:
        return InstanceRef(self.frontend_id, self.incarnation, self.address)

    @property
    def now_s(self) -> float:
        return self.network.now_s

    @property
    def is_empty(self) -> bool:
        """Nothing is asked for, read or kept."""
        return not (
            self.clients
            or self.routes
            or list(self.asking)
            or self._wakes
            or self.machine.has_to_look
            or self.machine.replays.num_copied_tokens
        )

    def say_hello(self) -> None:
        hello = Hello(
            wire_version(),
            "frontend",
            self.frontend_id,
            self.nonce,
            self.incarnation,
            self.address,
            "node",
            1,
            "active",
            num_live_reqs=len(self.clients),
        )
        self.tell(CONTROLLER, hello, droppable=True)

    def tell(self, address: str, body: Any, *, droppable: bool = False) -> None:
        self.network.send(self.ref, address, body, droppable=droppable)

    # -- clients ---------------------------------------------------------------------------

    def submit(self, asked: Asked) -> None:
        request_id = asked.request_id
        self.clients[request_id] = Client(asked, asked.prompt()[-1])
        requested = DispatchRequested(
            request_id,
            self.frontend_id,
            asked.num_prompt_tokens,
            asked.rank,
            float(asked.arrival),
        )
        self._take(replay.Arrived(requested, (b"prompt",)))
        self._ask(asking.Asked(requested))

    def client_leaves(self, request_id: str) -> None:
        self._close(request_id, "aborted")
        self._take(routes.Aborted((request_id,)))

    def change_rank(self, request_id: str, rank: int) -> None:
        """Of one that no instance has yet."""
        self._ask(asking.RankChanged(request_id, rank))

    def owner(self, request_id: str) -> InstanceRef | None:
        route = self.routes.get(request_id)
        return None if route is None else route.ownership.owner

    def reads(self, sender: InstanceRef, request_id: str, epoch: Epoch) -> bool:
        """Or has not heard of it yet."""
        if (route := self.routes.get(request_id)) is None:
            return False
        read = route.ownership.order.epoch
        if self.machine.state(request_id) is RouteState.LOST:
            return epoch == read
        return read < epoch or (read == epoch and route.ownership.owner.key == sender.key)

    # -- where a request goes ------------------------------------------------------------------

    def _ask(self, event: asking.Event) -> None:
        for instruction in self.asking.handle(event, self.now_s):
            self._do(instruction)
        self.asking.check()

    def _do(self, instruction: asking.Instruction) -> None:
        match instruction:
            case asking.AskController(request):
                self.tell(CONTROLLER, DispatchAsked(request), droppable=True)
            case asking.Withdraw(cancelled):
                self.tell(CONTROLLER, DispatchWithdrawn(cancelled), droppable=True)
            case asking.TellUnused(instance, dispatch):
                unused = DispatchUnused(dispatch.incarnation, dispatch.seq)
                self.tell(instance.address, unused)
            case asking.WakeAt(request_id, time_s):
                self._at(time_s, partial(self._ask, asking.Woken(request_id, time_s)))
            case asking.BypassAt(time_s):
                self._at(time_s, partial(self._ask, asking.BypassDue()))
            case asking.Resume(request_id):
                self._at(self.now_s, partial(self._resumed, request_id))
            case asking.Use(dispatch):
                self._use(dispatch)

    def _at(self, time_s: float, do: Callable[[], None]) -> None:
        self.network.later(self.address, time_s - self.now_s, do)

    def _resumed(self, request_id: str) -> None:
        for instruction in self.asking.handle(asking.Resumed(request_id), self.now_s):
            if isinstance(instruction, asking.Refuse):
                self._refused(request_id, str(instruction.code))
            else:
                self._do(instruction)
        self.asking.check()

    def _use(self, dispatch: Dispatch) -> None:
        request_id = dispatch.request_id
        instance = self.known.ref(dispatch.instance_id, dispatch.incarnation)
        assert instance is not None, "a dispatch to an instance that is not listed is used"
        if request_id in self.routes:
            self._take(replay.Dispatched(dispatch, instance))
            return
        client = self.clients[request_id]
        client.there = instance.instance_id
        self._take(routes.Sent(request_id, instance, client.asked.num_prompt_tokens))
        add = Add(client.asked, self.address, instance.incarnation, dispatch.seq)
        self.network.note("submit", request_id, instance.key)
        self.tell(instance.address, add)

    def _refused(self, request_id: str, code: str) -> None:
        if request_id in self.routes:
            self._take(replay.NotDispatched(request_id))
        else:
            self._close(request_id, "refused", code)
            self._take(replay.Over(request_id))

    def tick(self) -> None:
        """Asks again for missing tokens and owners."""
        for request_id, time_s in sorted(self._wakes.items()):
            if time_s <= self.now_s:
                del self._wakes[request_id]
                self._take(replay.Woken(request_id, time_s))
        if self.machine.has_to_look:
            self._take(routes.Looked())

    # -- messages ----------------------------------------------------------------------------

    def receive(self, sender: InstanceRef, body: Any) -> None:
        match body:
            case Dispatched(dispatch=dispatch):
                self._ask(asking.Answered(dispatch))
            case Refused(reject=reject):
                self._ask(asking.Answered(reject))
            case Directory():
                self._learn(body)
            case InstanceLost(instance_id=instance_id, incarnation=incarnation):
                if (entry := self.known.find(instance_id, incarnation)) is not None:
                    self.known.forget(entry)
                self._take(routes.InstanceDied(instance_id, incarnation))
            case FrontendLimits(replay=config):
                self.machine.replays.config = config
            case AdaptersSet():
                pass
            case RequestsAsked():
                self._answer(body)
            case ReplayOrdered(instance_id, incarnation, request_ids, why):
                self._take(routes.ReplayOrdered((instance_id, incarnation), request_ids, why))
            case ReplayTaken(request_id=request_id, attempt=attempt):
                self._take(replay.Taken(request_id, attempt))
            case RequestRefused(
                request_id=request_id, message=message, retryable=retryable, attempt=attempt
            ):
                self._take(routes.NotTaken(request_id, message, retryable, attempt))
            case Welcome(nonce=self.nonce, incarnation=incarnation):
                self.incarnation = incarnation
            case Welcome():
                pass
            case _:
                self._about_request(sender, body)

    def _learn(self, directory: Directory) -> None:
        self.known.learn(directory.instances)
        self._ask(
            asking.ControllerHeard(
                directory.controller,
                directory.num_frontends,
                directory.room_to_grow_tokens,
                directory.takes_requests,
                directory.hold_timeout_s,
            )
        )
        self._take(routes.InstancesLearned())

    def _answer(self, asked: RequestsAsked) -> None:
        found = [
            self._record(each)
            for each in self.clients.values()
            if asked.instance_id is None or each.there == asked.instance_id
        ]
        found = [each for each in found if not asked.states or each.state in asked.states]
        records = tuple(found[: asked.max_requests])
        answer = RequestsAnswered(asked.query_id, self.frontend_id, records, len(found))
        self.tell(CONTROLLER, answer, droppable=True)

    def _record(self, client: Client) -> RequestRecord:
        asked = client.asked
        state = RequestState.DISPATCHING if client.there is None else RequestState.RUNNING
        return RequestRecord(
            asked.request_id,
            asked.request_id,
            None,
            self.frontend_id,
            "normal",
            state,
            client.there,
            None,
            float(asked.arrival),
            asked.num_prompt_tokens,
            len(client.tokens),
            0,
            None,
            None,
            None,
        )

    def _about_request(self, sender: InstanceRef, body: Any) -> None:
        request_id = body.request_id
        match body:
            case Emitted(_, epoch, first_index, tokens, finished):
                finish_reason = "length" if finished else None
                token_ids = range(first_index, first_index + len(tokens))
                self._take(
                    routes.Emitted(
                        sender, request_id, epoch, first_index, token_ids, finish_reason, tokens
                    )
                )
            case Announced(destination=destination, epoch=epoch):
                self._take(routes.Announced(request_id, epoch, destination))
            case Moved(owner=owner, epoch=epoch, began_index=began_index):
                self._take(routes.Moved(request_id, epoch, owner, began_index))
            case NotMoved(epoch=epoch):
                self._take(routes.NotMoved(request_id, epoch))
            case FenceAsked(owner=owner, epoch=epoch):
                self._take(routes.FenceAsked(request_id, epoch, owner))
            case LostThere(epoch=epoch):
                self._take(routes.LostThere(request_id, epoch, sender))
            case _:
                raise Violation(f"a frontend is told {body}")

    def address_lost(self, address: str) -> None:
        """An instance's socket closed."""
        for entry in self.known:
            if entry.address == address:
                self.known.forget(entry)
        self._take(routes.AddressLost(address))

    # -- who reads what ------------------------------------------------------------------------

    def _take(self, event: routes.Event) -> None:
        for instruction in self.machine.handle(event, self.now_s):
            self._carry_out(instruction)
        self.machine.check()

    def _carry_out(self, instruction: routes.Instruction) -> None:
        match instruction:
            case Delivery(emitted, num_skip):
                self._read(emitted, num_skip)
            case routes.TellUnread(address, items):
                for request_id, attempt, hop in items:
                    self.tell(address, Unread(request_id, Epoch(attempt, hop)))
            case routes.AbortAt(address, request_ids):
                for request_id in request_ids:
                    self.tell(address, Abort(request_id))
            case routes.ConfirmOwner(owner, request_id, epoch):
                self.tell(owner.address, OwnerConfirmed(request_id, epoch))
            case routes.AnswerFence(source, request_id, epoch, fenced):
                self.network.note("fence", request_id, source.key, epoch, fenced)
                self.tell(source.address, FenceAnswered(request_id, epoch, fenced))
            case routes.AskOwner(destination, request_id, epoch):
                self.tell(destination.address, OwnerAsked(request_id, epoch, self.address))
            case routes.AskForTokens(owner, request_id, first_index, end_index):
                self.tell(owner.address, Missing(request_id, first_index, end_index))
            case routes.RecordOwner(request_id, owner):
                self.network.note("moved", request_id, owner.key)
                self.clients[request_id].there = owner.instance_id
            case replay.Ask(request):
                self.clients[request.request_id].there = None
                self._ask(asking.Asked(request))
            case replay.WakeAt(request_id, time_s):
                self.clients[request_id].there = None
                self._wakes[request_id] = time_s
            case replay.CallOff(request_id):
                self._ask(asking.Aborted(request_id))
                self._wakes.pop(request_id, None)
            case replay.Send():
                self._send_anew(instruction)
            case replay.Decline(dispatch):
                self._ask(asking.Unused(dispatch))
            case replay.Fail(request_id, _, refusal):
                self._close(request_id, "error", str(refusal))
            case replay.Refuse(request_id, message):
                self._close(request_id, "refused", message)

    def _read(self, emitted: routes.Emitted, num_skip: int) -> None:
        request_id = emitted.request_id
        client, tokens = self.clients[request_id], emitted.output
        if emitted.first_index + num_skip != len(client.tokens):
            raise Violation(f"{request_id}: token {len(client.tokens)} was skipped or repeated")
        for token in tokens[num_skip:]:
            if token.value != next_value(client.value, token.drawn_by):
                raise Violation(f"{request_id}: tokens of two owners are mixed")
            client.value = token.value
            client.tokens.append(token)
        if emitted.finish_reason is not None:
            if len(client.tokens) != client.asked.max_output_tokens:
                raise Violation(f"{request_id} finished before its end")
            self._close(request_id, "finished")
            self._take(replay.Over(request_id))

    def _send_anew(self, send: replay.Send) -> None:
        to, request_id = send.instance, send.request.request_id
        client, epoch = self.clients[request_id], Epoch(send.replay.attempt)
        if list(send.outputs) != list(range(len(client.tokens))):
            raise Violation(f"{request_id} is replayed with other tokens than it had")
        client.there = to.instance_id
        self.network.note("replay", request_id, to.key, epoch)
        tokens = tuple(client.tokens)
        add = Add(client.asked, self.address, to.incarnation, send.dispatch.seq, epoch, tokens)
        self.tell(to.address, add)

    def _close(self, request_id: str, outcome: str, why: str = "") -> None:
        del self.clients[request_id]
        self._wakes.pop(request_id, None)
        self.network.ended(request_id, outcome, why)
