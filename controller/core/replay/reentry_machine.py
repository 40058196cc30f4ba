"""The instance's machine of replays: requests that were lost with another instance come to this
instance in a later attempt.

A request with outputs enters as an evicted one: it waits in the engine's queue, and its prompt and
outputs are computed together once it is admitted. Before that, its grammar is compiled and a seeded
request's generator is drawn forward, while the engine runs its steps.

    PREPARING   The grammar and the generator are made.
    ARRIVING    They are made. An earlier attempt may be moving to here; its blocks are free once
                its last stage has come in.
    ENTERING    The engine takes the request between two steps.
    OVER        The engine has it, or it was refused, aborted, or replaced by a later attempt.

    state                  event         next        instructions
    OVER                   Came          PREPARING   Drop what is here of it; Prepare
    PREPARING, ARRIVING    Prepared,     ARRIVING    WakeAt, while a move to here is under way
                           Woken         ENTERING    EndEarlier, PutIn, Account
    PREPARING              NotPrepared   OVER        Refuse, Account
    ENTERING               Entered       OVER        Begin, or Refuse if the engine does not take it
    PREPARING, ARRIVING    Aborted       OVER        CallOff, Account
    ENTERING               Aborted       OVER        CallOff

If an attempt comes while an earlier one enters, the earlier one is aborted first. Account comes
once for each dispatch, and the next status counts the dispatch then. Events of an entry that is
over change nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from controller.core.migration.ownership import Epoch

ARRIVING_S = 0.01
"""The time between two looks at a move to this instance that is under way."""


class EntryState(StrEnum):
    PREPARING = "preparing"
    ARRIVING = "arriving"
    ENTERING = "entering"
    OVER = "over"


# -- events. `entry` is the number that the runner gave to this arrival -------------------------


@dataclass(frozen=True, slots=True)
class Came:
    entry: int
    request_id: str
    attempt: int
    frontend: str
    """The address of the request's frontend."""
    dispatch_seq: int


@dataclass(frozen=True, slots=True)
class Prepared:
    entry: int
    is_arriving: bool
    """Whether an earlier attempt of the request is still being moved to this instance."""


@dataclass(frozen=True, slots=True)
class NotPrepared:
    """The entry could not be prepared. `retryable`: another instance may be able to prepare it."""

    entry: int
    why: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Woken:
    """The time of WakeAt has come."""

    entry: int
    is_arriving: bool


@dataclass(frozen=True, slots=True)
class Entered:
    """The engine's answer to PutIn. `why_not`: why the engine does not take the request; None if it
    has taken it."""

    entry: int
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Aborted:
    """These requests are over, whatever the states of their entries are."""

    request_ids: Collection[str]


Event = Came | Prepared | NotPrepared | Woken | Entered | Aborted


# -- instructions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drop:
    """Abort the request in the engine and in moves."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the grammar and the generator for the entry. The answer is Prepared or NotPrepared."""

    entry: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    entry: int
    time_s: float


@dataclass(frozen=True, slots=True)
class EndEarlier:
    """End the request if it has meanwhile moved to this instance, in any attempt up to the attempt
    of `epoch`."""

    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PutIn:
    """Have the engine take the request before its next step. The answer is Entered."""

    entry: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The request runs on this instance: its outputs and moves are looked after from now on."""

    entry: int


@dataclass(frozen=True, slots=True)
class Refuse:
    entry: int
    why: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class CallOff:
    """Stop making the grammar and the generator, which nobody needs any more."""

    entry: int


@dataclass(frozen=True, slots=True)
class Account:
    dispatch_seq: int


Instruction = Drop | Prepare | WakeAt | EndEarlier | PutIn | Begin | Refuse | CallOff | Account


# -- the machine -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    came: Came
    state: EntryState = EntryState.PREPARING
    is_accounted: bool = False
    """Whether Account was instructed: true exactly while ENTERING."""


class ReentryMachine:
    def __init__(self) -> None:
        self._by_number: dict[int, _Entry] = {}
        """The entries that are not over, by their numbers."""
        self._by_request: dict[str, _Entry] = {}
        """The same entries by request id; a request has at most one entry at a time."""

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(self._by_request)

    def of_frontend(self, address: str) -> list[str]:
        return [r for r, entry in self._by_request.items() if entry.came.frontend == address]

    def state(self, number: int) -> EntryState:
        entry = self._by_number.get(number)
        return EntryState.OVER if entry is None else entry.state

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case Came(number, request_id):
                told = self._abort(request_id)
                self._by_number[number] = self._by_request[request_id] = _Entry(event)
                return [*told, Drop(request_id), Prepare(number)]
            case Aborted(request_ids):
                return [told for r in request_ids for told in self._abort(r)]
        entry = self._by_number.get(event.entry)
        if entry is None:
            return []
        match event, entry.state:
            case (Prepared(number, is_arriving), EntryState.PREPARING) | (
                Woken(number, is_arriving),
                EntryState.ARRIVING,
            ):
                if is_arriving:
                    entry.state = EntryState.ARRIVING
                    return [WakeAt(number, now_s + ARRIVING_S)]
                return self._put_in(entry)
            case NotPrepared(number, why, retryable), EntryState.PREPARING:
                self._end(entry)
                return [Refuse(number, why, retryable), Account(entry.came.dispatch_seq)]
            case Entered(number, why_not), EntryState.ENTERING:
                self._end(entry)
                return [Begin(number) if why_not is None else Refuse(number, why_not)]
        return []

    def _put_in(self, entry: _Entry) -> list[Instruction]:
        came = entry.came
        entry.state, entry.is_accounted = EntryState.ENTERING, True
        return [
            EndEarlier(came.request_id, Epoch(came.attempt - 1)),
            PutIn(came.entry),
            Account(came.dispatch_seq),
        ]

    def _abort(self, request_id: str) -> list[Instruction]:
        entry = self._by_request.get(request_id)
        if entry is None:
            return []
        self._end(entry)
        told: list[Instruction] = [CallOff(entry.came.entry)]
        return told if entry.is_accounted else [*told, Account(entry.came.dispatch_seq)]

    def _end(self, entry: _Entry) -> None:
        del self._by_number[entry.came.entry], self._by_request[entry.came.request_id]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert len(self._by_number) == len(self._by_request)
        for number, entry in self._by_number.items():
            assert number == entry.came.entry
            assert self._by_request[entry.came.request_id] is entry
            assert entry.state is not EntryState.OVER
            assert entry.is_accounted == (entry.state is EntryState.ENTERING)
