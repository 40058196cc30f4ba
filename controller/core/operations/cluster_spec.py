"""What operators want of the cluster, beyond what it was started with. Every change is a new value
with the next revision, so that two operators cannot undo each other's change unseen."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
    also when it is over."""

    revision: int = 0
    instance_ids: tuple[str, ...] = ()
    next_instance: int = 0
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    drains: Mapping[str, DrainOrder] = field(default_factory=dict)
    """By instance id."""
    autoscale_hold: ScaleHold | None = None
    rolling: RollingOrder | None = None

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

    def with_instances_added(self, count: int) -> "ClusterSpec":
        last = self.next_instance + count
        added = tuple(f"i-{number}" for number in range(self.next_instance, last))
        return self._next(instance_ids=self.instance_ids + added, next_instance=last)

    def without_instance(self, instance_id: str) -> "ClusterSpec":
        """The instance's drain ends with it."""
        ids = tuple(each for each in self.instance_ids if each != instance_id)
        return self._next(instance_ids=ids, drains=self._drains_but(instance_id))

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
    ) -> "ClusterSpec":
        """A rolling restart, the restarts that it begins with this, and the instances whose restart
        is not to happen; a drain that one of them had before goes on."""
        return replace(self.scaled(0, taken_back, orders), rolling=rolling)

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
