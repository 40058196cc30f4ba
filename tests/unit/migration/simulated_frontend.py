"""The frontend of the simulation: one client per request, and what each of them read. It runs the
machine that a real frontend runs (`controller/core/migration/routes.py`); here are its messages and
its clients."""

from dataclasses import dataclass, field
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.migration import routes
from controller.core.migration.routes import Route, Routes
from controller.core.replay import replay_machine as replays
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig
from controller.core.token_order import Delivery, Epoch
from tests.unit.migration.simulated_engine import Asked, Token, next_value
from tests.unit.migration.simulated_instance import Violation
from tests.unit.migration.simulated_messages import (
    FRONTEND,
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


@dataclass(slots=True)
class Client:
    asked: Asked
    value: int
    """Of the last token that the client read, or of its prompt."""
    tokens: list[Token] = field(default_factory=list)
    """All that it read."""


class Frontend:
    """`outcomes` by request: finished, aborted or error, in the order in which they came."""

    def __init__(self, network: Network, max_replays: int) -> None:
        self.network = network
        self.machine = Routes(self)
        self.machine.replays.config = ReplayConfig(max_replays)
        self.routes: dict[str, Route] = self.machine.live
        self._asked: set[str] = set()
        """Lost requests for which an instance is asked for; the next tick answers."""
        self._wakes: dict[str, float] = {}
        """By lost request, the time of its last WakeAt."""
        self._clients: dict[str, Client] = {}
        self.outcomes: dict[str, list[str]] = {}
        self.dead: set[tuple[str, int]] = set()

    def incarnation(self, instance_id: str) -> int | None:
        """As of a directory in which the dead are replaced at once."""
        dead = [incarnation for dead_id, incarnation in self.dead if dead_id == instance_id]
        return max(dead) + 1 if dead else None

    def submit(self, asked: Asked, to: InstanceRef) -> None:
        request_id = asked.request_id
        self._clients[request_id] = Client(asked, asked.prompt()[-1])
        self.outcomes[request_id] = []
        requested = DispatchRequested(
            request_id, FRONTEND.instance_id, asked.num_prompt_tokens, asked.rank, 0.0
        )
        self._take(replays.Kept(requested, (b"prompt",)))
        self._take(routes.Sent(request_id, to, asked.num_prompt_tokens))
        self._send(to, Add(asked))

    def client_leaves(self, request_id: str) -> None:
        self._ended(request_id, "aborted")
        self._take(routes.Aborted((request_id,)))

    def reads(self, sender: InstanceRef, request_id: str, epoch: Epoch) -> bool:
        """Or has not heard of it yet."""
        if (route := self.routes.get(request_id)) is None:
            return False
        read = route.ownership.order.epoch
        if self.machine.state(request_id) is routes.RouteState.LOST:
            return epoch == read
        return read < epoch or (read == epoch and route.ownership.owner == sender)

    def instance_died(self, key: tuple[str, int]) -> None:
        self.dead.add(key)
        self._take(routes.InstanceDied(*key))

    def connection_lost(self, key: tuple[str, int]) -> None:
        self._take(routes.InstanceDied(*key))

    def tick(self) -> None:
        """Asks again for what is missing, and for who owns what; finds instances for replays."""
        for request_id in sorted(self._asked):
            self._find_instance(request_id)
        for request_id, time_s in sorted(self._wakes.items()):
            if time_s <= self.network.now_s:
                del self._wakes[request_id]
                self._take(replays.Woken(request_id, time_s))
        if self.machine.has_to_look:
            self._take(routes.Looked())

    # -- messages --------------------------------------------------------------------------

    def receive(self, sender: InstanceRef, body: Any) -> None:
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

    def _take(self, event: routes.Event) -> None:
        for instruction in self.machine.handle(event, self.network.now_s):
            self._carry_out(instruction)
        self.machine.check()

    def _carry_out(self, instruction: routes.Instruction) -> None:
        match instruction:
            case Delivery(emitted, num_skip):
                self._read(emitted, num_skip)
            case routes.TellUnread(address, items):
                for request_id, attempt, hop in items:
                    self._send_to(address, Unread(request_id, Epoch(attempt, hop)))
            case routes.AbortAt(address, request_ids):
                for request_id in request_ids:
                    self._send_to(address, Abort(request_id))
            case routes.ConfirmOwner(owner, request_id, epoch):
                self._send(owner, OwnerConfirmed(request_id, epoch))
            case routes.AnswerFence(source, request_id, epoch, fenced):
                self.network.note("fence", request_id, source.key, epoch, fenced)
                self._send(source, FenceAnswered(request_id, epoch, fenced))
            case routes.AskOwner(destination, request_id, epoch):
                self._send(destination, OwnerAsked(request_id, epoch))
            case routes.AskForTokens(owner, request_id, first_index, end_index):
                self._send(owner, Missing(request_id, first_index, end_index))
            case routes.RecordOwner(request_id, owner):
                self.network.note("moved", request_id, owner.key)
            case replays.Ask(request):
                self._asked.add(request.request_id)
            case replays.WakeAt(request_id, time_s):
                self._wakes[request_id] = time_s
            case replays.CallOff(request_id):
                self._asked.discard(request_id)
                self._wakes.pop(request_id, None)
            case replays.Send():
                self._send_anew(instruction)
            case replays.Fail(request_id):
                self._ended(request_id, "error")

    def _send(self, to: InstanceRef, body: Any) -> None:
        self.network.send(FRONTEND, to, body)

    def _send_to(self, address: str, body: Any) -> None:
        instance_id, incarnation = address.split("/")
        self._send(InstanceRef(instance_id, int(incarnation), address), body)

    # -- clients ---------------------------------------------------------------------------

    def _read(self, emitted: routes.Emitted, num_skip: int) -> None:
        request_id = emitted.request_id
        client, tokens = self._clients[request_id], emitted.output
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
            self._ended(request_id, "finished")
            self._take(replays.Over(request_id))

    def _find_instance(self, request_id: str) -> None:
        self._asked.discard(request_id)
        if (to := self.network.choose()) is None:
            self._take(replays.NotDispatched(request_id))
        else:
            dispatch = Dispatch(request_id, FRONTEND.instance_id, *to.key, seq=1)
            self._take(replays.Dispatched(dispatch, to))

    def _send_anew(self, send: replays.Send) -> None:
        to, request_id = send.instance, send.request.request_id
        client, epoch = self._clients[request_id], Epoch(send.replay.attempt)
        if list(send.outputs) != list(range(len(client.tokens))):
            raise Violation(f"{request_id} is replayed with other tokens than it had")
        self.network.note("replay", request_id, to.key, epoch)
        self._send(to, Add(client.asked, epoch, tuple(client.tokens)))

    def _ended(self, request_id: str, outcome: str) -> None:
        self.outcomes[request_id].append(outcome)
        self.network.note(outcome, request_id)
