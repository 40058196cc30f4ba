"""One request of a source, as far as relief looks at it, and in which order requests leave."""

from collections.abc import Iterable
from operator import attrgetter

from controller.core.load.snapshot import blocks_for
from controller.core.migration.refusals import MOVABLE, MoveFacts
from controller.core.value import value

PastMoves = tuple[tuple[str, float], ...]
"""One request's moves: (the instance that it left, how many seconds ago), in any order."""


@value
class Candidate:
    """Every request that its instance's snapshot counts is one, movable or not.

    `num_tokens` counts prompt and outputs. `num_blocks` are those it holds, none when queued;
    `num_freed_blocks` of them are free once it is gone: a shared block is not. `num_tokens_left` is
    how many it may emit yet (None: not known). `refusal` says why it cannot move now; `facts` are
    its engine's, of which that follows.

    `outgoing`: a move of the request is under way. It stays a candidate for as long as the snapshot
    counts it, so that the projection takes it out exactly once.
    """

    request_id: str
    rank: int
    num_tokens: int
    num_blocks: int
    num_freed_blocks: int
    queued: bool
    evicted: bool = False
    arrival_time_s: float = 0.0
    num_tokens_left: int | None = None
    refusal: str | None = None
    outgoing: bool = False
    moves: PastMoves = ()
    """All that are still remembered."""
    facts: MoveFacts = MOVABLE

    def as_known(self, refusal: str | None, outgoing: bool, moves: PastMoves) -> "Candidate":
        """By position: `replace` takes four times as long, and each look makes many of them."""
        return Candidate(
            self.request_id,
            self.rank,
            self.num_tokens,
            self.num_blocks,
            self.num_freed_blocks,
            self.queued,
            self.evicted,
            self.arrival_time_s,
            self.num_tokens_left,
            refusal,
            outgoing,
            moves,
            self.facts,
        )

    def demand_blocks(self, block_size: int) -> int:
        """Blocks for all of the request's tokens, as if nothing were cached."""
        return blocks_for(self.num_tokens, block_size)

    def blocks_there(self, block_size: int) -> int:
        """The blocks that it takes of a destination on which it runs, also if it waited here."""
        return self.demand_blocks(block_size) if self.queued else self.num_blocks

    @property
    def queue_order(self) -> tuple[int, float, str]:
        return (-self.rank, self.arrival_time_s, self.request_id)

    @property
    def victim_order(self) -> tuple[int, int, str]:
        """The paper's: the lowest rank first, so that it makes room for a higher one; then the
        fewest tokens, which are the cheapest to copy."""
        return (self.rank, self.num_tokens, self.request_id)


def departing_in_turn(departing: Iterable[Candidate]) -> list[Candidate]:
    """All requests of a draining instance: the queue in its own order, which moves without a copy,
    then the running ones."""
    everybody = list(departing)
    queued = (each for each in everybody if each.queued)
    running = (each for each in everybody if not each.queued)
    return [
        *sorted(queued, key=attrgetter("queue_order")),
        *sorted(running, key=attrgetter("victim_order")),
    ]
