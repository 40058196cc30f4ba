"""The frontend's machine of routes: which instance runs each live request, and what the frontend
does when tokens or an owner are missing.

A frontend has one such machine for all of its requests. `Ownership` (in this folder) decides which
instance owns a request, and so whose tokens the client reads. `ReplayMachine`
(controller/core/replay) lets a request that no instance has go on elsewhere. This machine feeds
both. It makes sure that no request waits for ever, and that no instance decodes for long what
nobody reads. For that, instances are told which of their tokens are not read; otherwise they would
decode the request to its end.

    READ      An instance owns the request, and no token is missing.
    UNCLEAR   Tokens are missing that come before some that came, or the owner died and the
              destination of its move has not said yet whether the request is there. The owner is
              asked for the tokens after MISSING_S, the destination at once, and both again and
              again. After UNCLEAR_S the request counts as lost, and its holders hear to abort it.
    LOST      No instance has the request; ReplayMachine looks for one.
    OVER      The request has ended here, or it never was here.

    event             changes a state                     what the sender may hear
    Sent              OVER -> READ
    Emitted           READ <-> UNCLEAR, LOST -> READ      that it is not read; how far it is read
                      -> OVER with the last tokens
    Announced         -> UNCLEAR or LOST if the destination is known to be dead
    Moved             -> READ from all but OVER; -> LOST  that it is read from, or is to stop
                      if it comes from one that was
                      taken for dead
    NotMoved          UNCLEAR -> LOST
    LostThere         -> LOST
    FenceAsked        -> READ or LOST                     whether it has the request back; to stop
    NotTaken          -> LOST
    InstanceDied,     -> UNCLEAR or LOST
    AddressLost,
    InstancesLearned
    Looked            UNCLEAR -> LOST after UNCLEAR_S     the questions; that it is not read
    ReplayOrdered     READ -> LOST                        to abort it
    Aborted, Over     -> OVER                             that all who hold it are to abort it

Where -> LOST stands, a request that cannot be replayed is OVER at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from controller.core.load.snapshot import DemandFor, InstanceRef
from controller.core.migration.move_records import MoveRecord
from controller.core.migration.ownership import FIRST_EPOCH, Delivery, Epoch, Loss, Ownership
from controller.core.migration.protocol import UNCLEAR_S
from controller.core.replay import replay_machine as replays
from controller.core.replay.replay_machine import Replay

MISSING_S = 0.05
"""The time after which missing tokens, or a missing owner, are asked for, and the interval at which
they are asked for again. At the same interval an instance is told which of its requests are not
read."""
RECEIVED_EVERY = 32
"""A frontend confirms a request's tokens each time that about this many have come. So an instance
keeps about as many unconfirmed outputs of each request, at 113 bytes a token with two logprobs."""


class RouteState(StrEnum):
    READ = "read"
    UNCLEAR = "unclear"
    LOST = "lost"
    OVER = "over"


# -- events --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """A new request (ReplayMachine has heard Arrived) was sent to its first instance."""

    request_id: str
    instance: InstanceRef
    num_prompt_tokens: int


class Emitted(NamedTuple):
    """`sender` decoded these tokens in `epoch`, from `first_index` on. `output`: what the client
    gets of them. This is a named tuple because one is made for each item of each step; to make a
    frozen dataclass takes three times as long."""

    sender: InstanceRef
    request_id: str
    epoch: Epoch
    first_index: int
    token_ids: Sequence[int]
    finish_reason: str | None
    output: Any


@dataclass(frozen=True, slots=True)
class Announced:
    """A source says that `destination` may own the request soon, in `epoch`."""

    request_id: str
    epoch: Epoch
    destination: InstanceRef


@dataclass(frozen=True, slots=True)
class Moved:
    """`owner` reports that it owns the request from the token `began_index` on."""

    request_id: str
    epoch: Epoch
    owner: InstanceRef
    began_index: int


@dataclass(frozen=True, slots=True)
class NotMoved:
    """The destination that was asked does not have the request, and never will in `epoch`."""

    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LostThere:
    """A source gave the request to `owner`, which died; or `owner`, which the frontend takes for
    dead, had the request and has ended it."""

    request_id: str
    epoch: Epoch
    owner: InstanceRef


@dataclass(frozen=True, slots=True)
class FenceAsked:
    """A source wants its request back in `epoch`, unless it has moved."""

    request_id: str
    epoch: Epoch
    owner: InstanceRef


@dataclass(frozen=True, slots=True)
class MoveTimed:
    """Reports how long the step of the first token after a move took: `step_time_s`. The
    destination sends this before that token."""

    record: MoveRecord
    step_time_s: float


@dataclass(frozen=True, slots=True)
class NotTaken:
    """The owner refuses the request in this attempt. `retryable`: another instance may take it."""

    request_id: str
    message: str
    retryable: bool
    attempt: int


@dataclass(frozen=True, slots=True)
class InstanceDied:
    instance_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class AddressLost:
    """An instance's socket closed. The controller also says InstanceDied, unless the controller is
    gone."""

    address: str


@dataclass(frozen=True, slots=True)
class InstancesLearned:
    """A new directory of the controller has come. InstanceDied may have been missed for
    incarnations that have been replaced."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """These requests end here: their client left, or an operator ended them."""

    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReplayOrdered:
    """These requests are to go on elsewhere, because the instance (id, incarnation) that has them
    is to be emptied and they cannot move. A request stays if it would not go on elsewhere, or if a
    move of it is under way."""

    instance: tuple[str, int]
    request_ids: Sequence[str]
    why: str


@dataclass(frozen=True, slots=True)
class Looked:
    """MISSING_S have passed. The event comes while `has_to_look`."""


Event = (
    Sent
    | Emitted
    | Announced
    | Moved
    | NotMoved
    | LostThere
    | FenceAsked
    | MoveTimed
    | NotTaken
    | InstanceDied
    | AddressLost
    | InstancesLearned
    | Aborted
    | ReplayOrdered
    | Looked
    | replays.Arrived
    | replays.Taken
    | replays.Dispatched
    | replays.NotDispatched
    | replays.NotSent
    | replays.Woken
    | replays.Over
)


# -- instructions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfirmTokens:
    """Tell the sender of these tokens that all tokens before `next_index` have come."""

    request_id: str
    next_index: int


@dataclass(frozen=True, slots=True)
class TellUnread:
    """Tell an instance which of its tokens are not read and never will be. Each entry is (request
    id, attempt, hop); the entries are sorted."""

    address: str
    items: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class AbortAt:
    address: str
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfirmOwner:
    """Tell `owner` that the frontend reads the request from it, and that the request's source gets
    no fence any more."""

    owner: InstanceRef
    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class AnswerFence:
    source: InstanceRef
    request_id: str
    epoch: Epoch
    fenced: bool


@dataclass(frozen=True, slots=True)
class AskOwner:
    """Ask the destination of a move whether it has the request in `epoch`."""

    destination: InstanceRef
    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class AskForTokens:
    """Ask the owner for the tokens [first_index, end_index), which have not come."""

    owner: InstanceRef
    request_id: str
    first_index: int
    end_index: int


@dataclass(frozen=True, slots=True)
class RecordOwner:
    """Record that the request is at `owner` now."""

    request_id: str
    owner: InstanceRef


@dataclass(frozen=True, slots=True)
class RecordMove:
    """Record that the destination's first token came, `downtime_s` after the token before it (None:
    there was no token before)."""

    record: MoveRecord
    step_time_s: float
    downtime_s: float | None


@dataclass(frozen=True, slots=True)
class RecordReplay:
    """Record that the first token of a replay came. `downtime_s` is as in RecordMove."""

    request_id: str
    replay: Replay
    downtime_s: float | None


Instruction = (
    Delivery[Emitted]
    | ConfirmTokens
    | TellUnread
    | AbortAt
    | ConfirmOwner
    | AnswerFence
    | AskOwner
    | AskForTokens
    | RecordOwner
    | RecordMove
    | RecordReplay
    | replays.Instruction
)
Instructions = Sequence[Instruction]


# -- the machine ---------------------------------------------------------------------------


class KnownIncarnations(Protocol):
    """The instances of the controller's last directory, without the instances that have died
    since."""

    def incarnation(self, instance_id: str) -> int | None: ...


@dataclass(slots=True)
class Route:
    """A request's owner, and when its tokens came."""

    ownership: Ownership[Emitted]
    num_prompt_tokens: int
    epoch: Epoch = FIRST_EPOCH
    """The epoch of the latest token."""
    token_s: float | None = None
    timed: MoveTimed | None = None
    """A move whose destination's first token has not come yet."""
    replay: Replay | None = None
    """A replay whose first token has not come yet."""
    unclear_s: float = 0.0
    """While UNCLEAR: when the request became so."""
    asked_s: float = 0.0
    """While UNCLEAR: when the frontend last asked for what is missing; before the first question,
    since when it is missing."""

    @property
    def lacks_something(self) -> bool:
        return self.ownership.to_ask is not None or self.ownership.order.gap is not None

    @property
    def next_index(self) -> int:
        """How many tokens have come."""
        return self.ownership.order.next_index

    def silent_s(self, now_s: float) -> float | None:
        """The time since the latest token; None before the first one."""
        return None if self.token_s is None else now_s - self.token_s


class Routes:
    def __init__(self, known: KnownIncarnations) -> None:
        self.replays = replays.ReplayMachine()
        self._known = known
        self.live: dict[str, Route] = {}
        """All requests that are not OVER, by request id; others may only read it. ReplayMachine has
        a copy of each."""
        self._unclear: dict[str, None] = {}
        """Exactly the requests of `live` that are UNCLEAR, in the order in which they became so."""
        self._unread: dict[str, set[tuple[str, int, int]]] = {}
        """(request id, attempt, hop) of tokens that are not read, by their sender's address, since
        the last look; no set is empty."""

    # -- queries -------------------------------------------------------------------------

    @property
    def has_to_look(self) -> bool:
        return bool(self._unclear or self._unread)

    def state(self, request_id: str) -> RouteState:
        if request_id not in self.live:
            return RouteState.OVER
        if self.replays.is_lost(request_id):
            return RouteState.LOST
        return RouteState.UNCLEAR if request_id in self._unclear else RouteState.READ

    def num_by_owner(self) -> dict[str, int]:
        """How many live requests each instance has, by id."""
        load: dict[str, int] = {}
        for route in self._owned():
            owner_id = route.ownership.owner.instance_id
            load[owner_id] = load.get(owner_id, 0) + 1
        return load

    def blocks_by_owner(self, demand_for: DemandFor) -> dict[str, int]:
        """How many blocks the live requests take on each instance, by instance id, as if they
        shared none."""
        load: dict[str, int] = {}
        for route in self._owned():
            owner_id = route.ownership.owner.instance_id
            num_blocks = demand_for(route.num_prompt_tokens + route.next_index)
            load[owner_id] = load.get(owner_id, 0) + num_blocks
        return load

    def _owned(self) -> Iterator[Route]:
        return (route for r, route in self.live.items() if not self.replays.is_lost(r))

    # -- events --------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> Instructions:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case Emitted():
                return self.emitted(event, now_s)
            case Sent(request_id, instance, num_prompt_tokens):
                self.live[request_id] = Route(Ownership(instance), num_prompt_tokens)
                return ()
            case Aborted(request_ids):
                return self._aborted(request_ids, now_s)
            case replays.Over(request_id):
                self._drop(request_id)
                return self.replays.handle(event, now_s)
            case InstanceDied(instance_id, incarnation):
                dead = (instance_id, incarnation)
                return self._lose_where(lambda holder: holder.key == dead, now_s)
            case AddressLost(address):
                return self._lose_where(lambda holder: holder.address == address, now_s)
            case ReplayOrdered():
                return self._replay_elsewhere(event, now_s)
            case InstancesLearned():
                return self._lose_where(self._is_replaced, now_s)
            case Looked():
                return self._look(now_s)
            case Moved():
                return self._moved(event, now_s)
            case FenceAsked():
                return self._fence_asked(event, now_s)
            case Announced() | NotMoved() | LostThere() | NotTaken():
                route = self.live.get(event.request_id)
                return () if route is None else self._told(event, route, now_s)
            case MoveTimed(record):
                route = self.live.get(record.request_id)
                if route and route.ownership.owner.instance_id == record.destination_id:
                    route.timed = event
                return ()
        return self._replay(event, now_s)

    def _told(
        self, event: Announced | NotMoved | LostThere | NotTaken, route: Route, now_s: float
    ) -> Instructions:
        request_id, ownership = event.request_id, route.ownership
        match event:
            case Announced(_, epoch, destination) if not self.replays.is_lost(request_id):
                ownership.announce(destination, epoch)
                known = self._known.incarnation(destination.instance_id)
                if known is not None and known > destination.incarnation:
                    return self._lose_holder(request_id, route, destination, now_s)
            case NotMoved(_, epoch) if ownership.disowned(epoch):
                return self._lose(request_id, route, ownership.owner, now_s)
            case LostThere(_, epoch, owner) if ownership.lost_in(epoch):
                return self._lose(request_id, route, owner, now_s)
            case NotTaken(_, message, retryable, attempt):
                owner, silent_s = ownership.owner, route.silent_s(now_s)
                return self._replay(
                    replays.Refused(request_id, owner, message, retryable, attempt, silent_s), now_s
                )
        return ()

    def _moved(self, moved: Moved, now_s: float) -> Instructions:
        request_id, owner, epoch = moved.request_id, moved.owner, moved.epoch
        route = self.live.get(request_id)
        if route is None:  # the request's client left meanwhile
            return [AbortAt(owner.address, (request_id,))]
        ownership = route.ownership
        if epoch.attempt < ownership.order.epoch.attempt:
            return [TellUnread(owner.address, ((request_id, *epoch),))]
        told: list[Instruction] = []
        if ownership.moved(owner, epoch, moved.began_index):
            told.append(RecordOwner(request_id, owner))
            told += self._found(request_id, route, now_s)
        if ownership.is_read_from(owner, epoch):
            told.append(ConfirmOwner(owner, request_id, epoch))
        elif ownership.lost_in(epoch):
            told.append(TellUnread(owner.address, ((request_id, *epoch),)))
            told += self._lose(request_id, route, owner, now_s)
        return told

    def _fence_asked(self, asked: FenceAsked, now_s: float) -> Instructions:
        """Answers a source that asks for its request back. If the request is over at this frontend,
        or lost, it has no owner. Then the source may have it back, and is told to stop it."""
        request_id, epoch, owner = asked.request_id, asked.epoch, asked.owner
        told: list[Instruction] = []
        route = self.live.get(request_id)
        fenced: bool | None = True
        if route is not None and self.replays.is_lost(request_id):
            route.ownership.turn_away(owner)
        elif route is not None:
            fenced = route.ownership.fence(owner, epoch)
            self._note_what_is_missing(request_id, route, now_s)
            if fenced is None:  # the source was taken for dead
                if route.ownership.to_ask is not None:
                    return ()  # the source asks again, and the destination has answered meanwhile
                told += self._lose(request_id, route, owner, now_s)
        told.append(AnswerFence(owner, request_id, epoch, fenced is not False))
        route = self.live.get(request_id)
        if route is None:
            told.append(AbortAt(owner.address, (request_id,)))
        elif (
            self.replays.is_lost(request_id) or epoch.attempt < route.ownership.order.epoch.attempt
        ):
            told.append(TellUnread(owner.address, ((request_id, *epoch),)))
        return told

    # -- tokens --------------------------------------------------------------------------

    def emitted(self, emitted: Emitted, now_s: float) -> Instructions:
        """The same as `handle`, called for each item of each step, without going through the other
        events."""
        sender, request_id, epoch, first_index, token_ids, _, _ = emitted
        route = self.live.get(request_id)
        if route is None:
            return self._not_read(emitted, now_s)
        ownership = route.ownership
        order, owner = ownership.order, ownership.owner
        before = order.next_index
        delivered = ownership.offer(sender, epoch, first_index, len(token_ids), emitted)
        if delivered is None:
            return self._not_read(emitted, now_s)
        told: list[Instruction] = []
        if ownership.owner is not owner:
            told += self._found(request_id, route, now_s)
        is_over = False
        for delivery in delivered:
            (_, _, epoch, _, token_ids, finish_reason, _), num_skip = delivery
            if epoch > route.epoch:
                told += _first_of(request_id, route, epoch, now_s)
            route.token_s = now_s
            new_token_ids = token_ids[num_skip:] if num_skip else token_ids
            if marked := self.replays.delivered(request_id, new_token_ids):
                told += marked
            told.append(delivery)
            if finish_reason is not None:
                is_over = True
        if order.next_index // RECEIVED_EVERY != before // RECEIVED_EVERY:
            told.append(ConfirmTokens(request_id, order.next_index))
        if is_over:
            self._drop(request_id)
        elif order.gap is not None or request_id in self._unclear:
            self._note_what_is_missing(request_id, route, now_s)
        return told

    def _not_read(self, emitted: Emitted, now_s: float) -> Instructions:
        """Handles tokens that are not read. If an instance that was taken for dead has got the
        request since, the request's source does not have it any more."""
        request_id, epoch, sender = emitted.request_id, emitted.epoch, emitted.sender
        if emitted.finish_reason is None:
            self._unread.setdefault(sender.address, set()).add((request_id, *epoch))
        route = self.live.get(request_id)
        if route is not None and route.ownership.lost_in(epoch):
            return self._lose(request_id, route, sender, now_s)
        return ()

    def _found(self, request_id: str, route: Route, now_s: float) -> Instructions:
        """Notes that another instance owns the request in the same attempt."""
        told: Instructions = ()
        if self.replays.is_lost(request_id):
            told = self._replay(replays.Found(request_id), now_s)
        self._note_what_is_missing(request_id, route, now_s)
        return told

    # -- what is lost, and how it goes on ----------------------------------------------------

    def _is_replaced(self, holder: InstanceRef) -> bool:
        known = self._known.incarnation(holder.instance_id)
        return known is not None and known != holder.incarnation

    def _lose_where(self, is_lost: Callable[[InstanceRef], bool], now_s: float) -> Instructions:
        told: list[Instruction] = []
        for request_id, route in list(self.live.items()):
            for holder in route.ownership.holders:
                if is_lost(holder) and request_id in self.live:
                    told += self._lose_holder(request_id, route, holder, now_s)
        return told

    def _lose_holder(
        self, request_id: str, route: Route, holder: InstanceRef, now_s: float
    ) -> Instructions:
        match route.ownership.lost(holder.instance_id, holder.incarnation):
            case Loss.REQUEST:
                return self._lose(request_id, route, route.ownership.owner, now_s)
            case Loss.ASK if not self.replays.is_lost(request_id):
                self._note_what_is_missing(request_id, route, now_s)
                return self._ask_about(request_id, route, now_s)
        return ()

    def _lose(
        self,
        request_id: str,
        route: Route,
        owner: InstanceRef,
        now_s: float,
        what: str = "",
        *,
        on_purpose: bool = False,
    ) -> Instructions:
        if self.replays.is_lost(request_id):
            return ()
        what = what or f"instance {owner.instance_id} died while it ran this request"
        lost = replays.Lost(request_id, owner, what, route.silent_s(now_s), on_purpose)
        return self._replay(lost, now_s)

    def _replay_elsewhere(self, ordered: ReplayOrdered, now_s: float) -> Instructions:
        told: list[Instruction] = []
        for request_id in ordered.request_ids:
            route = self.live.get(request_id)
            if route is None or self.state(request_id) is not RouteState.READ:
                continue
            (owner, *destinations) = route.ownership.holders
            if destinations or owner.key != ordered.instance:
                continue
            if self.replays.may_leave(request_id):
                told += self._take_away(request_id, route, now_s, ordered.why, on_purpose=True)
        return told

    def _replay(self, event: replays.Event, now_s: float) -> Instructions:
        told = self.replays.handle(event, now_s)
        for instruction in told:
            match instruction:
                case replays.Send():
                    self._sent_anew(instruction)
                case replays.Fail(request_id) | replays.Refuse(request_id):
                    self._drop(request_id)
                case replays.RecordLoss(request_id):
                    self._unclear.pop(request_id, None)
        return told

    def _sent_anew(self, send: replays.Send) -> None:
        route = self.live[send.request.request_id]
        attempt = route.ownership.replayed(send.instance).attempt
        assert (attempt, len(send.outputs)) == (send.replay.attempt, route.next_index)
        route.timed, route.replay = None, send.replay

    def _aborted(self, request_ids: Sequence[str], now_s: float) -> Instructions:
        told: list[Instruction] = []
        by_address: dict[str, list[str]] = {}
        for request_id in request_ids:
            route = self.live.get(request_id)
            if route is None:  # its first instance is still being asked for
                told.append(replays.CallOff(request_id))
            elif not self.replays.is_lost(request_id):
                for holder in route.ownership.holders:
                    by_address.setdefault(holder.address, []).append(request_id)
            self._drop(request_id)
            told += self.replays.handle(replays.Over(request_id), now_s)
        told += [AbortAt(address, tuple(ids)) for address, ids in by_address.items()]
        return told

    def _drop(self, request_id: str) -> None:
        self.live.pop(request_id, None)
        self._unclear.pop(request_id, None)

    # -- what is missing -----------------------------------------------------------------

    def _note_what_is_missing(self, request_id: str, route: Route, now_s: float) -> None:
        if not route.lacks_something or self.replays.is_lost(request_id):
            self._unclear.pop(request_id, None)
        elif request_id not in self._unclear:
            self._unclear[request_id] = None
            route.unclear_s = route.asked_s = now_s

    def _look(self, now_s: float) -> Instructions:
        unread, self._unread = self._unread, {}
        told: list[Instruction] = [
            TellUnread(address, tuple(sorted(items))) for address, items in unread.items()
        ]
        for request_id in list(self._unclear):
            route = self.live[request_id]
            if now_s - route.unclear_s >= UNCLEAR_S:
                told += self._give_up(request_id, route, now_s)
            elif now_s - route.asked_s >= MISSING_S:
                told += self._ask_about(request_id, route, now_s)
        return told

    def _give_up(self, request_id: str, route: Route, now_s: float) -> Instructions:
        lacks_tokens = route.ownership.to_ask is None
        what = "tokens of it were lost on their way" if lacks_tokens else ""
        return self._take_away(request_id, route, now_s, what)

    def _take_away(
        self, request_id: str, route: Route, now_s: float, what: str, *, on_purpose: bool = False
    ) -> Instructions:
        """Counts the request as lost, and aborts it at its holders, which would otherwise decode it
        to the end. Messages that the holders sent before they hear of this do not bring the request
        back."""
        ownership, holders = route.ownership, route.ownership.holders
        ownership.give_up()
        return [
            *(AbortAt(holder.address, (request_id,)) for holder in holders),
            *self._lose(request_id, route, ownership.owner, now_s, what, on_purpose=on_purpose),
        ]

    def _ask_about(self, request_id: str, route: Route, now_s: float) -> Instructions:
        ownership = route.ownership
        route.asked_s = now_s
        if ownership.to_ask is not None:
            destination, epoch = ownership.to_ask
            return [AskOwner(destination, request_id, epoch)]
        assert ownership.order.gap is not None
        return [AskForTokens(ownership.owner, request_id, *ownership.order.gap)]

    # ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        self.replays.check()
        for request_id, route in self.live.items():
            route.ownership.check()
            has_copy = self.replays.state(request_id) is not replays.CopyState.OVER
            assert has_copy, f"{request_id} could not be replayed, nor lost"
            is_unclear = route.lacks_something and not self.replays.is_lost(request_id)
            assert is_unclear == (request_id in self._unclear), f"{request_id} waits for ever"
            assert not is_unclear or route.unclear_s <= route.asked_s
        assert self._unclear.keys() <= self.live.keys(), "asks about a request that is over"
        assert all(self._unread.values()), "tells an instance of nothing"


def _first_of(request_id: str, route: Route, epoch: Epoch, now_s: float) -> Instructions:
    """Takes a new owner's first token, from which the downtime of the move or of the replay is
    known."""
    told: list[Instruction] = []
    route.epoch, downtime_s = epoch, route.silent_s(now_s)
    if (timed := route.timed) is not None:
        route.timed = None
        told.append(RecordMove(timed.record, timed.step_time_s, downtime_s))
    if (replay := route.replay) is not None and epoch.attempt == replay.attempt:
        route.replay = None
        told.append(RecordReplay(request_id, replay, downtime_s))
    return told
