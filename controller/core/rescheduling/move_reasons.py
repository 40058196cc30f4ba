"""Why the cluster moves requests by itself, in the words that events and screens show."""

from enum import StrEnum


class MoveReason(StrEnum):
    """Why an instance is relieved of requests (`relief`)."""

    DRAIN = "drain"
    EVACUATE = "evacuate"
    HEADROOM = "headroom"
    QUEUE_HEAD = "queue head"
    BALANCE = "balance"


class HelpReason(StrEnum):
    """Why requests leave so that a blocked one can go on."""

    BLOCKED_HEAD = "blocked head"
    BEHIND_HEAD = "behind a blocked head"
    ROOM = "room"
    BEFORE_EVICTION = "before eviction"
