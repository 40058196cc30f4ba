"""Which instance owns a request, and so whose tokens count, as the request's frontend knows it.

    announced   a source says that the destination may own the request soon, in hop + 1
    moved       the destination says that it owns the request; its tokens in hop + 1 say the same
    fence       the source got no answer and wants the request back in hop + 2. This is granted
                unless the frontend has heard of hop + 1 or of a later hop. Once it is granted,
                hop + 1 counts for nothing. In each epoch only the first instance heard of counts:
                if a source that was taken for dead is granted the hop in which the request has
                moved on meanwhile, the client still reads only one of the two instances
    lost        an instance died. If it owned the request and a move was announced, the
                destination is asked whether COMMIT reached it; else the request is lost. It is
                lost too if a source says that it gave the request to a destination that died.
                Late tokens of a dead instance count, but no longer make it the owner
    replayed    a lost request begins anew elsewhere, in the next attempt. What is said of an
                earlier attempt counts for nothing, except for tokens before the one with which
                the new attempt begins

So whatever two instances believe, the client reads one of them. The other one, and an instance that
was taken for dead but lives, must be told to stop (`offer` says so).

`TokenOrder` is the rule by which each token of a request comes once and in order, whoever sends it.
A request's owner changes when it moves (hop) or is replayed after a crash (attempt). Each message
names the epoch of its sender and the index of its first token. Then two rules are enough:

    epoch    a higher one takes over from the index with which it begins. What a lower epoch says
             of earlier indices is still true: the new owner goes on from there, and its first
             message may overtake the old one's last. What it says of later indices drops, and
             no later epoch lets it in again
    index    the next token is delivered, a later one is held until the gap closes, old ones drop

Indices count on over epochs: a token delivered once is never delivered again. A message that
overlaps delivered tokens is delivered with the number of leading tokens to skip.
"""

import heapq
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from controller.core.load.snapshot import InstanceRef

T = TypeVar("T")

# -- the order of tokens -------------------------------------------------------------------


class Epoch(NamedTuple):
    """(attempt, hop), compared in that order. Only the frontend raises `attempt`."""

    attempt: int = 0
    hop: int = 0


FIRST_EPOCH = Epoch()


class Delivery(NamedTuple, Generic[T]):
    """An item to deliver now, without its first `num_skip` tokens, which were delivered before."""

    item: T
    num_skip: int = 0


class TokenOrder(Generic[T]):
    """The order of one request's output. Items are opaque; they may be whole messages.

    A notice (an item of zero tokens: finished, aborted) at index i is delivered once tokens
    0..i-1 all are. At most one notice per epoch and index is delivered: a second is taken for
    a repetition. A notice behind a token that was delivered is old and drops.
    """

    __slots__ = ("_began", "_held", "_held_keys", "_noticed_index", "epoch", "next_index")

    def __init__(self, epoch: Epoch = FIRST_EPOCH, next_index: int = 0) -> None:
        self.epoch = epoch
        """The highest epoch known; only `raise_epoch` changes it."""
        self._began: list[tuple[Epoch, int]] = [(epoch, next_index)]
        """(epoch, first index), both ascending: an epoch counts below the index where the next one
        begins. Epochs that a later one overtook at an earlier index are left out."""
        self.next_index = next_index
        """How many tokens were delivered so far. This is also the index of the next token."""
        self._noticed_index = -1
        """The index of the latest notice that was delivered in this epoch."""
        self._held: dict[tuple[int, int], T] = {}
        """Held items by (first index, number of tokens)."""
        self._held_keys: list[tuple[int, int]] = []
        """The keys of `_held` as a heap: the lowest index first, and of one index the notice first.
        """

    @property
    def gap(self) -> tuple[int, int] | None:
        """The missing tokens for which held items wait, as [first, end); None if nothing waits."""
        return (self.next_index, self._held_keys[0][0]) if self._held_keys else None

    def raise_epoch(self, epoch: Epoch, began_index: int | None = None) -> None:
        """From `began_index` on (None: from the next index), accepts tokens only in `epoch` or a
        higher one. Does nothing if `epoch` is not higher than the present one. Mutates."""
        if epoch > self.epoch:
            self.epoch = epoch
            begins = self.next_index if began_index is None else began_index
            while self._began and self._began[-1][1] >= begins:
                self._began.pop()
            self._began.append((epoch, begins))
            self._noticed_index = -1
            self._held = {
                (first, num): item
                for (first, num), item in self._held.items()
                if num and first + num <= begins
            }
            self._held_keys = sorted(self._held)

    def offer(
        self, epoch: Epoch, first_index: int, num_tokens: int, item: T
    ) -> list[Delivery[T]] | None:
        """Takes one message in; returns what to deliver now, in order. Mutates.

        `item` holds tokens [first_index, first_index + num_tokens). Returns None if the item counts
        for nothing: a higher epoch began before the end of its tokens, or it is a notice (no
        tokens) of a lower epoch, about a former owner. Raises ValueError on negative numbers, and
        then nothing has changed.
        """
        if first_index < 0 or num_tokens < 0:
            raise ValueError(f"bad token range: {num_tokens} tokens at index {first_index}")
        if epoch < self.epoch:
            end = next(index for later, index in self._began if later > epoch)
            if num_tokens == 0 or first_index + num_tokens > end:
                return None
        self.raise_epoch(epoch, first_index)
        if first_index > self.next_index:
            key = (first_index, num_tokens)
            if key not in self._held:
                self._held[key] = item
                heapq.heappush(self._held_keys, key)
            return []
        delivered: list[Delivery[T]] = []
        self._accept(first_index, num_tokens, item, delivered)
        while self._held_keys and self._held_keys[0][0] <= self.next_index:
            key = heapq.heappop(self._held_keys)
            self._accept(*key, self._held.pop(key), delivered)
        return delivered

    def _accept(
        self, first_index: int, num_tokens: int, item: T, delivered: list[Delivery[T]]
    ) -> None:
        """Delivers an item that leaves no gap, unless it holds nothing new."""
        end = first_index + num_tokens
        if num_tokens == 0:
            if first_index == self.next_index and first_index != self._noticed_index:
                self._noticed_index = first_index
                delivered.append(Delivery(item))
        elif end > self.next_index:
            delivered.append(Delivery(item, self.next_index - first_index))
            self.next_index = end

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self.next_index >= 0
        assert self._noticed_index <= self.next_index
        assert self._began == sorted(self._began)
        assert [index for _, index in self._began] == sorted({index for _, index in self._began})
        assert self._began[-1][0] == self.epoch
        assert sorted(self._held_keys) == sorted(self._held), "heap and items differ"
        assert all(first > self.next_index for first, _ in self._held), "held but deliverable"


# -- the owner -----------------------------------------------------------------------------


class Loss(Enum):
    NONE = "none"
    """The request did not run on the dead instance, so it is not lost."""
    ASK = "ask"
    """The announced destination knows whether it has the request."""
    REQUEST = "request"
    """No instance has the request any more."""


@dataclass(slots=True)
class _Announced:
    destination: InstanceRef
    epoch: Epoch


class Ownership(Generic[T]):
    """The ownership of one request from its dispatch on. `owner`: the last known owner. `order`:
    the order of the request's tokens. Other code may read both but must not change them."""

    __slots__ = ("_announced", "_asking", "_dead", "_given_up", "order", "owner")

    def __init__(self, owner: InstanceRef) -> None:
        self.owner = owner
        self.order: TokenOrder[T] = TokenOrder()
        self._announced: _Announced | None = None
        self._asking = False
        self._dead: set[tuple[str, int]] = set()
        self._given_up: set[tuple[str, int]] = set()
        """The incarnations in `_dead` whose messages count for nothing, but only in this attempt.
        """

    @property
    def to_ask(self) -> tuple[InstanceRef, Epoch] | None:
        """(destination, epoch) if the owner died and this destination has not said yet whether it
        has the request in this epoch. None if no instance has to be asked."""
        if not self._asking or self._announced is None:
            return None
        return self._announced.destination, self._announced.epoch

    @property
    def holders(self) -> list[InstanceRef]:
        """The instances that may hold something of the request, and so must be told if its client
        leaves."""
        if self._announced is None or self._announced.destination == self.owner:
            return [self.owner]
        return [self.owner, self._announced.destination]

    def replayed(self, owner: InstanceRef) -> Epoch:
        """Begins the lost request anew at `owner`, with the tokens delivered so far. Returns the
        epoch of the request at `owner`. Mutates."""
        epoch = Epoch(self.order.epoch.attempt + 1)
        self.order.raise_epoch(epoch)
        self.owner = owner
        self._announced, self._asking = None, False
        self._dead.discard(owner.key)  # the instance lives, only its connection broke
        self._dead -= self._given_up
        self._given_up.clear()
        return epoch

    def give_up(self) -> None:
        """Counts the request as lost. From now on, nothing that its holders say in this attempt
        makes one of them the owner. The holders may be alive, and may get the request in a later
        attempt. Mutates."""
        for holder in self.holders:
            self.turn_away(holder)
            self.lost(*holder.key)

    def turn_away(self, instance: InstanceRef) -> None:
        """Notes that the request is lost and that this instance is told to stop it. Messages that
        the instance sent in this attempt before it was told do not make it the owner. Mutates."""
        if instance.key not in self._dead:
            self._given_up.add(instance.key)
            self._dead.add(instance.key)

    def announce(self, destination: InstanceRef, epoch: Epoch) -> None:
        """Notes that a source announced a move. An announcement changes nothing if it comes late,
        or if its epoch is over. Mutates."""
        if epoch > self.order.epoch and not self._asking and destination.key not in self._dead:
            self._announced = _Announced(destination, epoch)

    def moved(self, owner: InstanceRef, epoch: Epoch, began_index: int) -> bool:
        """Notes that the request runs at this destination now, from the token `began_index` on.
        Returns whether this was not known before. Mutates."""
        if epoch <= self.order.epoch or owner.key in self._dead:
            return False
        self.order.raise_epoch(epoch, began_index)
        self._take_over(owner)
        return True

    def offer(
        self, sender: InstanceRef, epoch: Epoch, first_index: int, num_tokens: int, item: T
    ) -> list[Delivery[T]] | None:
        """Takes tokens that came in; returns what to deliver now, in order. Returns None if these
        tokens count for nothing. Then everything else that this sender says in this epoch will
        count for nothing too. Mutates."""
        if epoch == self.order.epoch and sender.key != self.owner.key:
            return None
        if epoch <= self.order.epoch:
            return self.order.offer(epoch, first_index, num_tokens, item)
        if sender.key in self._dead:
            return None
        delivered = self.order.offer(epoch, first_index, num_tokens, item)
        self._take_over(sender)
        return delivered

    def fence(self, owner: InstanceRef, fenced: Epoch) -> bool | None:
        """Decides whether the source gets the request back in the epoch `fenced`. Returns True if
        this is granted, or if that attempt is over. Returns False if the request is owned by the
        destination, or by an instance to which it moved on from the destination. Returns None if
        the source was taken for dead: it gets nothing. Mutates."""
        epoch = self.order.epoch
        asked_again = epoch == fenced and owner.key == self.owner.key
        if epoch.attempt > fenced.attempt or asked_again:
            return True
        if epoch >= (fenced.attempt, fenced.hop - 1):
            return False
        if owner.key in self._dead:
            return None
        self.order.raise_epoch(fenced)
        self._take_over(owner)
        return True

    def is_read_from(self, owner: InstanceRef, epoch: Epoch) -> bool:
        """Whether this instance owns the request in this epoch. Then the request may move on,
        because the source from which it came is granted no fence any more."""
        return self.order.epoch == epoch and self.owner.key == owner.key

    def lost(self, instance_id: str, incarnation: int) -> Loss:
        """Notes that this incarnation died. Returns what that means for the request. Mutates."""
        dead = (instance_id, incarnation)
        self._dead.add(dead)
        announced = self._announced
        if announced and announced.destination.key == dead:
            self._announced = None
            if self._asking:
                self._asking = False
                return Loss.REQUEST
        if self.owner.key != dead:
            return Loss.NONE
        if self._announced is None:
            return Loss.REQUEST
        self._asking = True
        return Loss.ASK

    def lost_in(self, epoch: Epoch) -> bool:
        """Whether the request is lost. The source, or the destination itself, reported that in
        `epoch` the request was handed to this destination, which is taken for dead. The request is
        lost unless a token or an owner of that epoch, or of a later one, is already known."""
        return self.order.epoch < epoch

    def disowned(self, epoch: Epoch) -> bool:
        """Whether the request is lost because the destination in `epoch` does not have it and never
        will. This is so if that destination was asked for the request."""
        return self._asking and self._announced is not None and self._announced.epoch == epoch

    def _take_over(self, owner: InstanceRef) -> None:
        """Makes `owner` the owner in the present epoch. Its own next move may have been announced
        before its first token came, so only older announcements are forgotten."""
        self.owner = owner
        self._asking = False
        if self._announced and self._announced.epoch <= self.order.epoch:
            self._announced = None

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        self.order.check()
        assert not self._asking or self._announced is not None
        assert self._given_up <= self._dead
        assert self._announced is None or self._announced.epoch > self.order.epoch
