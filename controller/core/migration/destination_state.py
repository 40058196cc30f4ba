"""Where the destination of a move may be; `destination` says what each is."""

from enum import StrEnum


class DestinationState(StrEnum):
    RESERVING = "reserving"
    RECEIVING = "receiving"
    HOLDING = "holding"
    APPLYING = "applying"
    FREEING = "freeing"
    COMMITTED = "committed"
    ABORTED = "aborted"


_D = DestinationState
OVER = (_D.COMMITTED, _D.ABORTED)
LEASED = (_D.RESERVING, _D.RECEIVING, _D.HOLDING)
