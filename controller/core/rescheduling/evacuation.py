"""Which requests of an instance that must go by a moment leave in time, and in which turn.

What counts is the highest rank first. Within a rank as many as the link can carry by then are
chosen, the smallest first; the largest of the chosen ones leaves first, as that one cannot be made
up for later. A request that certainly ends by itself before the moment needs no move, and comes
last. Those for which the time does not suffice stay: a copy that is cut off takes the link's time
from those that would have arrived.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.core.rescheduling.candidate import Candidate
from controller.core.rescheduling.worth import Link

MARGIN_S = 0.5
"""Of the time that is left so much is for what is not the copy: the last stage, the commit, and the
answers. A move between two CPU instances took 0.05 to 0.2 s beside its copy."""


@dataclass(frozen=True, slots=True)
class Evacuation:
    """`in_turn`: the requests that leave; `too_late`: ids of those that would not arrive."""

    in_turn: tuple[Candidate, ...]
    too_late: frozenset[str] = frozenset()


def evacuation(
    candidates: Iterable[Candidate],
    link: Link,
    left_s: float,
    step_time_s: float | None = None,
) -> Evacuation:
    """`candidates`: all requests of the instance; those with a move under way take their share of
    the link. `left_s`: seconds until the instance goes. Takes n log n."""
    everybody = list(candidates)
    room_s = left_s - MARGIN_S
    staying = [each for each in everybody if not each.outgoing]
    under_way_s = sum(link.copy_time_s(each.num_blocks) for each in everybody if each.outgoing)
    ends = {each.request_id for each in staying if _ends(each, room_s, step_time_s)}
    chosen = list[Candidate]()
    too_late = set[str]()
    for each in sorted(staying, key=lambda each: (each.request_id in ends, *_smallest(each))):
        takes_s = link.copy_time_s(each.num_blocks)
        if room_s <= 0 or under_way_s + takes_s > room_s:
            too_late.add(each.request_id)
        else:
            under_way_s += takes_s
            chosen.append(each)
    chosen.sort(key=lambda each: (each.request_id in ends, *_largest(each)))
    return Evacuation(tuple(chosen), frozenset(too_late))


def _ends(candidate: Candidate, room_s: float, step_time_s: float | None) -> bool:
    """It runs, and its last token that may be is due before."""
    if candidate.queued or candidate.num_tokens_left is None or not step_time_s:
        return False
    return candidate.num_tokens_left * step_time_s < room_s


def _smallest(candidate: Candidate) -> tuple[int, int, int, str]:
    return (-candidate.rank, candidate.num_blocks, candidate.num_tokens, candidate.request_id)


def _largest(candidate: Candidate) -> tuple[int, int, int, str]:
    return (-candidate.rank, -candidate.num_blocks, -candidate.num_tokens, candidate.request_id)
