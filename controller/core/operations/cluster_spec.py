"""What operators want of the cluster, beyond what it was started with. Every change is a new value
with the next revision, so that two operators cannot undo each other's change unseen."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from controller.core.operations.engine_change import AS_STARTED, EngineChange
from controller.core.operations.rolling import RollingOrder

SettingValue = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """Times are seconds since the epoch. `removes`: the instance goes for good once it is empty.
    `evacuates`: it goes at its deadline, whatever is left there.
    `restarts`: the nonce of its process, which is replaced once the instance is empty, or
    `at_once`, and the drain is over then. `plain`: the drain before this order, which goes on if
    the instance is not to go after all, or was restarted."""

    drain_id: str
    instance_id: str
    began_s: float
    deadline_s: float | None = None
    on_deadline: Literal["keep", "abort"] = "keep"
    removes: bool = False
    evacuates: bool = False
    restarts: str = ""
    at_once: bool = False
    actor: str = ""
    reason: str = ""
    plain: "DrainOrder | None" = None

    def following(self, before: "DrainOrder | None") -> "DrainOrder":
        """The drain `before` goes on by this order; it removes or restarts the instance if either
        did."""
        if before is None:
            return self
        if before.evacuates and not self.evacuates:
            return before if self.removes else replace(before, plain=self)
        order = replace(self, drain_id=before.drain_id, began_s=before.began_s)
        if (order.removes, bool(order.restarts)) == (before.removes, bool(before.restarts)):
            return replace(order, restarts=before.restarts, plain=before.plain)
        if order.removes or order.restarts:
            return replace(order, plain=before)
        then = replace(order, removes=before.removes, restarts=before.restarts, plain=order)
        return replace(then, at_once=before.at_once)


@dataclass(frozen=True, slots=True)
class ScaleHold:
    """An operator's own scale, to so many instances, which wins over auto-scaling. `since_s`:
    seconds since the epoch."""

    actor: str
    num_instances: int
    since_s: float


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`next_instance`: the number of the next new instance. A number is used once, so that records
    of `i-3` are about one instance. `settings`: the changed ones, by key. `autoscale_hold`: set
    until auto-scaling is released, or set to another mode. `rolling`: the last rolling restart,
    also when it is over. `engine`: the arguments of instances that `engines` does not name."""

    revision: int = 0
    instance_ids: tuple[str, ...] = ()
    next_instance: int = 0
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    drains: Mapping[str, DrainOrder] = field(default_factory=dict)
    """By instance id."""
    autoscale_hold: ScaleHold | None = None
    rolling: RollingOrder | None = None
    engine: EngineChange = AS_STARTED
    engines: Mapping[str, EngineChange] = field(default_factory=dict)
    """By instance: arguments that are not those of `engine`."""

    @staticmethod
    def first(num_instances: int) -> "ClusterSpec":
        ids = tuple(f"i-{number}" for number in range(num_instances))
        return ClusterSpec(0, ids, num_instances)

    def check(self) -> None:
        """Raises ValueError if the changes below cannot have made this spec."""
        if len(set(self.instance_ids)) != len(self.instance_ids):
            raise ValueError("an instance is named twice")
        unknown = set(self.drains) - set(self.instance_ids)
        if unknown:
            raise ValueError(f"a drain of {min(unknown)}, which is no instance")
        if any(key != order.instance_id for key, order in self.drains.items()):
            raise ValueError("a drain stands under the name of another instance")
        used = [int(each.removeprefix("i-")) for each in self.instance_ids]
        if self.next_instance <= max(used, default=-1):
            raise ValueError("the number of the next instance was used already")
        if self.revision < 0:
            raise ValueError("the revision is negative")
        if self.rolling is not None:
            self.rolling.check()
        if set(self.engines) - set(self.instance_ids):
            raise ValueError("engine arguments of an instance that there is not")
        if self.engine in self.engines.values():
            raise ValueError("an instance has the cluster's arguments as its own")

    def engine_of(self, instance_id: str) -> EngineChange:
        """The arguments with which the instance's next process starts."""
        return self.engines.get(instance_id, self.engine)

    @property
    def next_generation(self) -> int:
        """The number of the next set of engine arguments."""
        known = [self.engine, *self.engines.values()]
        if self.rolling is not None:
            known.append(self.rolling.engine)
        return 1 + max(each.generation for each in known)

    def with_instances_added(self, count: int) -> "ClusterSpec":
        last = self.next_instance + count
        added = tuple(f"i-{number}" for number in range(self.next_instance, last))
        return self._next(instance_ids=self.instance_ids + added, next_instance=last)

    def without_instance(self, instance_id: str) -> "ClusterSpec":
        """The instance's drain ends with it."""
        ids = tuple(each for each in self.instance_ids if each != instance_id)
        engines = {key: each for key, each in self.engines.items() if key != instance_id}
        drains = self._drains_but(instance_id)
        return self._next(instance_ids=ids, drains=drains, engines=engines)

    def with_settings(
        self, changes: Mapping[str, SettingValue], *, releases: bool = False
    ) -> "ClusterSpec":
        """`releases`: auto-scaling is not held any more."""
        hold = None if releases else self.autoscale_hold
        return self._next(settings={**self.settings, **changes}, autoscale_hold=hold)

    def held_by(self, hold: ScaleHold) -> "ClusterSpec":
        return self._next(autoscale_hold=hold)

    def with_rolling(
        self,
        rolling: RollingOrder,
        orders: Iterable[DrainOrder] = (),
        taken_back: Collection[str] = (),
        engines: Mapping[str, EngineChange] = MappingProxyType({}),
    ) -> "ClusterSpec":
        """A rolling restart, the restarts that it begins with this, and the instances whose restart
        is not to happen; a drain that one of them had before goes on. `engines`: instances that get
        other arguments with this. Once all are restarted, its arguments are the cluster's."""
        engine = rolling.engine if rolling.state == "done" else self.engine
        each = {key: self.engine_of(key) for key in self.instance_ids} | dict(engines)
        own = {key: found for key, found in each.items() if found != engine}
        spec = self.scaled(0, taken_back, orders)
        return replace(spec, rolling=rolling, engine=engine, engines=own)

    def dismissed(self, rolling: RollingOrder) -> "ClusterSpec":
        """The operators need not be told of that rolling restart any more."""
        return self._next(rolling=replace(rolling, dismissed=True))

    def with_drains(self, *orders: DrainOrder) -> "ClusterSpec":
        """A new drain of an instance replaces the one before."""
        return self._next(drains={**self.drains, **{each.instance_id: each for each in orders}})

    def without_drain(self, instance_id: str) -> "ClusterSpec":
        return self._next(drains=self._drains_but(instance_id))

    def falling_back(self, instance_id: str) -> "ClusterSpec":
        """The drain of this instance ends; a plain drain that it had before goes on."""
        return self.scaled(0, (instance_id,), ())

    def scaled(
        self, num_added: int, kept: Collection[str], orders: Iterable[DrainOrder]
    ) -> "ClusterSpec":
        """All of one scale in one step: new instances, the instances that stay after all (`kept`),
        and the drains of those that go."""
        grown = self.with_instances_added(num_added)
        drains = {key: each for key, each in self.drains.items() if key not in kept}
        plain = [each.plain for key, each in self.drains.items() if key in kept]
        drains |= {each.instance_id: each for each in plain if each is not None}
        drains |= {each.instance_id: each for each in orders}
        return replace(grown, drains=drains)

    def _drains_but(self, instance_id: str) -> dict[str, DrainOrder]:
        return {key: order for key, order in self.drains.items() if key != instance_id}

    def _next(self, **changes: Any) -> "ClusterSpec":
        return replace(self, revision=self.revision + 1, **changes)
