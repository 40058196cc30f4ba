"""The frontend's machine of admission: it asks the controller where each new request goes until the
controller answers.

While the controller is silent the frontend decides alone by the last known statuses
(scheduler-bypass, paper section 5), so that a dead controller fails no request. It decides at once
for each request; with late binding, where many requests may wait, they go as fast as they fit.
While it knows no instance that could take a request, the request waits as it would at the
controller; the next instance usually comes within seconds.

    ASKING     The controller is asked. The question may get lost, or the controller where the
               request waited, so it is asked again from time to time.
    PAUSING    The answer named an instance that is not listed, because it died or starts. The
               controller is asked again after a while, when both sides know that.
    ANSWERED   An answer has come. The task that waits for the answer takes it next; only then it
               is checked whether the answer's instance is still listed.
    OVER       The request is not asked for, or not any more.

    state             event          next       instructions
    OVER              Asked          ASKING     AskController, WakeAt
                                     ANSWERED   Resume, if its API key's limit refuses it
    ASKING            Woken          ASKING     AskController, WakeAt
                                     ANSWERED   Resume, if the frontend decides alone
    ASKING, PAUSING   Answered       ANSWERED   Resume
    ANSWERED          Resumed        OVER       Use or Refuse
                                     PAUSING    WakeAt, if the instance is not listed
                                     ASKING     AskController, WakeAt, if it decides alone and there
                                                is none any more
    PAUSING           Woken          ASKING     AskController, WakeAt
    any but OVER      Aborted        OVER       Resume; Withdraw, unless it was ANSWERED
    ASKING, PAUSING   RankChanged    the same   AskController: a held request gets its new place

A controller's dispatch that is not used is always given back, as the controller would count its
request as on its way for ever: TellUnused, at once or when the next directory lists the instance.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from controller.core.admission.api_keys import Refusal
from controller.core.load.freeness import Room
from controller.core.load.snapshot import DemandFor, InstanceRef, InstanceSnapshot, one_block_each
from controller.core.scheduler_events import (
    Dispatch,
    DispatchCancelled,
    DispatchRequested,
    Reject,
    RejectCode,
)
from controller.core.value import value

# A live controller answers in well under 10 ms. If it lets a request wait on purpose, it keeps
# sending directories. If neither answers nor directories come for so long, the frontend bypasses
# the controller.
CONTROLLER_SILENCE_S = 1.0
# With late binding thousands of requests may wait for minutes. A new controller is asked about all
# of them at once. This interval is only for questions and answers that got lost.
MAX_ASK_AGAIN_S = 8.0
BYPASS_EVERY_S = 0.05
AT_LEAST_EVERY_S = 1.0
"""After this time the first waiting request is sent even if it does not seem to fit, because a
frontend does not see when other frontends' requests end."""
# After a dispatch to an instance that is not listed, the controller is asked again after each of
# these times: both sides soon know of the death, or of the start.
GONE_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8)
ALONE = 0
"""The sequence number of a dispatch that the frontend chose by itself: no controller counts the
dispatch."""


class AskState(StrEnum):
    ASKING = "asking"
    PAUSING = "pausing"
    ANSWERED = "answered"
    OVER = "over"


# -- events --------------------------------------------------------------------------------


@value
class Asked:
    """A new request, or one whose instance died, needs an instance. It must not be asked for
    already."""

    request: DispatchRequested


@value
class Answered:
    answer: Dispatch | Reject


@value
class Resumed:
    """The task that waits for the answer takes it now."""

    request_id: str


@value
class Woken:
    """The time of this WakeAt has come."""

    request_id: str
    time_s: float


@value
class Aborted:
    """The request is over, or its client left."""

    request_id: str


@value
class RankChanged:
    request_id: str
    rank: int


@value
class ControllerHeard:
    """The controller sent its list of instances; `Known` has the list already. `controller`: names
    the controller's process. `room_to_grow_tokens`: the setting of that name with late binding;
    None without. `hold_timeout_s`: how long a request waits while no instance could take it."""

    controller: str
    num_frontends: int
    room_to_grow_tokens: int | None
    takes_requests: bool
    hold_timeout_s: float


@value
class Unused:
    """This dispatch came too late: its request does not need it any more."""

    dispatch: Dispatch


@value
class BypassDue:
    """The time of BypassAt has come."""


Event = (
    Asked
    | Answered
    | Resumed
    | Woken
    | Aborted
    | RankChanged
    | ControllerHeard
    | Unused
    | BypassDue
)


# -- instructions --------------------------------------------------------------------------


@value
class AskController:
    request: DispatchRequested


@value
class Withdraw:
    """Tell the controller that the request needs no instance any more."""

    cancelled: DispatchCancelled


@value
class TellUnused:
    """Tell the instance that no request comes with this dispatch."""

    instance: InstanceRef
    dispatch: Dispatch


@value
class TellKeysAgain:
    """Report again what API keys use, because a new controller does not know it yet."""


@value
class WakeAt:
    request_id: str
    time_s: float


@value
class BypassAt:
    time_s: float


@value
class Resume:
    """Wake the task that waits for this request's answer. The task then sends Resumed."""

    request_id: str


@value
class Use:
    """Send the request by this dispatch, to an instance that is listed."""

    dispatch: Dispatch


@value
class Refuse:
    """End the request with an error: the cluster does not take it."""

    code: RejectCode
    retry_after_s: int = 1


Instruction = (
    AskController
    | Withdraw
    | TellUnused
    | TellKeysAgain
    | WakeAt
    | BypassAt
    | Resume
    | Use
    | Refuse
)


# -- what it looks at ----------------------------------------------------------------------


class Known(Protocol):
    """The instances that the frontend knows."""

    def ref(self, instance_id: str, incarnation: int) -> InstanceRef | None:
        """The instance's reference; None if the instance is not listed, or is listed with a
        different incarnation."""

    def snapshots(self) -> Iterable[InstanceSnapshot]:
        """The last snapshots of the instances."""

    def open_snapshots(self) -> Sequence[InstanceSnapshot]:
        """The last snapshots of the instances that get new requests."""


class OwnRequests(Protocol):
    """The frontend's own requests that have an instance."""

    def num_by_owner(self) -> Mapping[str, int]:
        """How many of the frontend's own requests each instance has, by instance id."""

    def blocks_by_owner(self, demand_for: DemandFor) -> Mapping[str, int]:
        """How many blocks the frontend's own requests take on each instance, by instance id."""


RefusalAlone = Callable[[DispatchRequested, int], Refusal | None]
"""Called with a request and the number of frontends. Returns why this frontend refuses the request
while there is no controller; None if it does not refuse it."""


# -- the machine ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    request: DispatchRequested
    since_s: float
    state: AskState = AskState.ASKING
    wait_s: float = CONTROLLER_SILENCE_S
    """While ASKING: the time between the last question and the next one."""
    wake_s: float = 0.0
    """While ASKING or PAUSING: when the next question is due."""
    answer: Dispatch | Reject | None = None
    """Set only in the state ANSWERED. In the state ANSWERED, None means that the frontend chooses
    the instance itself. It chooses only when it is about to send the request, because each request
    that it has sent affects its next choice."""
    num_gone: int = 0
    """How many answers so far named an instance that is not listed. A pause follows each of them.
    After the last pause of GONE_WAITS_S the next such answer is not counted: the request is
    refused."""

    @property
    def is_answered(self) -> bool:
        return self.state is AskState.ANSWERED


class Asking:
    def __init__(self, known: Known, own: OwnRequests, refusal_alone: RefusalAlone) -> None:
        self._known = known
        self._own = own
        self._refusal_alone = refusal_alone
        self._asked: dict[str, _Asked] = {}
        """The requests that are asked for, by request id, in the order in which they came; none is
        OVER."""
        self._unused: list[Dispatch] = []
        """Dispatches to instances that are not listed; the next directory tells whether they are
        alive."""
        self._heard = ControllerHeard("", 1, None, takes_requests=True, hold_timeout_s=30.0)
        self._heard_s = float("-inf")
        self._open_s = float("-inf")
        """When an instance could last take requests, as far as this frontend knows."""
        self._is_bypassing = False
        """Whether a BypassDue will come. With late binding, True while any request waits for longer
        than an answer takes."""
        self._own_blocks_then: Mapping[str, int] = {}
        """How much of each instance the frontend's requests took when the controller was heard
        last."""
        self._release: PacedRelease | None = None
        """Set while the controller is silent, with late binding only; else None."""

    # -- questions -----------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        """The ids of the requests about which the controller is asked."""
        return iter(self._asked)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._asked

    def state(self, request_id: str) -> AskState:
        asked = self._asked.get(request_id)
        return AskState.OVER if asked is None else asked.state

    def why_not_ready(self, now_s: float) -> str:
        """Why no new request would get an instance; empty if one would. While the controller is
        silent, the last known instances take requests."""
        if self._known.open_snapshots() and (self._heard.takes_requests or self._is_silent(now_s)):
            return ""
        return "no instance takes new requests now"

    def _is_silent(self, now_s: float) -> bool:
        return now_s - self._heard_s > CONTROLLER_SILENCE_S

    # -- events --------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case Asked(request):
                return self._ask_first(request, now_s)
            case Answered(answer):
                return self._answered(answer)
            case Resumed(request_id):
                return self._resumed(request_id, now_s)
            case Woken(request_id, time_s):
                asked = self._asked.get(request_id)
                if asked is None or asked.is_answered or asked.wake_s != time_s:
                    return []  # the wake-up of an earlier question
                return self._woken(asked, now_s)
            case Aborted(request_id):
                return self._aborted(request_id)
            case RankChanged(request_id, rank):
                asked = self._asked.get(request_id)
                if asked is None or asked.is_answered:
                    return []
                asked.request = replace(asked.request, rank=rank)
                return [AskController(asked.request)]
            case ControllerHeard():
                return self._controller_heard(event, now_s)
            case Unused(dispatch):
                return self._give_back(dispatch)
            case BypassDue():
                return self._bypass(now_s)

    def _ask_first(self, request: DispatchRequested, now_s: float) -> list[Instruction]:
        asked = self._asked[request.request_id] = _Asked(request, now_s)
        if self._is_silent(now_s) and not request.replayed:
            refusal = self._refusal_alone(request, self._heard.num_frontends)
            if refusal is not None:
                return [_answer(asked, _reject(request, refusal.code, refusal.retry_after_s))]
        return self._ask(asked, CONTROLLER_SILENCE_S, now_s)

    def _ask(self, asked: _Asked, wait_s: float, now_s: float) -> list[Instruction]:
        asked.state, asked.wait_s = AskState.ASKING, wait_s
        return [AskController(asked.request), _wake(asked, now_s + wait_s)]

    def _woken(self, asked: _Asked, now_s: float) -> list[Instruction]:
        if asked.state is AskState.PAUSING:
            return self._ask(asked, CONTROLLER_SILENCE_S, now_s)
        if self._heard.room_to_grow_tokens is not None:
            again = self._ask(asked, min(2 * asked.wait_s, MAX_ASK_AGAIN_S), now_s)
            return again if self._is_bypassing else [*again, *self._bypass(now_s)]
        if self._is_silent(now_s):
            if self._known.open_snapshots():
                return [_answer(asked, None)]
            if asked.since_s <= self._overdue_since_s(now_s):
                return [_answer(asked, _reject(asked.request, RejectCode.UNAVAILABLE))]
        return self._ask(asked, asked.wait_s, now_s)

    def _answered(self, answer: Dispatch | Reject) -> list[Instruction]:
        asked = self._asked.get(answer.request_id)
        if asked is not None and not asked.is_answered:
            return [_answer(asked, answer)]
        return self._give_back(answer)

    def _resumed(self, request_id: str, now_s: float) -> list[Instruction]:
        asked = self._asked.get(request_id)
        if asked is None or not asked.is_answered:
            return []
        answer, asked.answer = asked.answer, None
        if answer is None:
            chosen = self._choose()
            if chosen is None:
                return self._ask(asked, asked.wait_s, now_s)
            answer = _alone(asked.request, chosen)
        if isinstance(answer, Reject):
            del self._asked[request_id]
            return [Refuse(answer.code, answer.retry_after_s)]
        if self._known.ref(answer.instance_id, answer.incarnation) is not None:
            del self._asked[request_id]
            return [Use(answer)]
        # the instance died in between, or this frontend believes so
        given_back = self._give_back(answer)
        if asked.num_gone == len(GONE_WAITS_S):
            del self._asked[request_id]
            return [*given_back, Refuse(RejectCode.UNAVAILABLE)]
        wait_s = GONE_WAITS_S[asked.num_gone]
        asked.state, asked.num_gone = AskState.PAUSING, asked.num_gone + 1
        return [*given_back, _wake(asked, now_s + wait_s)]

    def _aborted(self, request_id: str) -> list[Instruction]:
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return []
        if asked.is_answered:
            given_back = self._give_back(asked.answer) if asked.answer is not None else []
            return [*given_back, Resume(request_id)]
        cancelled = DispatchCancelled(request_id, asked.request.frontend_id)
        return [Withdraw(cancelled), Resume(request_id)]

    def _controller_heard(self, heard: ControllerHeard, now_s: float) -> list[Instruction]:
        told: list[Instruction] = []
        is_another, self._heard = heard.controller != self._heard.controller, heard
        self._heard_s = now_s
        if heard.takes_requests:
            self._open_s = now_s
        if heard.room_to_grow_tokens is not None:
            self._release = None
            self._own_blocks_then = self._own.blocks_by_owner(self._demand_for())
        if is_another:
            told.append(TellKeysAgain())
            for asked in self._asked.values():
                if not asked.is_answered:
                    asked.request = _without_key_use(asked.request)
                    told.append(AskController(asked.request))
        unused, self._unused = self._unused, []
        for dispatch in unused:
            told += self._tell_unused(dispatch)
        return told

    # -- what is not used ----------------------------------------------------------------

    def _give_back(self, answer: Dispatch | Reject) -> list[Instruction]:
        if isinstance(answer, Reject) or answer.seq == ALONE:
            return []
        told = self._tell_unused(answer)
        if not told:
            self._unused.append(answer)
        return told

    def _tell_unused(self, dispatch: Dispatch) -> list[Instruction]:
        """Gives the dispatch back to its instance; nothing if that incarnation is not listed."""
        instance = self._known.ref(dispatch.instance_id, dispatch.incarnation)
        return [] if instance is None else [TellUnused(instance, dispatch)]

    # -- without a controller ------------------------------------------------------------

    def _choose(self) -> InstanceSnapshot | None:
        """The instance with the fewest own requests, then the most free blocks, then the first id.
        Own requests count first: the known freeness is old, and by it alone all requests would go
        to one instance. None if no instance is open."""
        num_own = self._own.num_by_owner()
        return min(
            self._open_snapshots(),
            key=lambda s: (num_own.get(s.instance_id, 0), -s.num_free_blocks, s.instance_id),
            default=None,
        )

    def _open_snapshots(self) -> Sequence[InstanceSnapshot]:
        """Without attached servers while there is any other, as not every request can go there."""
        found = self._known.open_snapshots()
        return [each for each in found if not each.is_attached] or found

    def _overdue_since_s(self, now_s: float) -> float:
        """The latest beginning of a wait that is too long: requests that have waited since this
        time or longer are refused, as the controller would refuse them. It is -inf (refuse none) if
        an instance could take requests within `hold_timeout_s`."""
        if self._known.open_snapshots():
            self._open_s = now_s
        overdue_s = now_s - self._heard.hold_timeout_s
        return overdue_s if self._open_s <= overdue_s else float("-inf")

    def _bypass(self, now_s: float) -> list[Instruction]:
        """Decides, with late binding, where the waiting requests go while the controller is silent.
        This goes on as long as the controller is asked about any request."""
        self._is_bypassing = bool(self._asked)
        if not self._asked:
            return []
        told: list[Instruction] = []
        if self._is_silent(now_s):
            for dispatch in self._decide_for_all(now_s):
                told.append(_answer(self._asked[dispatch.request_id], dispatch))
            overdue_since_s = self._overdue_since_s(now_s)
            for asked in self._asked.values():
                if asked.since_s <= overdue_since_s and not asked.is_answered:
                    told.append(_answer(asked, _reject(asked.request, RejectCode.UNAVAILABLE)))
        return [*told, BypassAt(now_s + BYPASS_EVERY_S)]

    def _decide_for_all(self, now_s: float) -> list[Dispatch]:
        """The dispatches of the requests that go now, in order."""
        waiting = {r: asked.request for r, asked in self._asked.items() if not asked.is_answered}
        open_ = {s.instance_id: s for s in self._open_snapshots()}
        if not open_:
            return []
        if self._release is None:
            self._release = PacedRelease(
                self._known.snapshots(),
                self._own_blocks_then,
                self._heard.num_frontends,
                self._heard.room_to_grow_tokens or 0,
                now_s,
            )
        own_blocks = self._own.blocks_by_owner(self._demand_for())
        due = self._release.due(waiting.values(), own_blocks, open_, now_s)
        return [_alone(waiting[r], open_[instance_id]) for r, instance_id in due]

    def _demand_for(self) -> DemandFor:
        return next((s.demand_for for s in self._known.snapshots()), one_block_each)

    # ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for request_id, asked in self._asked.items():
            assert request_id == asked.request.request_id
            assert asked.state is not AskState.OVER
            assert asked.is_answered or asked.answer is None
            assert asked.num_gone <= len(GONE_WAITS_S)
            assert CONTROLLER_SILENCE_S <= asked.wait_s <= MAX_ASK_AGAIN_S
            is_late = asked.wait_s > CONTROLLER_SILENCE_S
            assert self._is_bypassing or not is_late, "nobody decides if the controller is silent"


def _answer(asked: _Asked, answer: Dispatch | Reject | None) -> Resume:
    asked.state, asked.answer = AskState.ANSWERED, answer
    return Resume(asked.request.request_id)


def _wake(asked: _Asked, time_s: float) -> WakeAt:
    asked.wake_s = time_s
    return WakeAt(asked.request.request_id, time_s)


def _without_key_use(request: DispatchRequested) -> DispatchRequested:
    """The request in the form in which a new controller, which has not heard of it yet, is asked
    about it. No limit of the key applies to it: the earlier controller may have accepted the
    request already, and the use of the key that the request carries is outdated."""
    return replace(request, num_live_of_key=0, num_tokens_of_key=0)


def _reject(request: DispatchRequested, code: RejectCode, retry_after_s: int = 1) -> Reject:
    return Reject(request.request_id, request.frontend_id, code, retry_after_s)


def _alone(request: DispatchRequested, chosen: InstanceSnapshot) -> Dispatch:
    return Dispatch(
        request.request_id, request.frontend_id, chosen.instance_id, chosen.incarnation, ALONE
    )


# -- without a controller, with late binding -----------------------------------------------


class PacedRelease:
    """What a frontend does with requests that waited at the controller for room, once the
    controller is
    gone: they go in order, and only as far as the last known free blocks allow.

    If all went at once, they would fill the queues of instances on which they do not fit, which is
    what late binding is there to avoid. A frontend knows the instances' last statuses and its own
    requests: each of its own requests that ends makes room again. Each frontend uses only its share
    of the room that was free.

    `snapshots`: the last known snapshots. `own_blocks`: by instance, how many blocks this
    frontend's requests took when the snapshots were taken. `room_to_grow_tokens`: the controller's
    last setting. Times are by the caller's clock.
    """

    def __init__(
        self,
        snapshots: Iterable[InstanceSnapshot],
        own_blocks: Mapping[str, int],
        num_frontends: int,
        room_to_grow_tokens: int,
        now_s: float,
    ) -> None:
        self._demand_for = one_block_each
        self._room: dict[str, int] = {}
        """How many blocks this frontend's requests may take on each instance, by instance id."""
        for snapshot in snapshots:
            self._demand_for = snapshot.demand_for
            room = Room.of(snapshot, room_to_grow_tokens)
            share = max(0, room.spare_blocks) // max(1, num_frontends)
            self._room[snapshot.instance_id] = share + own_blocks.get(snapshot.instance_id, 0)
        self._released_s = now_s

    def due(
        self,
        waiting: Iterable[DispatchRequested],
        own_blocks: Mapping[str, int],
        alive: Iterable[str],
        now_s: float,
    ) -> list[tuple[str, str]]:
        """(request id, instance id) of the requests that go now, in order. `own_blocks`: the blocks
        that this frontend's requests take now. `alive`: the instances that may get requests.
        Mutates."""
        free = {i: self._room.get(i, 0) - own_blocks.get(i, 0) for i in alive}
        found: list[tuple[str, str]] = []
        if not free:
            return found
        for each in sorted(waiting, key=lambda each: each.order):
            demand_blocks = self._demand_for(each.num_prompt_tokens)
            freest = max(sorted(free), key=free.__getitem__)
            overdue = now_s - self._released_s >= AT_LEAST_EVERY_S
            if free[freest] < demand_blocks and not overdue:
                break
            free[freest] -= demand_blocks
            self._released_s = now_s
            found.append((each.request_id, freest))
        return found
