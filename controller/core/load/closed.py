"""Whether an instance gets new requests, whether requests may move to it, and whether requests may
move away from it. This is one state: the set of reasons against the instance. An instance without
any reason is open.

    reason       holds
    not_serving  until its next process serves
    no_status    until that process reports
    stalled      until it reports again
    draining     while claimed, or while it says so
    cordoned     until an operator takes it back
    reserved     while a request waits for it at the controller
    cooling      a while after moves there failed

The instance's record has the first five (`admission.instance_pool`). Of these, `fleet.liveness`
decides on `stalled`. The spec (`fleet.cluster_spec`) decides on `draining` and `cordoned`, because
it has the drains and the operators' marks, such as a cordon. A new reason is a member here with its
row in `ROWS`, and code that says when it holds; for a mark that is an order
(`controller/api/operations/on_instances.py`). The scheduler, rounds, moves by hand, forecasts,
statuses and refusals ask what the row stops; none of them asks whether there is any reason at all.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Row(NamedTuple):
    """What a reason stops, and the phrase that describes the reason."""

    requests: bool
    arrivals: bool
    named_arrivals: bool
    sending: bool
    words: str


class Closed(StrEnum):
    """The reasons, in order: the reason that stops the most comes first. If several hold, people
    are told the first one."""

    NOT_SERVING = "not_serving"
    NO_STATUS = "no_status"
    STALLED = "stalled"
    DRAINING = "draining"
    CORDONED = "cordoned"
    RESERVED = "reserved"
    COOLING = "cooling"

    @property
    def stops_requests(self) -> bool:
        """Stops new requests to this instance."""
        return ROWS[self].requests

    @property
    def stops_arrivals(self) -> bool:
        """Stops moves to this instance that the cluster chooses."""
        return ROWS[self].arrivals

    @property
    def stops_named_arrivals(self) -> bool:
        """Stops also those moves for which an operator named this instance as the destination."""
        return ROWS[self].named_arrivals

    @property
    def stops_sending(self) -> bool:
        """Stops moves away from this instance."""
        return ROWS[self].sending

    @property
    def words(self) -> str:
        """The reason as a phrase about the instance, for example `it is draining`."""
        return ROWS[self].words


# fmt: off
ROWS = {
    #                       requests  arrivals  named  sending
    Closed.NOT_SERVING: Row(True,     True,     True,  True,  "its process is gone"),
    Closed.NO_STATUS:   Row(True,     True,     True,  True,  "it has not reported yet"),
    Closed.STALLED:     Row(True,     True,     True,  True,  "it is stalled"),
    Closed.DRAINING:    Row(True,     True,     True,  False, "it is draining"),
    Closed.CORDONED:    Row(True,     True,     True,  False, "it is cordoned"),
    Closed.RESERVED:    Row(False,    True,     False, False,
                            "it is kept for a request that waits for room"),
    Closed.COOLING:     Row(False,    True,     False, False, "it failed lately and cools"),
}
# fmt: on

Reasons = frozenset[Closed]
OPEN: Reasons = frozenset()


def stop_requests(reasons: Iterable[Closed]) -> bool:
    return any(each.stops_requests for each in reasons)


def stop_arrivals(reasons: Iterable[Closed]) -> bool:
    return any(each.stops_arrivals for each in reasons)


def stop_sending(reasons: Iterable[Closed]) -> bool:
    return any(each.stops_sending for each in reasons)
