"""What operators want of the cluster, beyond what it was started with.

The spec says which instances there are, who wants them empty or closed, which settings and engine
arguments were changed, and how far a rolling restart is. Every change is a new value with the next
revision, so that no operator can undo another's change without noticing. The spec also tells why
requests leave an instance (`why_emptied`).

The spec and the present state of the cluster decide which orders about instances are refused, and
which instances a scale starts or removes. Each check is made when the order comes, and again when
the order has been written to the audit log. A check changes nothing. `schedulable`: the ids of the
instances that may get requests now. `force`: the order is carried out even if no instance would
take requests then. The words of a refusal are in
`runtime/controller/operations/operated_cluster.py`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal

from controller.core.bounds import MAX_INSTANCES, PYTHON, without_python
from controller.core.emptying.claims import (
    Claim,
    Claims,
    Evacuate,
    Remove,
    Restart,
    SlowDrain,
    claimed,
)
from controller.core.emptying.relief import HelpReason, MoveReason
from controller.core.fleet.adapters import Adapter
from controller.core.fleet.attached import AttachedServer
from controller.core.load.closed import OPEN, Closed, Reasons, stop_requests

SettingValue = float | int | str | bool | None
RollingState = Literal["going", "done", "stopped", "failed"]
AS_MANY_AS_FIT = 0
"""The value of `at_once` for: as many instances at a time as the others can replace."""
DEFAULT_START_TIMEOUT_S = 600.0
TENSOR_PARALLEL = "tensor_parallel_size"


@dataclass(frozen=True, slots=True)
class EngineChange:
    """Engine arguments, by name, that replace the arguments with which the cluster was started.

    `generation`: 0 for the arguments of the start. Every other set of arguments has its own number,
    which is used only once."""

    generation: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def python(self) -> str:
        """The Python interpreter that runs the instance; empty: that of the cluster's start."""
        return str(self.args.get(PYTHON, ""))

    @property
    def kind(self) -> tuple[str, object]:
        """Between engines of different kinds, requests may not be able to move."""
        return self.python, self.args.get(TENSOR_PARALLEL)

    @property
    def engine_args(self) -> Mapping[str, Any]:
        """The arguments that the engine itself gets."""
        return without_python(self.args)

    def changed(self, given: Mapping[str, Any], generation: int) -> "EngineChange":
        """Returns this change with `given` added; an argument that is None gets the value of the
        cluster's start again. `generation`: the number of the result, if it is a different set of
        arguments."""
        args = {key: each for key, each in {**self.args, **given}.items() if each is not None}
        if args == self.args:
            return self
        return EngineChange(generation, args) if args else AS_STARTED


AS_STARTED = EngineChange()


@dataclass(frozen=True, slots=True)
class Turn:
    """The restart of one instance that is under way. `nonce`: the nonce of the process that is
    replaced. `began_s`: seconds since the epoch."""

    instance_id: str
    nonce: str
    began_s: float
    before: EngineChange = AS_STARTED
    """The arguments of the process that is replaced."""
    fingerprint: str = ""
    """The fingerprint of that process's engine. Its requests can only move to engines with the same
    fingerprint."""
    max_model_len: int = 0
    """The longest request that the engine of that process takes, in tokens; 0: not known."""


@dataclass(frozen=True, slots=True)
class RollingOrder:
    """The rolling restart that an operator ordered, and how far it is. Times are seconds since the
    epoch.

    `at_once`: how many instances may be away at a time. `deadline_s`: how many seconds the emptying
    of one instance may take; None: no limit. `warm_s`: as in `Claim`. `start_timeout_s`: how long a
    new process may take until it serves. `force`: the restart begins even if no other instance
    serves. `why`: the reason of a failure or a stop."""

    order_id: str
    began_s: float
    left: tuple[str, ...]
    """The instances whose restart has not begun, in order."""
    under_way: tuple[Turn, ...] = ()
    done: Mapping[str, float] = field(default_factory=dict)
    """How many seconds the restart of each instance took, by instance id."""
    at_once: int = 1
    deadline_s: float | None = None
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    force: bool = False
    state: RollingState = "going"
    why: str = ""
    failed_id: str = ""
    """The instance that could not be restarted."""
    ended_s: float | None = None
    actor: str = ""
    reason: str = ""
    engine: EngineChange = AS_STARTED
    """The engine arguments with which every instance starts again."""
    warm_s: float = 0.0
    dismissed: bool = False
    """Whether an operator has read how the rolling restart ended."""

    @property
    def goes(self) -> bool:
        return self.state == "going"

    def check(self) -> None:
        """Raises ValueError if the functions below cannot have made this order."""
        away = [turn.instance_id for turn in self.under_way]
        everywhere = [*self.left, *away, *self.done]
        if len(set(everywhere)) != len(everywhere):
            raise ValueError("an instance is restarted twice")
        if not self.goes and away:
            raise ValueError("a restart is under way though all are over")
        limited = self.at_once != AS_MANY_AS_FIT
        if self.at_once < 0 or (limited and len(away) > self.at_once):
            raise ValueError("more restarts are under way than may be")
        if (self.state == "failed") != bool(self.failed_id):
            raise ValueError("a failure without an instance, or an instance without a failure")
        if self.state == "done" and self.left:
            raise ValueError("it is done, and instances are left")
        if self.goes != (self.ended_s is None):
            raise ValueError("what goes on has no end, and what has ended has one")
        if self.goes and self.dismissed:
            raise ValueError("what goes on was dismissed")


@dataclass(frozen=True, slots=True)
class ScaleHold:
    """An operator's own scale to a number of instances, which takes precedence over auto-scaling.
    `since_s`: seconds since the epoch."""

    actor: str
    num_instances: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """An operator's mark against an instance, such as a cordon, until it is taken back. Its reason
    has a row in `core.load.closed`, which says what the mark stops. `made_s`: seconds since the
    epoch; `cause_id`: the order's id."""

    cause_id: str
    made_s: float
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One revision of the spec of one model. `next_instance`: the number of the next new instance,
    unless another model has taken it meanwhile. A number is used only once, so that all records of
    `i-3` are about one instance. `settings`: the settings
    that differ from the cluster's start, by key. `autoscale_hold`: set until auto-scaling is
    released, or set to another mode. `rolling`: the latest rolling restart, even if it is over.
    `engine`: the arguments of all instances that `engines` does not name."""

    revision: int = 0
    instance_ids: tuple[str, ...] = ()
    next_instance: int = 0
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    drains: Mapping[str, Claims] = field(default_factory=dict)
    """The claims to each instance that somebody wants empty: who wants that, and what for."""
    autoscale_hold: ScaleHold | None = None
    rolling: RollingOrder | None = None
    engine: EngineChange = AS_STARTED
    engines: Mapping[str, EngineChange] = field(default_factory=dict)
    """For each instance whose arguments differ from `engine`, its arguments."""
    marks: Mapping[Closed, Mapping[str, Mark]] = field(default_factory=dict)
    """The marks by reason, such as a cordon, and then by instance id. A reason without a marked
    instance is not in it. A drain does not change the instance's marks, and neither does its end.
    """
    adapters: tuple[Adapter, ...] = ()
    """The LoRA adapters that clients may name, in the order in which they were loaded."""
    next_adapter: int = 1
    """The number of the next adapter. A number is used only once."""
    attached: Mapping[str, AttachedServer] = field(default_factory=dict)
    """The instances whose requests run on servers that somebody else started, by instance id. They
    are attached and detached by orders of their own: no scale counts or removes them, and no
    rolling restart has them."""
    attached_only: bool = False
    """Whether the model has no instances of the cluster's own. It never gets any: `scale` is
    refused, and requests are forwarded to its servers as they came."""

    @staticmethod
    def first(
        num_instances: int, adapters: tuple[Adapter, ...] = (), from_number: int = 0
    ) -> "ClusterSpec":
        """`num_instances`: 0: the model runs on attached servers only. `from_number`: the number of
        the first instance; other models have those before it."""
        end = from_number + num_instances
        ids = tuple(f"i-{number}" for number in range(from_number, end))
        return ClusterSpec(
            0,
            ids,
            end,
            adapters=adapters,
            next_adapter=1 + len(adapters),
            attached_only=not num_instances,
        )

    def check(self) -> None:
        """Raises ValueError if the methods below cannot have made this spec."""
        if len(set(self.instance_ids)) != len(self.instance_ids):
            raise ValueError("an instance is named twice")
        unknown = set(self.drains) - set(self.instance_ids)
        if unknown:
            raise ValueError(f"a drain of {min(unknown)}, which is no instance")
        for claims in self.drains.values():
            claims.check()
        used = [int(each.removeprefix("i-")) for each in self.instance_ids]
        if self.next_instance <= max(used, default=-1):
            raise ValueError("the number of the next instance was used already")
        if self.revision < 0:
            raise ValueError("the revision is negative")
        if self.rolling is not None:
            self.rolling.check()
        for reason, marked in self.marks.items():
            if not marked or set(marked) - set(self.instance_ids):
                raise ValueError(f"{reason}: a mark on no instance")
        if set(self.engines) - set(self.instance_ids):
            raise ValueError("engine arguments of an instance that there is not")
        if self.engine in self.engines.values():
            raise ValueError("an instance has the cluster's arguments as its own")
        if set(self.attached) - set(self.instance_ids):
            raise ValueError("a server is attached as an instance that there is not")
        if self.attached_only and set(self.instance_ids) != set(self.attached):
            raise ValueError("an instance of a model that only has attached servers")
        if len({each.url for each in self.attached.values()}) != len(self.attached):
            raise ValueError("a server is attached twice")
        if len({each.name for each in self.adapters}) != len(self.adapters):
            raise ValueError("an adapter is named twice")
        numbers = [each.number for each in self.adapters]
        if numbers != sorted(set(numbers)) or self.next_adapter <= max(numbers, default=0):
            raise ValueError("the number of an adapter is used twice")

    def engine_of(self, instance_id: str) -> EngineChange:
        """The arguments with which the instance's next process starts."""
        return self.engines.get(instance_id, self.engine)

    @property
    def closed(self) -> Mapping[str, Reasons]:
        """For each instance, the reasons of the spec against it. Instances without such reasons are
        left out."""
        by_reason: dict[Closed, Collection[str]] = {Closed.DRAINING: self.drains, **self.marks}
        return {
            each: frozenset(reason for reason, there in by_reason.items() if each in there)
            for each in chain(*by_reason.values())
        }

    def marked(self, reason: Closed) -> Mapping[str, Mark]:
        """The instances with this mark, by id, and the mark of each."""
        return self.marks.get(reason, {})

    @property
    def next_generation(self) -> int:
        """The number of the next set of engine arguments."""
        known = [self.engine, *self.engines.values()]
        if self.rolling is not None:
            known.append(self.rolling.engine)
        return 1 + max(each.generation for each in known)

    def with_instances_added(self, count: int, from_number: int = 0) -> "ClusterSpec":
        """Adds instances. `from_number`: all numbers before it are taken."""
        first = max(self.next_instance, from_number) if count else self.next_instance
        last = first + count
        added = tuple(f"i-{number}" for number in range(first, last))
        return self._next(instance_ids=self.instance_ids + added, next_instance=last)

    def without_instance(self, instance_id: str) -> "ClusterSpec":
        """Removes the instance, with its drain and its marks."""
        ids = tuple(each for each in self.instance_ids if each != instance_id)
        engines = {key: each for key, each in self.engines.items() if key != instance_id}
        drains, marks = self._drains_but(instance_id), self._marks_but(instance_id, *self.marks)
        attached = {key: each for key, each in self.attached.items() if key != instance_id}
        return self._next(
            instance_ids=ids, drains=drains, engines=engines, marks=marks, attached=attached
        )

    def with_attached(self, server: AttachedServer, from_number: int = 0) -> "ClusterSpec":
        """Adds an instance for the server, which must not be attached yet. `from_number`: as in
        `with_instances_added`."""
        grown = self.with_instances_added(1, from_number)
        return replace(grown, attached={**self.attached, grown.instance_ids[-1]: server})

    def with_settings(
        self, changes: Mapping[str, SettingValue], *, releases: bool = False
    ) -> "ClusterSpec":
        """Changes settings. `releases`: whether the hold of auto-scaling ends."""
        hold = None if releases else self.autoscale_hold
        return self._next(settings={**self.settings, **changes}, autoscale_hold=hold)

    def held_by(self, hold: ScaleHold) -> "ClusterSpec":
        return self._next(autoscale_hold=hold)

    def with_rolling(
        self,
        rolling: RollingOrder,
        restarts: Mapping[str, Restart] = MappingProxyType({}),
        taken_back: Collection[str] = (),
        engines: Mapping[str, EngineChange] = MappingProxyType({}),
    ) -> "ClusterSpec":
        """Makes one step of a rolling restart. First the claims to restart the instances in
        `taken_back` are taken back, then the claims of `restarts` are made. `engines`: by instance,
        arguments that change with this step. Once all instances are restarted, the order's
        arguments are the cluster's."""
        engine = rolling.engine if rolling.state == "done" else self.engine
        hosted = (key for key in self.instance_ids if key not in self.attached)
        each = {key: self.engine_of(key) for key in hosted} | dict(engines)
        own = {key: found for key, found in each.items() if found != engine}
        drains = _made(_taken_back(self.drains, taken_back, Restart), restarts)
        return self._next(rolling=rolling, engine=engine, engines=own, drains=drains)

    def dismissed(self, rolling: RollingOrder) -> "ClusterSpec":
        """Marks the rolling restart as read: operators do not have to be told of it any more."""
        return self._next(rolling=replace(rolling, dismissed=True))

    def with_claims(self, claims: Mapping[str, Claim]) -> "ClusterSpec":
        """Adds one claim to each of these instances."""
        return self._next(drains=_made(self.drains, claims))

    def without_claim(self, instance_id: str, kind: type[Claim]) -> "ClusterSpec":
        """Takes back the claim of this kind. The drain goes on while there is another claim."""
        return self._next(drains=_taken_back(self.drains, (instance_id,), kind))

    def without_drain(self, instance_id: str) -> "ClusterSpec":
        """Takes back all claims to the instance."""
        return self._next(drains=self._drains_but(instance_id))

    def scaled(
        self,
        num_added: int,
        kept: Collection[str],
        removed: Mapping[str, Remove],
        from_number: int = 0,
    ) -> "ClusterSpec":
        """Makes a whole scale in one step: adds new instances, lets the instances in `kept` stay
        after all, and makes the claims to the instances in `removed`. `from_number`: as in
        `with_instances_added`."""
        grown = self.with_instances_added(num_added, from_number)
        drains = _made(_taken_back(self.drains, kept, Remove), removed)
        return replace(grown, drains=drains)

    def adapter(self, name: str) -> Adapter | None:
        return next((each for each in self.adapters if each.name == name), None)

    def with_adapter(self, name: str, path: str, digest: str, rank: int) -> "ClusterSpec":
        """Adds an adapter under the next number. No other adapter may have this name."""
        added = Adapter(name, self.next_adapter, path, digest, rank)
        return self._next(adapters=(*self.adapters, added), next_adapter=added.number + 1)

    def without_adapter(self, name: str) -> "ClusterSpec":
        return self._next(adapters=tuple(each for each in self.adapters if each.name != name))

    def with_mark(self, reason: Closed, instance_id: str, mark: Mark) -> "ClusterSpec":
        return self._next(marks={**self.marks, reason: {**self.marked(reason), instance_id: mark}})

    def without_mark(self, reason: Closed, instance_id: str) -> "ClusterSpec":
        return self._next(marks=self._marks_but(instance_id, reason))

    def _marks_but(self, instance_id: str, *reasons: Closed) -> dict[Closed, Mapping[str, Mark]]:
        left = {
            reason: {key: each for key, each in marked.items() if key != instance_id}
            if reason in reasons
            else marked
            for reason, marked in self.marks.items()
        }
        return {reason: marked for reason, marked in left.items() if marked}

    def _drains_but(self, instance_id: str) -> dict[str, Claims]:
        return {key: claims for key, claims in self.drains.items() if key != instance_id}

    def _next(self, **changes: Any) -> "ClusterSpec":
        return replace(self, revision=self.revision + 1, **changes)


Drains = Mapping[str, Claims]


def _made(drains: Drains, claims: Mapping[str, Claim]) -> Drains:
    return {**drains, **{key: claimed(drains.get(key), each) for key, each in claims.items()}}


def _taken_back(drains: Drains, instance_ids: Collection[str], kind: type[Claim]) -> Drains:
    left = {
        key: each.without(kind) if key in instance_ids else each for key, each in drains.items()
    }
    return {key: each for key, each in left.items() if each is not None}


# -- why requests leave ----------------------------------------------------------------------------
# This also covers requests that were lost with their instance. Metrics and screens count by these
# words.

BY_HAND = "by_hand"


class ExitReason(StrEnum):
    """Why an instance's requests leave. In all cases but the last two they leave by moves, as far
    as they can."""

    DRAIN = "drain"
    SLOW = "slow"
    EVACUATION = "evacuation"
    SCALE_IN = "scale_in"
    RESTART = "restart"
    ROLLING_RESTART = "rolling_restart"
    DEATH = "death"
    FENCED = "fenced"


LEAVES_BY_MOVES = tuple(
    reason for reason in ExitReason if reason not in (ExitReason.DEATH, ExitReason.FENCED)
)
_OTHER_MOVES: tuple[StrEnum, ...] = (
    *(reason for reason in MoveReason if reason not in (MoveReason.DRAIN, MoveReason.EVACUATE)),
    *HelpReason,
)
MOVE_REASONS = (
    *(str(reason) for reason in LEAVES_BY_MOVES),
    *(reason.replace(" ", "_") for reason in _OTHER_MOVES),
    BY_HAND,
)
"""The reasons of moves: a small set, whatever reasons operators write."""


def why_emptied(spec: ClusterSpec, instance_id: str) -> ExitReason | None:
    """Why the instance is being emptied; None if it is not being emptied."""
    claims = spec.drains.get(instance_id)
    if claims is None:
        return None
    match claims.strongest:
        case Evacuate():
            return ExitReason.EVACUATION
        case Remove():
            return ExitReason.SCALE_IN
        case Restart(nonce=nonce):
            turns = spec.rolling.under_way if spec.rolling is not None else ()
            rolling = any(turn.nonce == nonce for turn in turns)
            return ExitReason.ROLLING_RESTART if rolling else ExitReason.RESTART
        case SlowDrain():
            return ExitReason.SLOW
        case _:
            return ExitReason.DRAIN


def move_reason(spec: ClusterSpec, source_id: str, reason: str) -> str:
    """The member of MOVE_REASONS for a move from `source_id` whose reason, in words, is given."""
    if reason == MoveReason.DRAIN:
        return why_emptied(spec, source_id) or ExitReason.DRAIN
    if reason == MoveReason.EVACUATE:
        return ExitReason.EVACUATION
    known = reason.replace(" ", "_")
    return known if known in MOVE_REASONS and reason in _OTHER_MOVES else BY_HAND


# -- which orders are refused ----------------------------------------------------------------------


class OrderRefusal(StrEnum):
    LAST_INSTANCE = "last_instance"
    """After the order no instance would take requests any more."""
    NOT_STARTED = "not_started"
    """The instance has no process yet that could be replaced."""
    LEAVING = "leaving"
    """The instance is removed once it is empty, and no further process of it starts."""
    NOT_DRAINING = "not_draining"
    NOTICED = "noticed"
    """The instance leaves by a notice, which would only make its claim again."""
    MIN_INSTANCES = "min_instances"
    ATTACHED_ONLY = "attached_only"
    """The model has attached servers only."""
    MAX_INSTANCES = "max_instances"
    PLAN_CHANGED = "plan_changed"
    """By now the scale would add or remove other instances than the plan to which the operator
    agreed."""
    NO_ROOM = "no_room"
    """Ray, or the machine, seems to have no room for more instances."""


def none_would_serve(
    spec: ClusterSpec, going: Collection[str], schedulable: Collection[str]
) -> bool:
    """Whether no instance would take all requests: each one is in `going`, drains, is not
    schedulable, or is an attached server of a model that has instances of the cluster's own."""
    left = set(schedulable) - set(going) - spec.drains.keys()
    return not (left if spec.attached_only else left - spec.attached.keys())


def emptying_refusal(
    spec: ClusterSpec, instance_ids: Collection[str], schedulable: Collection[str], *, force: bool
) -> OrderRefusal | None:
    """Why an order that drains or evacuates all of these instances is refused."""
    if force or set(instance_ids) <= spec.drains.keys():
        return None
    return _last(spec, instance_ids, schedulable)


def mark_refusal(
    spec: ClusterSpec,
    reason: Closed,
    instance_ids: Collection[str],
    schedulable: Collection[str],
    *,
    force: bool,
) -> OrderRefusal | None:
    """Why an order that marks all of these instances, for example with a cordon, is refused."""
    if force or not reason.stops_requests or set(instance_ids) <= spec.marked(reason).keys():
        return None
    return _last(spec, instance_ids, schedulable)


def restart_refusal(
    spec: ClusterSpec,
    instance_id: str,
    schedulable: Collection[str],
    *,
    started: bool,
    serving: bool,
    force: bool,
) -> OrderRefusal | None:
    """Why a restart is refused. `started`: the instance has had a process. `serving`: the instance
    serves, so that its capacity is missing while it restarts."""
    if not started:
        return OrderRefusal.NOT_STARTED
    claims = spec.drains.get(instance_id)
    if claims is not None and claims.goes:
        return OrderRefusal.LEAVING
    if claims is not None or force or not serving:
        return None
    return _last(spec, [instance_id], schedulable)


def undrain_refusal(spec: ClusterSpec, instance_id: str) -> OrderRefusal | None:
    claims = spec.drains.get(instance_id)
    if claims is None:
        return OrderRefusal.NOT_DRAINING
    by_notice = claims.notice is not None and claims.notice.by != "operator"
    return OrderRefusal.NOTICED if by_notice else None


def _last(
    spec: ClusterSpec, going: Collection[str], schedulable: Collection[str]
) -> OrderRefusal | None:
    return OrderRefusal.LAST_INSTANCE if none_would_serve(spec, going, schedulable) else None


# -- the plan of a scale ---------------------------------------------------------------------------
#
# Instances that are to be removed once empty do not count, because they are on their way out. The
# cheapest way to have more instances is to let one of them stay, so that comes first.


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """`previous` and `target` count the planned instances, including instances that are
    starting."""

    previous: int
    target: int
    num_added: int = 0
    undrained: tuple[str, ...] = ()
    """The instances that were to be removed and stay after all."""
    drained: tuple[str, ...] = ()
    """The instances that are removed once they are empty."""

    @property
    def changes(self) -> bool:
        return bool(self.num_added or self.undrained or self.drained)


def staying_instances(spec: ClusterSpec) -> tuple[str, ...]:
    """The instances that are to stay, whether they serve or not."""
    going = {key for key, claims in spec.drains.items() if claims.goes}
    return tuple(each for each in spec.instance_ids if each not in going)


def planned_instances(spec: ClusterSpec) -> tuple[str, ...]:
    """The instances of the cluster's own that are to stay: those that a scale counts."""
    return tuple(each for each in staying_instances(spec) if each not in spec.attached)


def plan_scale(
    spec: ClusterSpec,
    target: int,
    num_running: Mapping[str, int],
    agreed: Collection[str] | None = None,
    gone: Collection[str] = (),
) -> ScalePlan | OrderRefusal:
    """Plans which instances are added or removed to reach `target`. `num_running`: by instance that
    serves, how many requests run on it. Removed first are instances that do not serve or that the
    spec closes to requests, then the instances with the fewest requests, ties by id. Of the
    instances that were to be removed, those with the most requests stay first. An instance that is
    being restarted is removed last: it serves soon, and somebody waits for that. `agreed`: exactly
    these instances are removed, however busy they are by now. `gone`: instances whose processes
    have ended, so that they cannot stay.
    """
    if spec.attached_only:
        return OrderRefusal.ATTACHED_ONLY
    if target < 1:
        return OrderRefusal.MIN_INSTANCES
    if target > MAX_INSTANCES:
        return OrderRefusal.MAX_INSTANCES
    planned, closed = planned_instances(spec), spec.closed

    def order(instance_id: str) -> tuple[bool, bool, int, str]:
        drain = spec.drains.get(instance_id)
        is_shut = stop_requests(closed.get(instance_id, OPEN))
        takes_requests = instance_id in num_running and not is_shut
        is_restarted = drain is not None and drain.restarts
        return (is_restarted, takes_requests, num_running.get(instance_id, -1), instance_id)

    more = target - len(planned)
    if not more:
        return ScalePlan(target, target)
    if agreed is not None and (len(set(agreed)) != max(0, -more) or set(agreed) - set(planned)):
        return OrderRefusal.PLAN_CHANGED
    if more < 0:
        going = sorted(planned if agreed is None else set(agreed), key=order)[:-more]
        return ScalePlan(len(planned), target, drained=tuple(going))
    leaving = [each for each in spec.instance_ids if _may_stay(spec, each) and each not in gone]
    back = sorted(leaving, key=order, reverse=True)[:more]
    return ScalePlan(len(planned), target, more - len(back), tuple(back))


def scale_refusal(
    spec: ClusterSpec, plan: ScalePlan, schedulable: Collection[str], *, force: bool
) -> OrderRefusal | None:
    """Why a plan, which may have been made earlier, cannot be carried out unchanged. `schedulable`:
    the instances that may get requests now. `force`: the plan is carried out even if no instance
    would take requests then."""
    staying = set(planned_instances(spec))
    leaving = set(spec.instance_ids) - staying
    if set(plan.undrained) - leaving or set(plan.drained) - staying:
        return OrderRefusal.PLAN_CHANGED
    if plan.drained and not force and none_would_serve(spec, plan.drained, schedulable):
        return OrderRefusal.LAST_INSTANCE
    return None


def _may_stay(spec: ClusterSpec, instance_id: str) -> bool:
    """Whether the instance is to be removed but could still stay, because its process does not have
    to end."""
    claims = spec.drains.get(instance_id)
    is_hosted = instance_id not in spec.attached
    return is_hosted and claims is not None and claims.goes and claims.notice is None
