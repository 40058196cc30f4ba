"""The frontend of the simulation: one client per request, and what each of them read. It runs the
machines that a real frontend runs; here are its messages and its clients."""

from dataclasses import dataclass, field
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.migration.ownership import Loss, Ownership
from controller.core.replay.replay import ReplayConfig
from controller.core.replay.replay_machine import (
    Ask,
    CallOff,
    Delivered,
    Dispatched,
    Event,
    Fail,
    Found,
    Kept,
    Lost,
    NotDispatched,
    Over,
    ReplayMachine,
    Send,
    WakeAt,
    Woken,
)
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.token_order import Epoch
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

ASK_AGAIN_S = 1.0


@dataclass(slots=True)
class Route:
    asked: Asked
    ownership: Ownership[Emitted]
    value: int
    """Of the last token that the client read, or of its prompt."""
    num_read: int = 0
    asked_s: float = 0.0
    owners: list[tuple[str, int]] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)


class Frontend:
    """`outcomes` by request: finished, aborted or error, in the order in which they came."""

    def __init__(self, network: Network, max_replays: int) -> None:
        self.network = network
        self.replays = ReplayMachine()
        self.replays.config = ReplayConfig(max_replays)
        self._asked: set[str] = set()
        """Lost requests for which an instance is asked for; the next tick answers."""
        self._wakes: dict[str, float] = {}
        """By lost request, the time of its last WakeAt."""
        self.routes: dict[str, Route] = {}
        self.outcomes: dict[str, list[str]] = {}
        self.dead: set[tuple[str, int]] = set()

    def submit(self, asked: Asked, to: InstanceRef) -> None:
        ownership: Ownership[Emitted] = Ownership(to)
        self.routes[asked.request_id] = Route(asked, ownership, asked.prompt()[-1])
        self.outcomes[asked.request_id] = []
        requested = DispatchRequested(
            asked.request_id, FRONTEND.instance_id, asked.num_prompt_tokens, asked.rank, 0.0
        )
        self._take(Kept(requested, (b"prompt",)))
        self.network.send(FRONTEND, to, Add(asked))

    def client_leaves(self, request_id: str) -> None:
        route, is_lost = self.routes[request_id], self.replays.is_lost(request_id)
        self._close(request_id, "aborted")
        for holder in () if is_lost else route.ownership.holders:
            self.network.send(FRONTEND, holder, Abort(request_id))

    def reads(self, sender: InstanceRef, request_id: str, epoch: Epoch) -> bool:
        """Or has not heard of it yet."""
        if (route := self.routes.get(request_id)) is None:
            return False
        read = route.ownership.order.epoch
        if self.replays.is_lost(request_id):
            return epoch == read
        return read < epoch or (read == epoch and route.ownership.owner == sender)

    def instance_died(self, key: tuple[str, int]) -> None:
        self.dead.add(key)
        for request_id, route in list(self.routes.items()):
            self._lose(request_id, route, key)

    def connection_lost(self, key: tuple[str, int]) -> None:
        for request_id, route in list(self.routes.items()):
            if any(holder.key == key for holder in route.ownership.holders):
                self._lose(request_id, route, key)

    def tick(self) -> None:
        """Asks again for what is missing, and for who owns what; finds instances for replays."""
        for request_id in sorted(self._asked):
            self._find_instance(request_id)
        for request_id, time_s in sorted(self._wakes.items()):
            if time_s <= self.network.now_s:
                del self._wakes[request_id]
                self._take(Woken(request_id, time_s))
        for request_id, route in list(self.routes.items()):
            ownership = route.ownership
            if self.replays.is_lost(request_id):
                continue
            if ownership.to_ask is None and ownership.order.gap is None:
                continue
            if self.network.now_s - route.asked_s < ASK_AGAIN_S:
                continue
            route.asked_s = self.network.now_s
            if ownership.to_ask is not None:
                destination, epoch = ownership.to_ask
                self.network.send(FRONTEND, destination, OwnerAsked(request_id, epoch))
            elif ownership.order.gap is not None:
                missing = Missing(request_id, *ownership.order.gap)
                self.network.send(FRONTEND, ownership.owner, missing)

    def receive(self, sender: InstanceRef, body: Any) -> None:
        route = self.routes.get(body.request_id)
        if route is None:
            self._not_wanted(sender, body)
            return
        ownership, request_id = route.ownership, body.request_id
        is_lost = self.replays.is_lost(request_id)
        match body:
            case Emitted() as emitted:
                self._emitted(sender, route, emitted)
            case Announced() | NotMoved() | LostThere() if is_lost:
                pass
            case Announced(destination=destination, epoch=epoch):
                ownership.announce(destination, epoch)
                if destination.key in self.dead:
                    self._lose(request_id, route, destination.key)
            case Moved(epoch=epoch) if epoch.attempt < ownership.order.epoch.attempt:
                self.network.send(FRONTEND, sender, Unread(request_id, epoch))
            case Moved(owner=owner, epoch=epoch, began_index=began):
                if ownership.moved(owner, epoch, began):
                    self.network.note("moved", request_id, owner.key, epoch)
                    self._take(Found(request_id))
                if ownership.is_read_from(owner, epoch):
                    self.network.send(FRONTEND, owner, OwnerConfirmed(request_id, epoch))
            case NotMoved(epoch=epoch):
                if ownership.disowned(epoch):
                    self._lost(request_id, route)
            case FenceAsked() as asked:
                self._fence_asked(sender, route, asked)
            case LostThere(epoch=epoch):
                if ownership.lost_in(epoch):
                    self._lost(request_id, route)
        ownership.check()

    def _fence_asked(self, sender: InstanceRef, route: Route, asked: FenceAsked) -> None:
        request_id, ownership = asked.request_id, route.ownership
        fenced: bool | None = True
        if not self.replays.is_lost(request_id):
            fenced = ownership.fence(asked.owner, asked.epoch)
            self.network.note("fence", request_id, asked.owner.key, asked.epoch, fenced)
        if fenced is None:
            if ownership.to_ask is not None:
                return
            self._lost(request_id, route)
        answer = FenceAnswered(request_id, asked.epoch, fenced is not False)
        self.network.send(FRONTEND, sender, answer)
        if request_id not in self.routes:
            self.network.send(FRONTEND, sender, Abort(request_id))
        elif (
            self.replays.is_lost(request_id) or asked.epoch.attempt < ownership.order.epoch.attempt
        ):
            self.network.send(FRONTEND, sender, Unread(request_id, asked.epoch))

    def _not_wanted(self, sender: InstanceRef, body: Any) -> None:
        """The request is over here, or read from another; whoever believes to own it hears so."""
        match body:
            case FenceAsked() | Moved():
                self.network.send(FRONTEND, sender, Abort(body.request_id))
            case Emitted(finished=False):
                self.network.send(FRONTEND, sender, Unread(body.request_id, body.epoch))

    def _emitted(self, sender: InstanceRef, route: Route, emitted: Emitted) -> None:
        request_id, epoch = emitted.request_id, emitted.epoch
        owner = route.ownership.owner
        first_index, num_tokens = emitted.first_index, len(emitted.tokens)
        offered = route.ownership.offer(sender, epoch, first_index, num_tokens, emitted)
        if offered is None:
            self._not_wanted(sender, emitted)
            if emitted.finished and route.ownership.lost_in(epoch):
                self._lost(request_id, route)
            return
        if route.ownership.owner is not owner:
            self._take(Found(request_id))
        for item, num_skip in offered:
            if item.first_index + num_skip != route.num_read:
                raise Violation(f"{request_id}: token {route.num_read} was skipped or repeated")
            for token in item.tokens[num_skip:]:
                if token.value != next_value(route.value, token.drawn_by):
                    raise Violation(f"{request_id}: tokens of two owners are mixed")
                route.value = token.value
                route.tokens.append(token)
                self._take(Delivered(request_id, (route.num_read,)))
                route.num_read += 1
            if item.finished:
                if route.num_read != route.asked.max_output_tokens:
                    raise Violation(f"{request_id} finished before its end")
                self._close(request_id, "finished")

    def _lose(self, request_id: str, route: Route, key: tuple[str, int]) -> None:
        if route.ownership.lost(*key) is Loss.REQUEST:
            self._lost(request_id, route)

    def _lost(self, request_id: str, route: Route) -> None:
        """No instance has it any more."""
        self._take(Lost(request_id, route.ownership.owner, "its instance died", None))

    def _find_instance(self, request_id: str) -> None:
        self._asked.discard(request_id)
        if (to := self.network.choose()) is None:
            self._take(NotDispatched(request_id))
        else:
            dispatch = Dispatch(request_id, FRONTEND.instance_id, *to.key, seq=1)
            self._take(Dispatched(dispatch, to))

    def _send(self, send: Send) -> None:
        to, route = send.instance, self.routes[send.request.request_id]
        epoch = route.ownership.replayed(to)
        if list(send.outputs) != list(range(route.num_read)):
            raise Violation(f"{route.asked.request_id} is replayed with other tokens than it had")
        if epoch.attempt != send.replay.attempt:
            raise Violation(f"{route.asked.request_id} is replayed in another attempt")
        self.network.note("replay", route.asked.request_id, to.key, epoch)
        self.network.send(FRONTEND, to, Add(route.asked, epoch, tuple(route.tokens)))

    def _close(self, request_id: str, outcome: str) -> None:
        del self.routes[request_id]
        self.outcomes[request_id].append(outcome)
        self.network.note(outcome, request_id)
        self._take(Over(request_id))

    def _take(self, event: Event) -> None:
        for instruction in self.replays.handle(event, self.network.now_s):
            match instruction:
                case Ask(request):
                    self._asked.add(request.request_id)
                case WakeAt(request_id, time_s):
                    self._wakes[request_id] = time_s
                case CallOff(request_id):
                    self._asked.discard(request_id)
                    self._wakes.pop(request_id, None)
                case Send():
                    self._send(instruction)
                case Fail(request_id):
                    self._close(request_id, "error")
        self.replays.check()
