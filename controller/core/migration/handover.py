"""The handover of cached prompts to other instances, as the instance sees it that has them: before
it leaves, the others copy what it computed last.

It offers one prompt at a time to each destination, the prompt that it computed last first. The
destination copies what it lacks of the prompt (`prefix_fetch.py`) and answers. So a destination
with a faster link gets more. A prompt that is the beginning of one that was offered is left out. A
prompt that shares half of its blocks with one that was offered goes to the same destination.

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
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.migration.prefix_fetch import FetchOutcome
from controller.core.value import value

MAX_PROMPTS = 4096
"""How many prompts an instance remembers at most, of the requests that finished there last."""
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
        names_of: Callable[[str], Sequence[Hashable]],
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
        self._reserved: dict[str, deque[str]] = {each: deque() for each in destination_ids}
        """For each destination that takes prompts, those that are for it alone."""
        self._seen: dict[Hashable, str] = {}
        """The destination of each block that was offered, by name."""
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
                self._stop(destination_id)
                self._seen = {k: at for k, at in self._seen.items() if at != destination_id}
        instructions: list[Instruction] = []
        if self._may_offer(now_s):
            instructions += self._offers()
        if not self._offered and not (self._may_offer(now_s) and self._has_prompts):
            self.over, self._ended_s = True, now_s
            instructions.append(End())
        return instructions

    def view(self) -> HandoverView:
        complete = self.over and not self._has_prompts
        took_s = self._ended_s - self._began_s
        return HandoverView(self._num_prompts, self._num_tokens, complete, took_s)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert not set(self._free) & set(self._offered), "two offers to one destination"
        assert len(set(self._offered.values())) == len(self._offered), "one prompt offered twice"
        assert not self.over or not self._offered

    @property
    def _has_prompts(self) -> bool:
        return bool(self._waiting) or any(self._reserved.values())

    def _may_offer(self, now_s: float) -> bool:
        is_full = self._max_tokens is not None and self._num_tokens >= self._max_tokens
        return bool(self._free) and now_s < self.until_s and not is_full

    def _offers(self) -> list[Offer]:
        """An offer to each free destination, as far as there are prompts for it."""
        offers: list[Offer] = []
        while True:
            own = next((each for each in self._free if self._reserved[each]), None)
            if own is not None:
                prompt_id = self._reserved[own].popleft()
            elif self._free and self._waiting:
                prompt_id = self._waiting.popleft()
            else:
                return offers
            names = self._names_of(prompt_id)
            if not names or names[-1] in self._seen:
                continue
            alike = self._seen.get(names[(len(names) - 1) // 2])
            destination_id = alike if alike in self._reserved else own or self._free[0]
            if destination_id not in self._free:
                self._reserved[destination_id].append(prompt_id)
                continue
            self._seen.update(dict.fromkeys(names, destination_id))
            self._free.remove(destination_id)
            self._offered[destination_id] = prompt_id
            offers.append(Offer(prompt_id, destination_id, len(names)))

    def _answered(self, event: Answered) -> None:
        self._num_tokens += event.num_tokens
        if event.outcome in PLACED:
            del self._offered[event.destination_id]
            self._num_prompts += event.outcome is not FetchOutcome.NOT_THERE
            self._free.append(event.destination_id)
        else:
            self._stop(event.destination_id)

    def _stop(self, destination_id: str) -> None:
        """The destination takes no more prompts: those that are for it go to others."""
        if destination_id in self._free:
            self._free.remove(destination_id)
        prompts = [*self._reserved.pop(destination_id, ())]
        if (under_way := self._offered.pop(destination_id, None)) is not None:
            prompts.insert(0, under_way)
            for name in self._names_of(under_way):
                self._seen.pop(name, None)
        self._waiting.extendleft(reversed(prompts))


def leaves_room(num_free_blocks: int, num_reserved_blocks: int) -> bool:
    """Whether a destination that reserved so many blocks for a prompt has enough left for its
    requests, which may need blocks before the prompt is copied."""
    return num_free_blocks >= num_reserved_blocks


# -- new instances -----------------------------------------------------------------------------

FILL_WITHIN_S = 10.0
"""For how long a new instance is filled."""
MAX_FILL_SOURCES = 8
"""How many instances fill a new one at most, those that have most cached. With more, the share of
each would be less than a prompt."""


@value
class Started:
    """A process of the instance began, whose cache is empty."""

    instance_id: str


@value
class Gone:
    """The instance died, or was removed."""

    instance_id: str


@value
class Looked:
    """How many tokens are cached on each instance that may get requests, by id."""

    num_cached_tokens: Mapping[str, int]


@value
class Fill:
    """Order the sources to hand over what they computed last to the new instance."""

    newcomer_id: str
    source_ids: tuple[str, ...]

    def tokens_each(self, num_total_tokens: int) -> int:
        """How many tokens each source hands over to an instance whose memory holds so many: half of
        it is filled. The rest is for the requests that come."""
        return num_total_tokens // 2 // len(self.source_ids)


class Filling:
    """Which instances are new, and who fills them. While its cache is empty, an instance gets few
    requests of sessions: their earlier turns are elsewhere. It is filled once, when it may get
    requests for the first time; a restarted one may not while it still counts as leaving."""

    def __init__(self) -> None:
        self._new: set[str] = set()

    def handle(self, event: Started | Gone | Looked) -> list[Fill]:
        """Takes one event in; returns what to do now. Mutates."""
        match event:
            case Started(instance_id):
                self._new.add(instance_id)
            case Gone(instance_id):
                self._new.discard(instance_id)
            case Looked(cached):
                return self._looked(cached)
        return []

    def view(self) -> frozenset[str]:
        """The instances that are to be filled."""
        return frozenset(self._new)

    def _looked(self, cached: Mapping[str, int]) -> list[Fill]:
        ready = sorted(self._new & cached.keys())
        if not ready:
            return []
        self._new.difference_update(ready)
        full = sorted((i for i in cached if cached[i]), key=lambda i: (-cached[i], i))
        fills = [Fill(i, tuple([j for j in full if j != i][:MAX_FILL_SOURCES])) for i in ready]
        return [fill for fill in fills if fill.source_ids]
