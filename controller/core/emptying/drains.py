"""The machine of drains: it empties every instance that somebody claims, until the claims are met
or taken back.

    draining     the instance has requests left, or requests may be on their way to it
    drained      the instance reported that it takes no requests and has none, and each frontend
                 answered that it has no request on the instance; if a request comes anyway, the
                 instance drains again
    restarting   its process was told to end, or another process took its place

What is done with a drained instance, and at a deadline, is up to the strongest claim (`claims`):

                 drained                      at its deadline, not drained
    SlowDrain    -                            (has none)
    Drain        -                            told once, and it goes on; or taken back (abort)
    Restart      the process is replaced,     as Drain; a process that was told to end has no
                 then the claim is over       deadline any more
    Remove       ended, then forgotten        as Drain
    Evacuate     ended, then forgotten        ended, then forgotten, whatever requests it has

A process that is to end stays up to `warm_s` of its claim longer once it is drained, but not beyond
the deadline: it hands its cached prompts over to the other instances, which also fetch from it. It
stays no longer once nothing is left to hand over.

Claims are on disk before this machine hears of them, so a controller that starts again goes on with
them (`Resumed`); only the number of requests that have moved is lost. A process is ended before its
instance is forgotten: if a controller dies in between, the next one starts an empty instance and
removes it. If the instance were forgotten first, a process that nobody knows could go on running.
If a step fails for one instance, it is tried again after a while, and other instances are not
affected.

This machine neither stops dispatch nor begins moves. The spec closes a claimed instance
(`ClusterSpec.closed`). An instance that drains counts as the least free of all, so it is a source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.core.emptying.claims import (
    Claim,
    Claims,
    Evacuate,
    Restart,
    newest,
    why_claimed,
)
from controller.core.record.event_log import EventKind, Number

CHECK_EVERY_S = 0.3
"""The time between two rounds of asking the frontends whether any request is left."""
RETRY_S = 1.0
"""The pause after a failure, for example if a disk is full or a process cannot be ended."""
REPLACE_AGAIN_S = 10.0
"""If a process that was to be replaced still runs after this time, it is told to end once more."""
REPLAY_EVERY_S = 1.0
"""The time between two looks for requests that cannot move and are to be replayed."""
HEARD_WITHIN_S = 10.0
"""Members say Hello every second; a member that has said nothing for this long counts as not
existing."""
_NAMED_IN_EVENT = 5


class DrainState(StrEnum):
    DRAINING = "draining"
    DRAINED = "drained"
    """No request is left on the instance, and none is on its way to it."""
    RESTARTING = "restarting"
    """The instance's process was ended, and another one starts."""
    ACTIVE = "active"


# -- what is known of an instance -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remainder:
    """The requests that an instance still has by its last status. `num_awaited`: requests that were
    dispatched before the drain and that no status has counted yet."""

    num_running: int = 0
    num_queued: int = 0
    num_awaited: int = 0
    num_moves_in: int = 0
    num_moves_out: int = 0

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_queued + self.num_awaited

    @property
    def nothing(self) -> bool:
        return not (self.num_requests or self.num_moves_in or self.num_moves_out)


@dataclass(frozen=True, slots=True)
class InstanceProcess:
    """The instance's last process that the controller heard of. `incarnation`: 0 if this controller
    has not numbered the process yet, or not heard of it. `detail`: what the process says about
    itself."""

    nonce: str
    alive: bool
    serving: bool
    failed: bool
    incarnation: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the controller sees of an instance. `process`: None if the cluster has no such instance.
    `left`: the requests that are left, by the last status of a process that serves; None if the
    process has not reported. `says_draining`: whether this status says that the instance drains."""

    process: InstanceProcess | None = None
    left: Remainder | None = None
    says_draining: bool = False

    @property
    def takes_nothing(self) -> bool:
        """Whether the instance reported that it drains, or has no process that could take
        requests."""
        return self.process is None or not self.process.serving or self.says_draining


NOT_THERE = Seen()


# -- events -----------------------------------------------------------------------------------
# `epoch_s`: the moment in seconds since the epoch, as in claims.


@dataclass(frozen=True, slots=True)
class Resumed:
    """The controller begins with these claims, before it has heard from any member."""

    drains: Mapping[str, Claims]


@dataclass(frozen=True, slots=True)
class ClaimsChanged:
    """All claims from now on, which are on disk. `seen`: by id, each instance that is claimed now
    or was claimed before. `why` and `actor` are for drains that end."""

    drains: Mapping[str, Claims]
    seen: Mapping[str, Seen]
    epoch_s: float
    why: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Ticked:
    """It is time to look at one instance. `frontends_heard`: whether the controller has heard from
    every frontend of the cluster."""

    instance_id: str
    seen: Seen
    frontends_heard: bool
    epoch_s: float


@dataclass(frozen=True, slots=True)
class FrontendsAnswered:
    """The frontends' answer to `AskFrontends`. `empty`: every frontend answered, and none has a
    request on the draining instance. `seen`: the state of that instance now."""

    instance_id: str
    drain_id: str
    empty: bool
    seen: Seen
    epoch_s: float


@dataclass(frozen=True, slots=True)
class StayersFound:
    """The answer to `FindStayers`: how many requests are left, and which of them cannot move, each
    as `ID CODE`. `replayable`: the requests for which other instances have room, if they are
    replayed (`forecast.to_replay`)."""

    instance_id: str
    drain_id: str
    num_left: int
    stays: tuple[str, ...]
    epoch_s: float
    replayable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """`AskFrontends` or `FindStayers` failed, for any reason."""

    instance_id: str
    drain_id: str


@dataclass(frozen=True, slots=True)
class MoveEnded:
    source_id: str
    outcome: str


@dataclass(frozen=True, slots=True)
class BeganServing:
    instance_id: str
    epoch_s: float


@dataclass(frozen=True, slots=True)
class Replaced:
    """The process with this nonce was told to end, and the next process starts."""

    instance_id: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Removed:
    """The instance's process was ended, and the instance is not in the spec any more."""

    instance_id: str
    num_left: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The handover of this process's cached prompts is over. `complete`: nothing is left there that
    another instance could use. The others have `num_prompts` of the prompts, and have copied
    `num_tokens` tokens of them in `took_s`."""

    instance_id: str
    incarnation: int
    drain_id: str
    num_prompts: int
    num_tokens: int
    complete: bool
    took_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """An instruction of a tick for this instance could not be carried out."""

    instance_id: str


Event = (
    Resumed
    | ClaimsChanged
    | Ticked
    | FrontendsAnswered
    | StayersFound
    | Unanswered
    | MoveEnded
    | BeganServing
    | Replaced
    | Removed
    | HandedOver
    | Failed
)


# -- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfInstance:
    instance_id: str


@dataclass(frozen=True, slots=True)
class TellInstance(OfInstance):
    """Tell the instance whether it drains. `leaves_in_s`: how long until its process will be ended,
    whatever requests it still has."""

    draining: bool
    leaves_in_s: float | None


@dataclass(frozen=True, slots=True)
class AskFrontends(OfInstance):
    """Ask the frontends whether they still have a request on the draining instance: the last tokens
    of a request may not have reached its frontend yet."""

    drain_id: str


@dataclass(frozen=True, slots=True)
class FindStayers(OfInstance):
    """Find the requests that are left on the draining instance and cannot move."""

    drain_id: str


@dataclass(frozen=True, slots=True)
class ReplayElsewhere(OfInstance):
    """Have the frontends take these requests from the instance and replay them elsewhere."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandOver(OfInstance):
    """Order the instance to hand its cached prompts over to those that may get requests. HandedOver
    follows, unless the process ends."""

    drain_id: str
    within_s: float


@dataclass(frozen=True, slots=True)
class TakeBack(OfInstance):
    """Take back the claim of this kind."""

    kind: type[Claim]
    why: str


@dataclass(frozen=True, slots=True)
class Replace(OfInstance):
    """End the process with this nonce, so that the next one starts; `Replaced` follows."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Terminate(OfInstance):
    """End the process for good."""


@dataclass(frozen=True, slots=True)
class Forget(OfInstance):
    """Save a spec without the instance; `Removed` follows."""

    num_left: int


@dataclass(frozen=True, slots=True)
class Log(OfInstance):
    kind: EventKind
    drain_id: str
    reason: str
    actor: str
    numbers: Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class TellFrontends:
    """Tell the frontends which instances take requests."""


@dataclass(frozen=True, slots=True)
class Evacuated:
    """The instances that will be ended at a known moment, whatever requests they have then."""

    instance_ids: frozenset[str]


Instruction = (
    TellInstance
    | AskFrontends
    | HandOver
    | FindStayers
    | ReplayElsewhere
    | TakeBack
    | Replace
    | Terminate
    | Forget
    | Log
    | TellFrontends
    | Evacuated
)


# -- the machine ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain is. `claims`: None if the instance is not being drained."""

    instance_id: str
    state: DrainState
    claims: Claims | None
    num_left: int
    num_moving: int
    num_moved: int

    @property
    def safe_to_delete(self) -> bool:
        stays = self.claims is None or not self.claims.restarts
        return self.state is DrainState.DRAINED and stays


@dataclass(slots=True)
class _Drain:
    """The part of a drain's state that is not on disk."""

    drain_id: str
    num_moved: int = 0
    drained: bool = False
    drained_at_s: float = float("inf")
    """Since when it is drained."""
    handing_over: int | None = None
    """The incarnation that was ordered to hand its prompts over since it is drained."""
    is_cold: bool = False
    """Whether this incarnation has nothing left to hand over."""
    told_drained: bool = False
    told_overdue: bool = False
    """Whether it was already reported that the deadline of the strongest claim has passed."""
    asked: bool = False
    """Whether a question is under way. There is at most one at a time."""
    ask_at_s: float = float("-inf")
    retry_at_s: float = float("-inf")
    replay_at_s: float = float("-inf")
    """When to look again for requests that cannot move and are to be replayed."""
    replaced: str = ""
    """The nonce of the process that was told to end, which the claim to restart names."""
    replace_at_s: float = float("-inf")


@dataclass(slots=True)
class Drains:
    claims: Mapping[str, Claims] = field(default_factory=dict)
    """The claims to each instance, by instance id, as they are on disk."""
    _drains: dict[str, _Drain] = field(default_factory=dict)
    """The drain of each claimed instance, by instance id. A drain has the id of the instance's
    claims."""
    _evacuated: frozenset[str] = frozenset()
    """The ids of the instances whose processes are known to be ended soon."""
    _began_s: float = float("-inf")
    """When this controller began: the time from which it waits to hear from the members."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        match event:
            case Ticked():
                return self._ticked(event, now_s)
            case ClaimsChanged():
                return self._claims_changed(event, now_s)
            case FrontendsAnswered():
                return self._frontends_answered(event, now_s)
            case StayersFound():
                return self._stayers_found(event)
            case MoveEnded(source_id=instance_id, outcome="migrated"):
                if (drain := self._drains.get(instance_id)) is not None:
                    drain.num_moved += 1
            case BeganServing():
                return [self._tell(event.instance_id, event.epoch_s)]
            case Replaced(instance_id, nonce):
                if (drain := self._drains.get(instance_id)) is not None:
                    drain.replaced, drain.replace_at_s = nonce, now_s + REPLACE_AGAIN_S
            case Removed():
                return self._removed(event)
            case HandedOver():
                return self._handed_over(event)
            case Failed(instance_id):
                if (drain := self._drains.get(instance_id)) is not None:
                    drain.retry_at_s = now_s + RETRY_S
            case Unanswered(instance_id, drain_id):
                if (drain := self._going_on(instance_id, drain_id)) is not None:
                    drain.asked, drain.retry_at_s = False, now_s + RETRY_S
            case Resumed():
                self._began_s = now_s
                self._take(event.drains)
                return self._told_evacuated()
        return []

    def view(self, instance_id: str, seen: Seen, now_s: float) -> DrainProgress:
        """How far the drain of the instance is. `seen`: the instance as it is now."""
        claims, drain = self.claims.get(instance_id), self._drains.get(instance_id)
        left = self._left(seen, now_s) or Remainder()
        state, num_moved = DrainState.ACTIVE, 0
        if claims is not None and drain is not None:
            state, num_moved = _state(claims, drain, seen), drain.num_moved
        return DrainProgress(
            instance_id, state, claims, left.num_requests, left.num_moves_out, num_moved
        )

    def is_replacing(self, instance_id: str) -> bool:
        """Whether the instance's process ends because it is restarted."""
        claims, drain = self.claims.get(instance_id), self._drains.get(instance_id)
        if claims is None or drain is None or not isinstance(claims.strongest, Restart):
            return False
        return drain.replaced == claims.strongest.nonce

    def check(self) -> None:
        """Raises AssertionError that says which invariant is broken."""
        assert self._drains.keys() == self.claims.keys(), "a drain without claims, or claims alone"
        notices = {key for key, each in self.claims.items() if each.notice is not None}
        assert self._evacuated == notices, "moves do not know which instances must go"
        for instance_id, drain in self._drains.items():
            claims = self.claims[instance_id]
            claims.check()
            assert drain.drain_id == claims.drain_id, f"{instance_id}: another drain's state"
            assert drain.told_drained or not drain.drained, f"{instance_id}: drained unsaid"
            restart = claims.restart
            is_known = not drain.replaced or (restart and restart.nonce == drain.replaced)
            assert is_known, f"{instance_id}: a process ended for a restart that is over"
            told, claim = drain.told_overdue, claims.strongest
            goes_on = claim.deadline_s is not None and claim.on_deadline == "keep"
            assert goes_on or not told, f"{instance_id}: told of a deadline that there is not"

    # -- claims --------------------------------------------------------------------------

    def _claims_changed(self, event: ClaimsChanged, now_s: float) -> list[Instruction]:
        before, ended = self.claims, dict(self._drains)
        self._take(event.drains)
        out: list[Instruction] = [*self._told_evacuated()]
        for instance_id, claims in event.drains.items():
            known = before.get(instance_id)
            if claims != known:
                seen = event.seen.get(instance_id, NOT_THERE)
                out += self._begun(instance_id, claims, known, seen, event.epoch_s, now_s)
        for instance_id, claims in before.items():
            if instance_id not in event.drains:
                left = self._num_left(event.seen.get(instance_id, NOT_THERE), now_s)
                numbers = {"num_requests_left": left, "num_moved": ended[instance_id].num_moved}
                kind, why, actor = EventKind.DRAIN_ENDED, event.why, event.actor
                out += [
                    self._tell(instance_id, event.epoch_s),
                    _log(kind, instance_id, claims, why, numbers, actor),
                ]
        return [*out, TellFrontends()]

    def _take(self, drains: Mapping[str, Claims]) -> None:
        """Takes the new claims. A drain that goes on keeps its state, except for what belongs to
        claims that were taken back."""
        before, self.claims = self.claims, dict(drains)
        kept = dict[str, _Drain]()
        for instance_id, claims in drains.items():
            drain = self._going_on(instance_id, claims.drain_id) or _Drain(claims.drain_id)
            if claims != before.get(instance_id):
                drain.told_overdue = False
            if claims.restart is None or claims.restart.nonce != drain.replaced:
                drain.replaced, drain.replace_at_s = "", float("-inf")
            kept[instance_id] = drain
        self._drains = kept

    def _begun(
        self,
        instance_id: str,
        claims: Claims,
        before: Claims | None,
        seen: Seen,
        epoch_s: float,
        now_s: float,
    ) -> list[Instruction]:
        """Reports a drain that begins, or that goes on with other claims than `before`."""
        out = list[Instruction]()
        if before is None or claims.notice != before.notice:
            out.append(self._tell(instance_id, epoch_s))
        numbers: dict[str, Number] = {"num_requests_left": self._num_left(seen, now_s)}
        if (deadline_s := claims.strongest.deadline_s) is not None:
            numbers["deadline_in_s"] = round(deadline_s - epoch_s, 1)
        actor = (newest(claims, before) or claims.strongest).actor
        why = why_claimed(claims, before)
        out.append(_log(EventKind.DRAIN_STARTED, instance_id, claims, why, numbers, actor))
        return out

    def _removed(self, event: Removed) -> list[Instruction]:
        instance_id = event.instance_id
        claims, drain = self.claims.get(instance_id), self._drains.get(instance_id)
        if claims is None or drain is None:
            return []
        self._take({key: each for key, each in self.claims.items() if key != instance_id})
        why = "the instance was removed"
        if claims.notice is not None:
            why = "evacuated in time" if drain.drained else "it had to go with what was left"
        numbers = {"num_requests_left": event.num_left, "num_moved": drain.num_moved}
        ended = _log(EventKind.DRAIN_ENDED, instance_id, claims, why, numbers)
        return [*self._told_evacuated(), ended, TellFrontends()]

    def _tell(self, instance_id: str, epoch_s: float) -> TellInstance:
        claims, leaves_in_s = self.claims.get(instance_id), None
        if claims is not None and claims.notice is not None:
            moment_s = claims.notice.deadline_s
            leaves_in_s = None if moment_s is None else moment_s - epoch_s
        return TellInstance(instance_id, claims is not None, leaves_in_s)

    def _told_evacuated(self) -> list[Instruction]:
        notices = frozenset(key for key, each in self.claims.items() if each.notice is not None)
        if notices == self._evacuated:
            return []
        self._evacuated = notices
        return [Evacuated(notices)]

    # -- how drains go on ----------------------------------------------------------------

    def _ticked(self, event: Ticked, now_s: float) -> list[Instruction]:
        instance_id, seen = event.instance_id, event.seen
        claims, drain = self.claims.get(instance_id), self._drains.get(instance_id)
        out = list[Instruction]()
        if claims is None or drain is None or now_s < drain.retry_at_s:
            return out
        left = self._left(seen, now_s)
        if left is not None:
            empty = left.nothing and seen.takes_nothing
            drain.drained = drain.drained and empty
            if not drain.drained:
                drain.drained_at_s, drain.handing_over = float("inf"), None
                drain.is_cold = False
            all_heard = event.frontends_heard or self._waited(now_s)
            may_ask = all_heard and not drain.asked and now_s >= drain.ask_at_s
            if empty and may_ask and not drain.drained:
                drain.asked, drain.ask_at_s = True, now_s + CHECK_EVERY_S
                out.append(AskFrontends(instance_id, drain.drain_id))
        claim = claims.strongest
        warm_s = drain.drained_at_s + claim.warm_s - now_s
        process = seen.process
        is_cold = (
            warm_s <= 0
            or drain.is_cold
            or claim.is_overdue(event.epoch_s)
            or process is None
            or not process.serving
        )
        if (
            drain.drained
            and not is_cold
            and process is not None
            and process.incarnation != drain.handing_over
        ):
            drain.handing_over = process.incarnation
            if claim.deadline_s is not None:
                warm_s = min(warm_s, claim.deadline_s - event.epoch_s)
            out.append(HandOver(instance_id, drain.drain_id, warm_s))
        if isinstance(claim, Restart) and seen.process is not None:
            step = restart_step(claim, seen.process, may_end=drain.drained and is_cold)
            if step is RestartStep.REPLACE and now_s >= drain.replace_at_s:
                out.append(Replace(instance_id, claim.nonce))
            elif step is RestartStep.DONE:
                out.append(TakeBack(instance_id, Restart, "its process was restarted"))
            elif step is RestartStep.FAILED:
                why = f"it could not start: {seen.process.detail}"
                out.append(TakeBack(instance_id, Restart, why))
            if step is not RestartStep.WAIT or _state(claims, drain, seen) is _RESTARTING:
                return out
            has_left = left is not None and left.num_requests and seen.takes_nothing
            if claim.replays and has_left and not drain.asked and now_s >= drain.replay_at_s:
                drain.asked, drain.replay_at_s = True, now_s + REPLAY_EVERY_S
                out.append(FindStayers(instance_id, drain.drain_id))
        if drain.drained:
            if claims.goes and is_cold:
                out += [Terminate(instance_id), Forget(instance_id, 0)]
        elif claim.is_overdue(event.epoch_s):
            if isinstance(claim, Evacuate):
                num_left = 0 if left is None else left.num_requests
                out += [Terminate(instance_id), Forget(instance_id, num_left)]
            elif claim.on_deadline == "abort":
                why = "its deadline passed: what is left stays"
                out.append(TakeBack(instance_id, type(claim), why))
            elif not drain.told_overdue and not drain.asked:
                drain.asked = True
                out.append(FindStayers(instance_id, drain.drain_id))
        return out

    def _handed_over(self, event: HandedOver) -> list[Instruction]:
        instance_id = event.instance_id
        claims, drain = self.claims.get(instance_id), self._drains.get(instance_id)
        if claims is None or drain is None or event.drain_id != drain.drain_id:
            return []
        if event.incarnation != drain.handing_over:
            return []
        drain.is_cold = event.complete
        why = "its cached prompts are on other instances"
        if not event.complete:
            why = "a part of its cached prompts is on other instances"
        numbers = {
            "num_prompts": event.num_prompts,
            "num_tokens": event.num_tokens,
            "took_s": round(event.took_s, 3),
        }
        return [_log(EventKind.HANDED_OVER, instance_id, claims, why, numbers)]

    def _frontends_answered(self, event: FrontendsAnswered, now_s: float) -> list[Instruction]:
        instance_id = event.instance_id
        drain = self._going_on(instance_id, event.drain_id)
        if drain is None:
            return []
        drain.asked = False
        left = self._left(event.seen, now_s)
        if not event.empty or left is None or not left.nothing:
            return []
        drain.drained, drain.drained_at_s = True, now_s
        is_told, drain.told_drained = drain.told_drained, True
        if is_told:
            return []
        claims = self.claims[instance_id]
        took_s = round(event.epoch_s - claims.began_s, 3)
        numbers = {"num_moved": drain.num_moved, "took_s": took_s}
        return [_log(EventKind.DRAINED, instance_id, claims, "nothing is left there", numbers)]

    def _stayers_found(self, event: StayersFound) -> list[Instruction]:
        drain = self._going_on(event.instance_id, event.drain_id)
        if drain is None:
            return []
        drain.asked = False
        claims = self.claims[event.instance_id]
        claim = claims.strongest
        if isinstance(claim, Restart) and claim.replays and event.replayable:
            return [ReplayElsewhere(event.instance_id, event.replayable)]
        keeps = claim.on_deadline == "keep" and claim.is_overdue(event.epoch_s)
        if not keeps or drain.told_overdue:
            return []  # another claim is in force meanwhile
        drain.told_overdue = True
        why, named = "its deadline passed, and it goes on", ", ".join(event.stays[:_NAMED_IN_EVENT])
        numbers = {"num_requests_left": event.num_left, "num_cannot_move": len(event.stays)}
        why = f"{why}: {named}" if named else why
        return [_log(EventKind.DRAIN_OVERDUE, event.instance_id, claims, why, numbers)]

    # -- inside --------------------------------------------------------------------------

    def _left(self, seen: Seen, now_s: float) -> Remainder | None:
        """The requests that are left on the instance; None if they are not known yet."""
        process = seen.process
        if process is None:
            return Remainder()
        if not process.serving:
            return Remainder() if process.incarnation or self._waited(now_s) else None
        return seen.left

    def _num_left(self, seen: Seen, now_s: float) -> int:
        return (self._left(seen, now_s) or Remainder()).num_requests

    def _waited(self, now_s: float) -> bool:
        """Whether the controller has waited long enough for members to say Hello. A member that has
        not said Hello by then does not exist."""
        return now_s >= self._began_s + HEARD_WITHIN_S

    def _going_on(self, instance_id: str, drain_id: str) -> _Drain | None:
        drain = self._drains.get(instance_id)
        return drain if drain is not None and drain.drain_id == drain_id else None


_RESTARTING = DrainState.RESTARTING


def _state(claims: Claims, drain: _Drain, seen: Seen) -> DrainState:
    claim = claims.strongest
    if isinstance(claim, Restart):
        is_another = seen.process is not None and seen.process.nonce not in ("", claim.nonce)
        if is_another or drain.replaced == claim.nonce:
            return DrainState.RESTARTING
    return DrainState.DRAINED if drain.drained else DrainState.DRAINING


def _log(
    kind: EventKind,
    instance_id: str,
    claims: Claims,
    reason: str,
    numbers: Mapping[str, Number],
    actor: str = "",
) -> Log:
    return Log(instance_id, kind, claims.drain_id, reason, actor, numbers)


# -- restarts ---------------------------------------------------------------------------------


class RestartStep(StrEnum):
    WAIT = "wait"
    """Wait until the instance is empty, or until the next process serves."""
    REPLACE = "replace"
    """End the process, so that another one is started in its place."""
    DONE = "done"
    FAILED = "failed"
    """Nothing: the next process cannot start, and no further attempt is made."""


def restart_step(claim: Restart, process: InstanceProcess, *, may_end: bool) -> RestartStep:
    """The next step of a claim to restart. A process is known by its nonce, which it has before a
    controller numbers it. If the process was replaced for another reason, for example because it
    died, no second restart is needed. `may_end`: the instance has been empty for long enough."""
    if process.nonce != claim.nonce:
        if process.serving:
            return RestartStep.DONE
        return RestartStep.FAILED if process.failed else RestartStep.WAIT
    ends = may_end or claim.at_once
    return RestartStep.REPLACE if process.alive and ends else RestartStep.WAIT
