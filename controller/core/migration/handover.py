"""The handover of cached prompts to other instances, as the instance sees it that has them: before
it leaves, the others copy what it computed last.

It offers one prompt at a time to each destination, the prompt that it computed last first. The
destination copies what it lacks of the prompt (`prefix_fetch.py`) and answers. So a destination
with a faster link gets more. A prompt that is the beginning of one that was offered is left out.

    event            what follows
    Began            an offer to each destination
    Answered         the next offer to this destination; none if it has no room or does not answer
                     for the prompt, which then goes to another one
    DestinationLost  the same, for the prompt that was on its way there
    Ticked           after the limit no more is offered

The handover is over when nothing is under way, and when it has no more prompts, no destinations or
no time. `complete` says that each prompt has a new place, or is not cached any more.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.core.migration.prefix_fetch import FetchOutcome
from controller.core.value import value

FILL_WITHIN_S = 10.0
"""For how long a new instance is filled."""
MAX_FILL_SOURCES = 8
"""How many instances fill a new one at most, those with the least free memory. With more, the share
of each would be less than a prompt."""


def fill_tokens(num_total_tokens: int, num_sources: int) -> int:
    """How many tokens each of the other instances hands over to a new one, whose memory holds
    `num_total_tokens`: half of it is filled. The rest is for the requests that come."""
    return num_total_tokens // 2 // num_sources


PLACED = frozenset({FetchOutcome.FETCHED, FetchOutcome.HAD_IT, FetchOutcome.NOT_THERE})
"""After these outcomes a prompt is not offered again, and its destination gets the next one."""


@value
class Began:
    pass


@value
class Answered:
    """What became of the prompt that was offered to the destination last."""

    destination_id: str
    prompt_id: str
    outcome: FetchOutcome
    num_tokens: int = 0
    """How many tokens were copied."""


@value
class DestinationLost:
    destination_id: str


@value
class Ticked:
    """Time has passed."""


Event = Began | Answered | DestinationLost | Ticked


@value
class Offer:
    """Offer the prompt to the destination. Answered or DestinationLost follows."""

    prompt_id: str
    destination_id: str
    num_blocks: int


@value
class End:
    """The handover is over."""


Instruction = Offer | End


@dataclass(frozen=True, slots=True)
class HandoverView:
    """`num_prompts`: how many prompts others have now. `num_tokens`: how many tokens they copied
    for that."""

    num_prompts: int
    num_tokens: int
    complete: bool
    took_s: float


class Handover:
    """`prompt_ids`: what was computed last comes first. `names_of` returns the names of the cached
    blocks of a prompt, in the order of its tokens, and none for a prompt that others cannot use;
    names are equal if all tokens up to the end of both blocks are equal. `limit_s`: how long the
    handover may take. `max_tokens`: how many tokens are copied at most."""

    def __init__(
        self,
        prompt_ids: Sequence[str],
        destination_ids: Sequence[str],
        names_of: Callable[[str], Sequence[bytes]],
        limit_s: float,
        now_s: float,
        max_tokens: int | None = None,
    ) -> None:
        self._waiting = deque(prompt_ids)
        self._names_of = names_of
        self._free = deque(destination_ids)
        """The destinations that are to get an offer."""
        self._offered: dict[str, str] = {}
        """The prompt under way to each destination."""
        self._seen: set[bytes] = set()
        """The names of all blocks that were offered."""
        self.until_s = now_s + limit_s
        self._max_tokens = max_tokens
        self._num_prompts = self._num_tokens = 0
        self._began_s = self._ended_s = now_s
        self.over = False

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now. Mutates."""
        if self.over:
            return []
        match event:
            case Answered(destination_id, prompt_id) if (
                self._offered.get(destination_id) == prompt_id
            ):
                self._answered(event)
            case DestinationLost(destination_id):
                self._lost(destination_id)
        instructions: list[Instruction] = []
        while self._may_offer(now_s) and (offer := self._next()) is not None:
            instructions.append(offer)
        if not self._offered and not (self._may_offer(now_s) and self._waiting):
            self.over, self._ended_s = True, now_s
            instructions.append(End())
        return instructions

    def view(self) -> HandoverView:
        complete = self.over and not self._waiting
        took_s = self._ended_s - self._began_s
        return HandoverView(self._num_prompts, self._num_tokens, complete, took_s)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert not set(self._free) & set(self._offered), "two offers to one destination"
        assert len(set(self._offered.values())) == len(self._offered), "one prompt offered twice"
        assert not self.over or not self._offered

    def _may_offer(self, now_s: float) -> bool:
        is_full = self._max_tokens is not None and self._num_tokens >= self._max_tokens
        return bool(self._free) and now_s < self.until_s and not is_full

    def _next(self) -> Offer | None:
        """The next offer; None if no prompt is left."""
        while self._waiting:
            prompt_id = self._waiting.popleft()
            names = self._names_of(prompt_id)
            if not names or names[-1] in self._seen:
                continue
            self._seen.update(names)
            destination_id = self._free.popleft()
            self._offered[destination_id] = prompt_id
            return Offer(prompt_id, destination_id, len(names))
        return None

    def _answered(self, event: Answered) -> None:
        prompt_id = self._offered.pop(event.destination_id)
        self._num_tokens += event.num_tokens
        if event.outcome in PLACED:
            self._num_prompts += event.outcome is not FetchOutcome.NOT_THERE
            self._free.append(event.destination_id)
        else:
            self._place_anew(prompt_id)

    def _lost(self, destination_id: str) -> None:
        if destination_id in self._free:
            self._free.remove(destination_id)
        if (prompt_id := self._offered.pop(destination_id, None)) is not None:
            self._place_anew(prompt_id)

    def _place_anew(self, prompt_id: str) -> None:
        """A destination did not take the prompt: it is for another one."""
        self._waiting.appendleft(prompt_id)
        self._seen.difference_update(self._names_of(prompt_id))
