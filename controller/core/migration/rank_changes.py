"""The frontend's machine of changed priorities: it tells the owner of each live request about a
changed rank until the owner confirms it.

The frontend counts the changes of each request's rank and tells the owner until the owner confirms
the last one. A new owner is told too, although the rank travels with a move. So no change is lost,
whichever instance dies or gives the request back, and an older change never replaces a newer one.

    TOLD        The owner was told, or there is none now, and the present owner has not confirmed.
    CONFIRMED   The present owner confirmed the last change, in the epoch that is read or later.

    event                  changes a state
    Changed                -> TOLD
    Sent                   -> TOLD: the request has an instance, the first one or anew
    Confirmed              TOLD -> CONFIRMED, if it is of the last change
    a new owner (Routes)   CONFIRMED -> TOLD
    Due                    TOLD: the owner is told again
    Ended                  forgotten
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.ownership import Epoch
from controller.core.migration.routes import Route, Routes, RouteState

TELL_EVERY_S = 0.1
"""An owner that has not confirmed a change is told again after this time."""


@dataclass(frozen=True, slots=True)
class Changed:
    request_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The request was sent to an instance, perhaps with the rank that it had before the latest
    change."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """An instance (id, incarnation) has the change of this number, and has the request in
    `epoch`."""

    request_id: str
    number: int
    by: tuple[str, int]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Due:
    """TELL_EVERY_S have passed. The event comes while `has_changes`."""


@dataclass(frozen=True, slots=True)
class Ended:
    request_id: str


Event = Changed | Sent | Confirmed | Due | Ended


@dataclass(frozen=True, slots=True)
class TellRank:
    """Tell `owner` the rank; `number` is the number of the change."""

    owner: InstanceRef
    request_id: str
    rank: int
    number: int


@dataclass(slots=True)
class _Change:
    rank: int
    number: int
    confirmed_by: tuple[str, int] | None = None
    """The (instance, incarnation) that confirmed this change."""
    confirmed_epoch: Epoch | None = None
    """The epoch in which it confirmed the change; None exactly if no instance has confirmed it."""


class RankChanges:
    """The machine of changed priorities. `routes` knows who owns each request; this machine only
    reads it."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._changes: dict[str, _Change] = {}
        """By request id, the latest change of each live request whose rank was ever changed."""

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def is_confirmed(self, request_id: str) -> bool:
        """Whether the present owner has confirmed the latest change of the rank; also true if the
        rank never changed. An owner that took the request back may be in a later hop than the
        frontend knows from its first token."""
        change, route = self._changes.get(request_id), self._routes.live.get(request_id)
        return change is None or (route is not None and _is_confirmed(change, route))

    def handle(self, event: Event) -> Sequence[TellRank]:
        """Takes one event in; returns which owners to tell. Mutates."""
        match event:
            case Changed(request_id, rank):
                before = self._changes.get(request_id)
                number = 1 if before is None else before.number + 1
                self._changes[request_id] = _Change(rank, number)
                return self._told(request_id)
            case Sent(request_id):
                return self._told(request_id)
            case Confirmed(request_id, number, by, epoch):
                change = self._changes.get(request_id)
                if change is not None and change.number == number:
                    change.confirmed_by, change.confirmed_epoch = by, epoch
            case Due():
                unconfirmed = (each for each in self._changes if not self.is_confirmed(each))
                return [told for request_id in unconfirmed for told in self._told(request_id)]
            case Ended(request_id):
                self._changes.pop(request_id, None)
        return ()

    def _told(self, request_id: str) -> Sequence[TellRank]:
        """The instruction to tell the owner. There is none if the rank never changed, or if nobody
        owns the request now."""
        change = self._changes.get(request_id)
        if change is None or self._routes.state(request_id) in (RouteState.OVER, RouteState.LOST):
            return ()
        owner = self._routes.live[request_id].ownership.owner
        return [TellRank(owner, request_id, change.rank, change.number)]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for change in self._changes.values():
            assert change.number >= 1
            assert (change.confirmed_by is None) == (change.confirmed_epoch is None)


def _is_confirmed(change: _Change, route: Route) -> bool:
    ownership = route.ownership
    return (
        change.confirmed_by == ownership.owner.key
        and change.confirmed_epoch is not None
        and change.confirmed_epoch >= ownership.order.epoch
    )
