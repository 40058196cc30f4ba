"""The machine of a rolling restart: all instances get a new process, one after the other.

Each instance is restarted as by a single restart (`emptying.drains`): it is emptied by moves, its
process is replaced, and it serves again. The next instance begins when the previous one serves. If
several instances may be away at once, the next one begins as soon as the instances that stay can
hold the requests of the instances that leave. If an instance cannot be restarted, the rolling
restart ends: restarts that can still be taken back are taken back, and no further restart begins.

A rolling restart may change engine arguments: each instance starts with the new ones from its turn
on. The first instance is always restarted alone, because it is not known yet whether it will serve
with them. If the rolling restart fails, or is stopped, the instances that do not serve with the new
arguments yet get their old arguments back, so that no instance is left half started.

A rolling restart may also change the Python environment (`EngineChange.python`), with another
version of vLLM, or the tensor-parallel size. Then two kinds of engines serve together, between
which requests may not be able to move. Requests move to instances of their own kind; if no such
instance has room, they are replayed on any.

A process is known by its nonce.

The order, which is part of the cluster's spec, says how far a rolling restart is. So a controller
that starts again goes on with the rolling restart. Only the time that a new process may take is
then counted from the start of that controller. `RollingRestart` decides the next step, and waits
while a step is being saved:

    Began, Ticked, Stopped   -> ChangeSpec, if a step is due
    SpecChanged              -> Tell, of the restarts that are over, and of how all of it ended
    SpecNotChanged           -> nothing changed: the next step is tried a while later

A step without an answer counts as not saved. If it was the first step of an operator's order, the
order is given up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controller.core.emptying.claims import Restart
from controller.core.fleet.cluster_spec import (
    AS_MANY_AS_FIT,
    AS_STARTED,
    EngineChange,
    RollingOrder,
    Turn,
)
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import EventKind, Number

NO_OTHER_SERVES = "no other instance serves"
RETRY_S = 1.0
"""The pause before a step is tried again that could not be saved, for example because a disk is
full."""


@dataclass(frozen=True, slots=True)
class InstanceNow:
    """An instance as the controller sees it. `nonce`: the nonce of its process; empty if no process
    was heard. `removes`: whether the instance is to be removed. `restarts`: the nonce of the
    process that a claim to restart it names; empty if there is no such claim. `is_away`: that
    process has ended, and the next one does not serve yet.

    The machine adds `ordered`: whether the order to restart it still holds; and `away_s`: how long
    ago its process ended for that order (None: it has not ended)."""

    instance_id: str
    nonce: str
    serving: bool = False
    failed: bool = False
    detail: str = ""
    removes: bool = False
    restarts: str = ""
    is_away: bool = False
    ordered: bool = False
    away_s: float | None = None
    takes_requests: bool = False
    """Whether the instance may get new requests now."""
    num_tokens: int = 0
    """The KV tokens that its requests hold or wait for."""
    num_requests: int = 0
    free_tokens: int = 0
    free_places: int | None = None
    """Free places in its batch; None: not known."""
    alive: bool = True
    engine: EngineChange = AS_STARTED
    """The arguments with which its next process starts."""
    fingerprint: str = ""
    max_model_len: int = 0

    def with_load(self, load: InstanceSnapshot) -> "InstanceNow":
        """The same instance with the figures of its latest status."""
        size, places = load.block_size, load.max_num_running
        num_requests = load.num_running + load.num_queued
        return replace(
            self,
            num_tokens=size * (load.num_used_blocks + load.queued_demand_blocks),
            num_requests=num_requests,
            free_tokens=size * load.unclaimed_blocks,
            free_places=places - num_requests if places else None,
        )


@dataclass(frozen=True, slots=True)
class RollingStep:
    """One step of a rolling restart. `begins`: instances whose restart begins now. `taken_back`:
    instances whose restart is taken back because another restart failed. `waits`: why no restart
    begins, if the reason is not just that it is another instance's turn. `engines`: by instance,
    the arguments that change with this step. `put_back`: the instances in `engines` whose process
    is replaced once more, because it must not keep its new arguments."""

    order: RollingOrder
    begins: tuple[str, ...] = ()
    taken_back: tuple[str, ...] = ()
    waits: str = ""
    engines: Mapping[str, EngineChange] = field(default_factory=dict)
    put_back: tuple[str, ...] = ()


def in_turn(instances: Sequence[InstanceNow]) -> tuple[str, ...]:
    """The order in which instances are restarted: first the instances that do not serve, whose
    restart costs nothing, then the others in the cluster's order. Instances that are to be removed
    are left out."""
    staying = [each for each in instances if not each.removes]
    return tuple(each.instance_id for each in sorted(staying, key=lambda each: each.serving))


def rolling_step(
    order: RollingOrder, instances: Sequence[InstanceNow], now_s: float
) -> RollingStep:
    """The next step. Its order is `order` itself if nothing changed.

    `instances`: all instances of the cluster, in its order. `now_s`: seconds since the epoch."""
    if not order.goes:
        return RollingStep(order)
    known = {each.instance_id: each for each in instances}
    going, done = list[Turn](), dict(order.done)
    for turn in order.under_way:
        now = known.get(turn.instance_id)
        if now is None or now.removes:
            continue
        if why := _failure(order, turn, now, now_s):
            return _failed(order, turn, why, known, now_s)
        if _serves_anew(turn, now):
            done[turn.instance_id] = round(now_s - turn.began_s, 3)
        else:
            going.append(turn)
    left = tuple(each for each in order.left if each in known and not known[each].removes)
    left += _added(order, instances)
    begins, waits = _next(order, left, going, known, proved=bool(done))
    going += [_turn(known[each], instances, now_s) for each in begins]
    left = tuple(each for each in left if each not in begins)
    unchanged = left == order.left and tuple(going) == order.under_way and done == order.done
    if unchanged and (left or going):
        return RollingStep(order, waits=waits)
    after = replace(order, left=left, under_way=tuple(going), done=done)
    if not (left or going):
        after = replace(after, state="done", ended_s=now_s)
    engines = {each: order.engine for each in begins if known[each].engine != order.engine}
    return RollingStep(after, tuple(begins), waits=waits, engines=engines)


def stopped(
    order: RollingOrder, instances: Sequence[InstanceNow], why: str, now_s: float
) -> RollingStep:
    """Ends the rolling restart by an operator's order: restarts that can still be taken back are
    taken back."""
    known = {each.instance_id: each for each in instances}
    return _ended(replace(order, state="stopped", why=why), known, now_s)


def _added(order: RollingOrder, instances: Sequence[InstanceNow]) -> tuple[str, ...]:
    """Instances that were added, or stay after all, during the rolling restart, and whose arguments
    differ from those that it gives."""
    known = {*order.left, *order.done, *(turn.instance_id for turn in order.under_way)}
    return tuple(
        each.instance_id
        for each in instances
        if each.instance_id not in known and not each.removes and each.engine != order.engine
    )


def _turn(now: InstanceNow, instances: Sequence[InstanceNow], now_s: float) -> Turn:
    """The restart of one instance. If the instance does not serve, its next engine is compared with
    the engines of the others."""
    alike = now if now.fingerprint else next((i for i in instances if i.serving), now)
    known = (alike.fingerprint, alike.max_model_len)
    return Turn(now.instance_id, now.nonce, now_s, now.engine, *known)


def _serves_anew(turn: Turn, now: InstanceNow) -> bool:
    """Whether the next process serves and the order to restart the instance is over."""
    return not now.ordered and now.serving and now.nonce not in ("", turn.nonce)


def _failure(order: RollingOrder, turn: Turn, now: InstanceNow, now_s: float) -> str:
    """Why the restart of this instance failed; empty if it did not."""
    name = turn.instance_id
    changes, is_another = turn.before != order.engine, now.nonce not in ("", turn.nonce)
    if changes and is_another and not now.alive:
        return f"the new process of {name} died before it served"
    if now.ordered:
        if now.away_s is not None and now.away_s > order.start_timeout_s:
            return f"{name} did not serve within {order.start_timeout_s:g} s of its restart"
        return ""
    if now.nonce == turn.nonce:
        deadline_s = order.deadline_s
        if deadline_s is not None and now_s >= turn.began_s + deadline_s:
            return f"{name} was not empty within {deadline_s:g} s"
        return f"the restart of {name} was taken back"
    if now.nonce and now.failed:
        return f"{name} could not start: {now.detail}".removesuffix(": ")
    if changes and is_another and now.serving:
        return _unlike(order, turn, now)
    return ""


def _unlike(order: RollingOrder, turn: Turn, now: InstanceNow) -> str:
    """Why the new engine cannot work together with the others; empty if it can. An engine of
    another kind may have other KV blocks: requests that cannot move there are replayed."""
    name, same = turn.instance_id, turn.before.kind == order.engine.kind
    if same and turn.fingerprint and now.fingerprint != turn.fingerprint:
        return f"no request can move to or from {name}: its KV blocks are not those of before"
    if now.max_model_len < turn.max_model_len:
        tokens = f"{now.max_model_len} tokens instead of {turn.max_model_len}"
        return f"{name} takes requests of up to {tokens}"
    return ""


def _failed(
    order: RollingOrder, turn: Turn, why: str, known: Mapping[str, InstanceNow], now_s: float
) -> RollingStep:
    failed = replace(order, state="failed", why=why, failed_id=turn.instance_id)
    return _ended(failed, known, now_s)


def _ended(order: RollingOrder, known: Mapping[str, InstanceNow], now_s: float) -> RollingStep:
    """Takes back the restarts whose process has not ended. The other restarts go on by themselves.
    If an instance among them got new arguments and its new process does not serve yet, it gets its
    old arguments back."""
    back, put_back, done = list[str](), list[str](), dict(order.done)
    engines: dict[str, EngineChange] = {}
    for turn in order.under_way:
        name, now = turn.instance_id, known.get(turn.instance_id)
        if now is None:
            continue
        if now.ordered and now.away_s is None:
            back.append(name)
        elif name != order.failed_id and _serves_anew(turn, now):
            done[name] = round(now_s - turn.began_s, 3)
            continue
        elif _is_half_started(order, turn, now):
            put_back.append(name)
        if turn.before != order.engine:
            engines[name] = turn.before
    left = (*back, *(each for each in put_back if each != order.failed_id), *order.left)
    why = order.why
    if order.failed_id in put_back:
        why = f"{why}; it starts again with the arguments that it had"
    after = replace(order, why=why, left=left, under_way=(), done=done, ended_s=now_s)
    return RollingStep(after, taken_back=tuple(back), engines=engines, put_back=tuple(put_back))


def _is_half_started(order: RollingOrder, turn: Turn, now: InstanceNow) -> bool:
    """Whether the instance's process was ended because its arguments changed, and the instance does
    not serve with the new ones yet."""
    ended = now.ordered or now.nonce != turn.nonce
    return ended and turn.before != order.engine and not now.removes


def _next(
    order: RollingOrder,
    left: Sequence[str],
    going: Sequence[Turn],
    known: Mapping[str, InstanceNow],
    *,
    proved: bool,
) -> tuple[list[str], str]:
    """The instances whose restart begins now, and why the next one must wait. `proved`: whether an
    instance already serves with the arguments that all instances get."""
    away = [turn.instance_id for turn in going]
    changes = any(turn.before != order.engine for turn in going)
    changes = changes or any(known[each].engine != order.engine for each in left)
    at_once = 1 if changes and not proved else order.at_once
    begins = list[str]()
    for each in left:
        if at_once != AS_MANY_AS_FIT and len(away) >= at_once:
            break
        now = known[each]
        if not now.nonce or now.restarts not in ("", now.nonce):
            continue  # the instance has not started yet, or an earlier restart of it is not over
        staying = [i for i in known.values() if i.takes_requests and i.instance_id not in away]
        staying = [i for i in staying if i.instance_id != each]
        if known[each].takes_requests and not staying and not order.force:
            return begins, NO_OTHER_SERVES
        if away and not _hold([known[i] for i in (*away, each) if i in known], staying):
            break
        begins.append(each)
        away.append(each)
    return begins, ""


def _hold(leaving: Sequence[InstanceNow], staying: Sequence[InstanceNow]) -> bool:
    """Whether the staying instances have room for all requests of the leaving instances."""
    if not staying:
        return False
    if sum(each.num_tokens for each in leaving) > sum(max(0, i.free_tokens) for i in staying):
        return False
    places = [each.free_places for each in staying]
    if any(each is None for each in places):
        return True
    return sum(i.num_requests for i in leaving) <= sum(max(0, p or 0) for p in places)


# -- the machine ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Began:
    """An operator's order begins. The machine fills in its instances. `engine_arguments`: the
    arguments in words."""

    order: RollingOrder
    seen: Sequence[InstanceNow]
    engine_arguments: str = ""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. `order`: the order in the spec. `seen`: all instances, in the cluster's
    order; not needed while no rolling restart is under way. `wall_s`: seconds since the epoch."""

    order: RollingOrder | None
    seen: Sequence[InstanceNow]
    wall_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """An operator ends the rolling restart that is in the spec."""

    order: RollingOrder
    seen: Sequence[InstanceNow]
    wall_s: float
    why: str
    actor: str


@dataclass(frozen=True, slots=True)
class SpecChanged:
    """The step of `ChangeSpec` is saved and has begun."""

    wall_s: float


@dataclass(frozen=True, slots=True)
class SpecNotChanged:
    """The step could not be saved."""


Event = Began | Ticked | Stopped | SpecChanged | SpecNotChanged


@dataclass(frozen=True, slots=True)
class ChangeSpec:
    """Save the step in the cluster's spec: the order, claims to restart instances, claims that are
    taken back, changed arguments. `why` and `actor` are for drains that this step ends."""

    order: RollingOrder
    restarts: Mapping[str, Restart] = field(default_factory=dict)
    taken_back: tuple[str, ...] = ()
    engines: Mapping[str, EngineChange] = field(default_factory=dict)
    why: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    """Write an event into the journal."""

    kind: EventKind
    order: RollingOrder
    reason: str
    numbers: Mapping[str, Number]
    actor: str = ""
    instance_id: str = ""


Instruction = ChangeSpec | Tell


class RollingRefusal(StrEnum):
    GOES = "rolling"
    """Another rolling restart is under way."""
    NO_INSTANCES = "no_instances"
    LAST_INSTANCE = "last_instance"
    """No instance would serve while the last one is restarted."""


def refusal(
    present: RollingOrder | None, seen: Sequence[InstanceNow], *, force: bool
) -> RollingRefusal | None:
    """Why no rolling restart can begin now. `present`: the rolling restart that is in the spec."""
    if present is not None and present.goes:
        return RollingRefusal.GOES
    if all(each.removes for each in seen):
        return RollingRefusal.NO_INSTANCES
    to_serve = [each for each in seen if each.takes_requests or not each.serving]
    if len(to_serve) == 1 and to_serve[0].takes_requests and not force:
        return RollingRefusal.LAST_INSTANCE
    return None


class RollingRestart:
    """The machine of rolling restarts. Times are seconds of any one monotonic clock, except for
    times that are named `wall_s`."""

    def __init__(self) -> None:
        self.waits = ""
        """Why the restart of the next instance must wait, if the reason is not just that another
        instance is being restarted."""
        self._away_since_s: dict[str, float] = {}
        """For each instance whose restart was under way at the latest look, when its process was
        seen to have ended for that restart."""
        self._emptied_s: dict[str, float] = {}
        """For each instance that this controller saw in this rolling restart: how long it took
        until its process could be ended."""
        self._retry_at_s = float("-inf")
        self._saving: tuple[RollingOrder | None, ChangeSpec, str] | None = None
        """The order before the step that is being saved, the step itself, and the words for a first
        step. Set only between ChangeSpec and its answer, or the next event."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        match event:
            case Began(order, seen, engine_arguments):
                first = replace(order, left=in_turn(seen))
                why = order.reason or "all instances get a new process"
                if engine_arguments:
                    why = f"{why}; engine arguments: {engine_arguments}"
                return self._save(None, ChangeSpec(first, actor=order.actor), why)
            case Ticked(order, seen, wall_s):
                self._saving = None
                if order is None or not order.goes or now_s < self._retry_at_s:
                    return []
                known = self._look(order, seen, now_s, wall_s)
                return self._step(order, rolling_step(order, known, wall_s), seen, wall_s)
            case Stopped(order, seen, wall_s, why, actor) if order.goes:
                known = self._look(order, seen, now_s, wall_s)
                step = stopped(order, known, why, wall_s)
                return self._step(order, step, seen, wall_s, actor)
            case SpecChanged(wall_s) if self._saving is not None:
                (before, change, why), self._saving = self._saving, None
                return self._saved(before, change, why, wall_s)
            case SpecNotChanged():
                self._saving, self._retry_at_s = None, now_s + RETRY_S
        return []

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert all(emptied_s >= 0 for emptied_s in self._emptied_s.values())
        assert set(self._away_since_s) <= set(self._emptied_s), "away, and never emptied"
        if self._saving is not None:
            before, change, _ = self._saving
            change.order.check()
            assert before is None or before != change.order, "a step that changes nothing"
            begun = set(change.restarts) - set(change.taken_back)
            away = {turn.instance_id for turn in change.order.under_way}
            assert begun <= away or not change.order.goes, "a restart that nobody waits for"

    # -- inside --------------------------------------------------------------------------

    def _look(
        self, order: RollingOrder, seen: Sequence[InstanceNow], now_s: float, wall_s: float
    ) -> list[InstanceNow]:
        turns = {turn.instance_id: turn for turn in order.under_way}
        since_s, self._away_since_s = self._away_since_s, {}
        found: list[InstanceNow] = []
        for each in seen:
            key, turn = each.instance_id, turns.get(each.instance_id)
            if turn is None or not each.restarts or each.restarts != turn.nonce:
                found.append(each)
                continue
            if not each.is_away:
                found.append(replace(each, ordered=True))
                continue
            if key not in since_s:
                self._emptied_s[key] = wall_s - turn.began_s
            self._away_since_s[key] = since_s.get(key, now_s)
            found.append(replace(each, ordered=True, away_s=now_s - self._away_since_s[key]))
        return found

    def _step(
        self,
        before: RollingOrder,
        step: RollingStep,
        seen: Sequence[InstanceNow],
        wall_s: float,
        actor: str = "",
    ) -> list[Instruction]:
        self.waits, order = step.waits, step.order
        if order is before:
            return []
        known = {each.instance_id: each for each in seen}
        restarts = {each: _restart(order, known[each], wall_s) for each in step.begins}
        restarts |= {each: _put_back(order, known[each], wall_s) for each in step.put_back}
        change = ChangeSpec(
            order,
            restarts,
            (*step.taken_back, *step.put_back),
            step.engines,
            f"the rolling restart ended: {order.why}",
            actor,
        )
        return self._save(before, change)

    def _save(
        self, before: RollingOrder | None, change: ChangeSpec, why: str = ""
    ) -> list[Instruction]:
        self._saving = (before, change, why)
        return [change]

    def _saved(
        self, before: RollingOrder | None, change: ChangeSpec, why: str, wall_s: float
    ) -> list[Instruction]:
        order, actor = change.order, change.actor
        numbers: dict[str, Number]
        if before is None:
            self._away_since_s, self._emptied_s = {}, {}
            numbers = {"num_instances": len(order.left)}
            return [Tell(EventKind.ROLLING_STARTED, order, why, numbers, actor)]
        told: list[Instruction] = []
        for instance_id, took_s in order.done.items():
            if instance_id in before.done:
                continue
            numbers = {"took_s": took_s}
            if (emptied_s := self._emptied_s.get(instance_id)) is not None:
                numbers["emptied_s"] = round(emptied_s, 3)
            why = "its next process serves"
            kind = EventKind.ROLLING_STEPPED
            told.append(Tell(kind, order, why, numbers, instance_id=instance_id))
        if order.goes:
            return told
        numbers = {
            "num_restarted": len(order.done),
            "num_left": len(order.left),
            "took_s": round(wall_s - order.began_s, 3),
        }
        if order.state == "failed":
            kind, failed_id = EventKind.ROLLING_FAILED, order.failed_id
            return [*told, Tell(kind, order, order.why, numbers, actor, failed_id)]
        why = order.why or "every instance has a new process"
        return [*told, Tell(EventKind.ROLLING_ENDED, order, why, numbers, actor)]


def _restart(order: RollingOrder, seen: InstanceNow, wall_s: float) -> Restart:
    """The claim to restart an instance. At its deadline the claim is taken back, and the requests
    that are left stay where they run."""
    return Restart(
        order.order_id,
        wall_s,
        deadline_s=None if order.deadline_s is None else wall_s + order.deadline_s,
        on_deadline="keep" if order.deadline_s is None else "abort",
        warm_s=order.warm_s,
        nonce=seen.nonce,
        replays=seen.engine.kind != order.engine.kind,
        actor=order.actor,
        reason=order.reason,
    )


def _put_back(order: RollingOrder, seen: InstanceNow, wall_s: float) -> Restart:
    """A claim to one more restart, with the old arguments. If the process does not serve, it is
    replaced at once. The claim takes the place of the claim to restart the earlier process."""
    return Restart(
        f"{order.order_id}-back",
        wall_s,
        nonce=seen.nonce,
        at_once=not seen.serving,
        replays=True,
        actor=order.actor,
        reason="it gets the engine arguments that it had",
    )
