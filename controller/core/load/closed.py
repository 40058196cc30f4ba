"""Whether an instance gets new requests, whether moves go there, and whether moves begin there: one
state, which is the set of reasons against it. Without any the instance is open.

    reason       new requests   moves there   moves from there   holds
    not_serving  none           none          none               until its next process serves
    no_status    none           none          none               until that process reports
    stalled      none           none          none               until it reports again
    draining     none           none          begin              while claimed, or it says so
    cordoned     none           none          begin              until an operator takes it back
    reserved     go there       none          begin              while a held request waits for it
    cooling      go there       none          begin              a while after moves there failed

The instance's record has the first five (`dispatch.instance_record`), of which the spec decides the
last two (`operations.cluster_spec`). A new reason is a row: a member here, and whoever says that it
holds. The scheduler, rounds, moves by hand, forecasts, statuses and refusals read the rows.
"""

from enum import StrEnum


class Closed(StrEnum):
    """In rising order of what is left; the first one of several is the one to tell."""

    NOT_SERVING = "not_serving"
    NO_STATUS = "no_status"
    STALLED = "stalled"
    DRAINING = "draining"
    CORDONED = "cordoned"
    RESERVED = "reserved"
    COOLING = "cooling"

    @property
    def stops_requests(self) -> bool:
        """The instance gets no new requests."""
        return self not in (Closed.RESERVED, Closed.COOLING)

    @property
    def stops_sending(self) -> bool:
        """No move begins there."""
        return self in (Closed.NOT_SERVING, Closed.NO_STATUS, Closed.STALLED)

    @property
    def words(self) -> str:
        """Why, said of the instance."""
        return _WORDS[self]


_WORDS = {
    Closed.NOT_SERVING: "its process is gone",
    Closed.NO_STATUS: "it has not reported yet",
    Closed.STALLED: "it is stalled",
    Closed.DRAINING: "it is draining",
    Closed.CORDONED: "it is cordoned",
    Closed.RESERVED: "it is kept for a request that waits for room",
    Closed.COOLING: "it failed lately and cools",
}

Reasons = frozenset[Closed]
OPEN: Reasons = frozenset()
