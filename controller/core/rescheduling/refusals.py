"""Why a request that could move is not moved now, in a word and in a sentence.

That it cannot move at all, or that its destination has no room, is a `MoveRefusal`.
"""

from enum import StrEnum


class ReliefRefusal(StrEnum):
    HEADROOM = "headroom"
    MOVED_LATELY = "moved_lately"
    MOVES_OFTEN = "moves_often"
    ENDS_FIRST = "ends_first"
    WOULD_OVERLOAD = "would_overload"
    COSTS_MORE = "costs_more"
    TOO_LATE = "too_late"


SENTENCES = {
    ReliefRefusal.HEADROOM: "it has a headroom here: others make room for it",
    ReliefRefusal.MOVED_LATELY: "it left that instance a short while ago",
    ReliefRefusal.MOVES_OFTEN: "it has moved as often as it may within a minute",
    ReliefRefusal.ENDS_FIRST: "it ends before it could be moved",
    ReliefRefusal.WOULD_OVERLOAD: "the destination would become a source itself",
    ReliefRefusal.TOO_LATE: "it cannot be copied before its instance goes",
    ReliefRefusal.COSTS_MORE: "copying it takes longer than what it frees would last",
}
