"""The frontend's rule by which each token of a request comes once and in order, whoever sends it.

A request's owner changes: it moves (hop) or is replayed after a crash (attempt). Each message
names the epoch of its sender and the index of its first token. Then two rules suffice:

    epoch    a higher one takes over from the index with which it begins. What a lower epoch says
             of earlier indices is still true: the new owner goes on from there, and its first
             message may overtake the old one's last. What it says of later indices drops, and
             no later epoch lets it in again
    index    the next one is delivered; a later one is held until the gap closes; old ones drop

Indices count on over epochs: a token delivered once is never delivered again. A message that
overlaps delivered tokens is delivered with the number of leading tokens to skip.
"""

import heapq
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Epoch(NamedTuple):
    """(attempt, hop), compared in that order. Only the frontend raises `attempt`."""

    attempt: int = 0
    hop: int = 0


FIRST_EPOCH = Epoch()


class Delivery(NamedTuple, Generic[T]):
    """An item to deliver now, less its first `num_skip` tokens, which were delivered before."""

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
        """The highest epoch known; `raise_epoch` alone changes it."""
        self._began: list[tuple[Epoch, int]] = [(epoch, next_index)]
        """(epoch, first index), both ascending: an epoch counts below the index where the next one
        begins. Epochs that a later one overtook at an earlier index are left out."""
        self.next_index = next_index
        """Tokens delivered so far: the index of the next one."""
        self._noticed_index = -1
        """Index of the last notice delivered in this epoch."""
        self._held: dict[tuple[int, int], T] = {}
        """Held items by (first index, number of tokens)."""
        self._held_keys: list[tuple[int, int]] = []
        """The keys of `_held` as a heap: earliest first, at one index the notice first."""

    @property
    def gap(self) -> tuple[int, int] | None:
        """[first, end) of the missing tokens that held items wait for; None if nothing waits."""
        return (self.next_index, self._held_keys[0][0]) if self._held_keys else None

    def raise_epoch(self, epoch: Epoch, began_index: int | None = None) -> None:
        """From `began_index` on (None: from the next index) accepts tokens only in `epoch` or
        higher. No effect if it is not higher. Mutates."""
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

        `item` holds tokens [first_index, first_index + num_tokens). None: they count for nothing,
        as a higher epoch began before their end, or they are a notice (no tokens) of a lower epoch,
        about a former owner. Raises ValueError on negative numbers, and then nothing has changed.
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
