"""What the operations of this folder share: the part of the controller that they use, the cluster's
spec, and the words with which an order is refused.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from controller.core.bounds import MAX_INSTANCES
from controller.core.emptying.openness import Openness
from controller.core.fleet.cluster_spec import ClusterSpec, OrderRefusal
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import Event
from controller.ports.processes import SpecStore
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.operations.operator_moves import OperatorMoves
from controller.runtime.controller.queries import MemberQueries
from controller.runtime.controller.rescheduler import Rescheduler
from controller.runtime.controller.roster import Directories, LiveConfig, MemberMail, Roster
from controller.runtime.messages.members import StatusPushed


class OperationRefusedError(Exception):
    """The operation was not done, and nothing changed."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


def refuse_instances(
    refusal: OrderRefusal | None,
    instance_ids: Sequence[str],
    cordoned: Iterable[str],
    despite: str = "drain {} --force",
    more: str = "scale +1",
    model: str = "",
) -> None:
    """Raises OperationRefusedError if an order about these instances is refused. `cordoned`:
    instances that would serve without their cordon. `despite`: the command that carries the order
    out even if no instance would serve then. `more`: the command by which one more serves.
    `model`: that of the instances, if there are several."""
    names, ids = ", ".join(instance_ids), " ".join(instance_ids)
    match refusal:
        case None:
            return
        case OrderRefusal.NOT_STARTED:
            message, hint = f"{names} has not started yet", "llumctl status"
        case OrderRefusal.LEAVING:
            message = f"{names} is to be removed once it is empty"
            hint = f"llumctl uncordon {ids}"
        case OrderRefusal.NOT_DRAINING:
            message, hint = f"{names} is not being drained", "llumctl status"
        case OrderRefusal.NOTICED:
            message = f"{names} leaves by a notice, and only what gave it can take it back"
            hint = "llumctl status      says what gave it"
        case _:
            message = f"without {names} no instance would serve{model and f' {model}'}"
            others = " ".join(sorted(set(cordoned) - set(instance_ids)))
            more = f"uncordon {others}" if others else more
            hint = f"llumctl {more}      or      llumctl {despite.format(ids)}"
    raise OperationRefusedError(refusal.value, message, hint)


def scaling_refused(
    refusal: OrderRefusal, target: int, num_added: int = 0, no_room: str = ""
) -> OperationRefusedError:
    """The error for a refused scaling. `no_room`: why `num_added` more instances would not start,
    in words."""
    match refusal:
        case OrderRefusal.MIN_INSTANCES:
            message = f"{target} instances are wanted; a cluster has at least one"
            hint = "llumctl scale 1      or      llumctl down"
        case OrderRefusal.ATTACHED_ONLY:
            message = "this model runs on attached servers only, and a scale starts none"
            hint = "llumctl attach URL      or      llumctl detach ID"
        case OrderRefusal.MAX_INSTANCES:
            message = f"{target} instances are wanted; {MAX_INSTANCES} are the most"
            hint = f"llumctl scale {MAX_INSTANCES}"
        case OrderRefusal.NO_ROOM:
            message = f"{num_added} more would not start: {no_room}"
            hint = f"llumctl status -o wide      or      llumctl scale +{num_added} --force"
        case _:
            message = "this plan cannot be carried out any more: other instances come or go by now"
            hint = "llumctl status      then      the same command again"
    return OperationRefusedError(refusal.value, message, hint)


class RevisionConflictError(Exception):
    """Somebody else changed the spec since the caller looked at it."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"revision {expected} was looked at, and {found} is the present one")
        self.expected, self.found = expected, found


class SpecKeeper:
    """The present spec, which is on disk before it counts. Without a `store` the spec only lasts as
    long as this process lives."""

    def __init__(
        self,
        spec: ClusterSpec,
        store: SpecStore | None = None,
        beside: "SpecKeeper | None" = None,
    ) -> None:
        """`beside`: the keeper of another model of the cluster."""
        self.spec = spec
        """The present spec; only `change` replaces it."""
        self._all: list[SpecKeeper] = [] if beside is None else beside._all
        self._all.append(self)
        self._store = store
        self.on_change: Callable[[ClusterSpec], None] = lambda _: None
        """Called with the spec before, when another spec has become the present one."""

    @property
    def first(self) -> "SpecKeeper":
        """The keeper of the first model. Its spec has what all models share."""
        return self._all[0]

    @property
    def revision(self) -> int:
        """The revision of the cluster: the number of changes of the specs of all its models."""
        return sum(each.spec.revision for each in self._all)

    @property
    def next_instance(self) -> int:
        """The number of the cluster's next new instance, of whichever model."""
        return max(each.spec.next_instance for each in self._all)

    def check_revision(self, if_revision: int | None) -> None:
        """Raises RevisionConflictError unless `if_revision` is None or the present revision of the
        cluster."""
        if if_revision is not None and if_revision != self.revision:
            raise RevisionConflictError(if_revision, self.revision)

    def change(self, spec: ClusterSpec) -> None:
        """Saves the spec, then makes it the present one. Its revision must be one after the present
        one, so that if two operators change the same spec, only one change is made.

        Raises RevisionConflictError, and any error of the store; then nothing has changed.
        """
        if spec.revision != self.spec.revision + 1:
            raise RevisionConflictError(spec.revision - 1, self.spec.revision)
        if self._store is not None:
            self._store.save(spec)
        before, self.spec = self.spec, spec
        self.on_change(before)


class OperatedCluster(Protocol):
    """The part of the controller that draining and scaling use."""

    model: str
    live: LiveConfig
    keeper: SpecKeeper
    scheduler: GlobalScheduler
    openness: Openness
    roster: Roster
    mail: MemberMail
    statuses: dict[str, StatusPushed]
    journal: Journal
    operator_moves: OperatorMoves
    queries: MemberQueries
    rescheduler: Rescheduler
    directories: Directories

    def now_s(self) -> float: ...

    def handle(self, event: Event) -> None: ...

    def launch(self, instance_ids: Sequence[str]) -> None: ...

    def restart(self, instance_id: str) -> None: ...

    def terminate(self, instance_id: str) -> None: ...
