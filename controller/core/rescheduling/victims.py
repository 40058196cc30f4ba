"""Which request of a source is tried first.

The order begins with the rank, so that a lower priority makes room for a higher one. The policy of
this name decides what follows:

    llumnix    fewest tokens: the cheapest to copy; running ones and the head of the queue
    SR, LR     the shortest, the longest of the running ones
    LCR        the last come of the running ones
    FCW        the first in the queue, and no running one
    FCWSR      the first in the queue, whatever its rank, then the shortest of the running ones

Of the queue only the head is ever of use, because those behind it weigh nothing (virtual_usage).
When it has left, the next one is the head.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.core.rescheduling.candidate import Candidate

Turn = tuple[float, float, float, str]


@dataclass(frozen=True, slots=True)
class VictimPolicy:
    """`turn` is a candidate's sort key; an instance that drains sorts all of its requests by it."""

    turn: Callable[[Candidate], Turn]
    takes_running: bool = True
    takes_head: bool = False


def _shortest(candidate: Candidate) -> Turn:
    return (0, candidate.rank, candidate.num_tokens, candidate.request_id)


def _longest(candidate: Candidate) -> Turn:
    return (0, candidate.rank, -candidate.num_tokens, candidate.request_id)


def _last_come(candidate: Candidate) -> Turn:
    return (0, candidate.rank, -candidate.arrival_time_s, candidate.request_id)


def _queue_first(candidate: Candidate) -> Turn:
    return (0 if candidate.queued else 1, *_shortest(candidate)[1:])


VICTIMS: Mapping[str, VictimPolicy] = MappingProxyType(
    {
        "llumnix": VictimPolicy(_shortest, takes_head=True),
        "LCR": VictimPolicy(_last_come),
        "LR": VictimPolicy(_longest),
        "SR": VictimPolicy(_shortest),
        "FCW": VictimPolicy(_queue_first, takes_running=False, takes_head=True),
        "FCWSR": VictimPolicy(_queue_first, takes_head=True),
    }
)


def departing_in_turn(departing: Iterable[Candidate], victim: str) -> list[Candidate]:
    """All requests of a draining instance: the queue in its own order, which moves without a copy,
    then the running ones in the policy's order."""
    turn = VICTIMS[victim].turn
    everybody = list(departing)
    queued = (each for each in everybody if each.queued)
    running = (each for each in everybody if not each.queued)
    return [*sorted(queued, key=lambda each: each.queue_order), *sorted(running, key=turn)]
