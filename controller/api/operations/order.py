"""An order is a row. The class of one kind of order says, once, all that the command line, the
console, the audit log, undo, the control API and its description have to know of it, with the body
in which it is sent and the report that answers it. `table.ORDERS` has all kinds.

An object of such a class is one order: what is asked for, and of which instance or request. What
the controller does with it stands, under the same kind, in `controller/adapters/http/*_orders.py`.
Some orders go on after their answer: `progress` reads from the statuses, which come anyway, how far
such an order is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Any, Generic, Protocol, Self, TypeVar, cast
from urllib.parse import quote

from controller.api.errors import LastInstanceError
from controller.api.text import hints
from controller.api.text.status_words import rolling_progress
from controller.api.wire import AnswerModel, OrderModel, Reason, Revision, SettingValue
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus


class OrderBody(OrderModel):
    """The fields that the bodies of all orders have."""

    dry_run: bool = False
    """Says what would change, and changes nothing."""
    reason: Reason = ""
    """The operator's reason, for the audit log."""


class SpecOrderBody(OrderBody):
    """The body of an order that changes the cluster's spec."""

    if_revision: Revision = None
    """The call is refused if the cluster has a different revision."""


Wanted = TypeVar("Wanted", bound=OrderBody)
Report = TypeVar("Report", bound=AnswerModel)
Given = TypeVar("Given", covariant=True)
CLUSTER = "the cluster"
"""What the audit log names as the target of an order about the whole cluster."""


def _is_name(word: str) -> bool:
    return word.isalpha() and word.islower()


class Kind(StrEnum):
    """What an order is about."""

    INSTANCE = "instance"
    REQUEST = "request"
    CLUSTER = "cluster"


class Danger(StrEnum):
    """How the console asks before it gives an order. `choose`: the operator chooses what the order
    says. `confirm`: the operator confirms its plan, which may ask for a typed name."""

    NONE = "none"
    CHOOSE = "choose"
    CONFIRM = "confirm"


class End(StrEnum):
    """How an order ended for one instance."""

    DRAINED = "drained"
    REMOVED = "removed"
    RESTARTED = "restarted"
    STARTED = "started"
    ROLLED = "rolled"
    """All instances were restarted. `Awaited` names no instance then."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Something that an order waits for after its answer. `drain_id`: the drain or the rolling
    restart that must end. `incarnation`: the incarnation of the process that must go."""

    instance_id: str
    end: End
    drain_id: str = ""
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome that a report describes. `can_undo`: undo can take the order back, unless
    somebody changes the cluster first."""

    text: str
    can_undo: bool = False
    failed: bool = False
    """The controller answered, but what the order asks for did not happen."""
    awaits: tuple[Awaited, ...] = ()
    """What is still under way, and can be followed in the statuses."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[Given]):
    """What an order would do, according to the control API's dry run. The first line is a summary.
    `order`: the order to give, at the revision of the plan; None if there is nothing to do."""

    lines: tuple[str, ...]
    order: Given | None
    name_to_type: str = ""
    """What an operator must type to give the order; empty: `y` is enough."""


class Controller(Protocol):
    """The calls that a plan makes to a controller. `controller.api.client` makes them over HTTP."""

    def status(self) -> ClusterStatus: ...

    def send(self, order: "Order[Wanted, Report]", *, key: str = "") -> Report: ...


class Order(Generic[Wanted, Report]):
    """The attributes before `wanted` are the columns of the row; `wanted` is the body of one
    order."""

    kind: str
    """The order's name. In the audit log, an operation's entry has the name of the order that takes
    the operation back."""
    about: Kind
    does: str
    """One line for the control API's description of itself."""
    path: str
    """The path of the control API, with the name of the target in braces."""
    method: str = "POST"
    body: type[Wanted]
    report: type[Report]
    wants_body: bool = False
    """Whether the API's description says that a body is needed."""
    changes_spec: bool = True
    """Whether the order changes the cluster's spec. Such orders are carried out one after the
    other, and may name the revision that they are about."""
    keyed: bool = False
    """Whether the order has more effect if it is carried out twice. A client then sends the order
    with a key, by which the controller recognises a repetition if the answer was lost."""
    repeatable: bool = False
    """Whether the order names the state that it makes, so that it may be sent twice even without a
    key."""
    undone_by: str = ""
    """The kind of the order that takes this one back; empty if there is none."""
    word: str
    """The label of the button that gives the order."""
    meaning: str = ""
    """What the console's help says of the order; empty: the console does not give it."""
    key: str = ""
    """The console's key, by Textual's name; empty: the order can only be typed."""
    typed: str = ""
    """What operators type in the console, with the names of the arguments."""
    usage: str = ""
    """What operators type on the command line, with the names of the arguments."""
    danger: Danger = Danger.CONFIRM
    several: bool = True
    """Whether the console gives the order for all marked rows at once."""

    model: str = ""
    """For an order about a whole model: the name of the model, if the cluster serves several, and
    the client that sends the order is not for one of them."""
    wanted: Wanted

    @classmethod
    def of(cls, target: str, wanted: Wanted) -> Self:
        raise NotImplementedError

    @classmethod
    def of_each(cls, targets: Sequence[str], wanted: Wanted | None = None) -> list[Self]:
        """One order for each target that an operator names or marks. `wanted`: None takes the
        body's defaults."""
        return [cls.of(each, wanted or cls.body()) for each in targets]

    @classmethod
    def taking_back(cls, target: str, previous: Mapping[str, SettingValue]) -> Self:
        """The order of this kind that brings the previous values back."""
        return cls.of(target, cls.body.model_validate(cls.bringing_back(previous)))

    @classmethod
    def bringing_back(cls, previous: Mapping[str, SettingValue]) -> Mapping[str, Any]:
        """The fields of the body that brings these values back."""
        return {}

    @classmethod
    def verb(cls) -> str:
        """The command's name on the command line: `drain`, or `lora load`."""
        return " ".join(takewhile(_is_name, cls.usage.split()[1:]))

    @property
    def target(self) -> str:
        """The id of the instance or the request; empty for an order about the cluster."""
        return ""

    @property
    def title(self) -> str:
        """`drain i-7`."""
        raise NotImplementedError

    @property
    def deed(self) -> str:
        """What the audit log says of the order."""
        return self.title

    @property
    def command(self) -> str:
        """The command line that gives the same order."""
        return f"llumctl {self.title}"

    @property
    def whole_command(self) -> str:
        """The command line, which also names the model."""
        return hints.aimed(self.command, "", model=self.model)

    @property
    def question(self) -> str:
        """`Drain i-7?`"""
        return f"{self.word} {self.target}?"

    def named(self, text: str) -> str:
        """The text, with the name of the model before it if the order names one."""
        return f"{self.model}: {text}" if self.model else text

    @property
    def url(self) -> str:
        """The order's path, with the target's id."""
        return self.path.format(
            **{f"{self.about}_id": quote(self.target, safe="")} if self.target else {}
        )

    @property
    def lane(self) -> str:
        """Orders of one lane are sent one after the other. Each order that changes the spec carries
        the revision that the order before it produced."""
        return "spec" if self.changes_spec else self.target

    @property
    def revision(self) -> int | None:
        """The cluster's revision that the order is about."""
        return cast("int | None", getattr(self.wanted, "if_revision", None))

    @property
    def takes_s(self) -> float:
        """How many seconds longer the controller may take to answer this order than other calls."""
        return 0.0

    def on(self, _model: str) -> Self:
        """The same order about this model of the cluster. An order about an instance or a request
        needs none: they have one."""
        return self

    def but(self, **changes: object) -> Self:
        """The same order with other values in these fields of its body."""
        wanted = self.wanted.model_copy(update=changes)
        return cast("Self", replace(cast("Any", self), wanted=wanted))

    def at(self, revision: int) -> Self:
        """The same order at another revision."""
        return self.but(if_revision=revision) if self.changes_spec else self

    def dry(self) -> Self:
        return self.but(dry_run=True)

    def asked(self, client: Controller, name: str) -> tuple[Report, Self, str]:
        """Makes a dry run of the order. Returns its report; the order to give, at the report's
        revision; and what an operator must type to give it: `name` if no other instance would
        serve, else nothing."""
        order, to_type = self, ""
        try:
            report = client.send(order.dry())
        except LastInstanceError:
            order, to_type = self.but(force=True), name
            report = client.send(order.dry())
        return report, order.at(cast("Any", report).revision), to_type

    def plan(self, client: Controller) -> "Plan[Order[Any, Any]]":
        """What the order would do. Raises LlumctlError if the order would be refused."""
        raise NotImplementedError

    def outcome(self, report: Report) -> Outcome:
        raise NotImplementedError


@dataclass(frozen=True)
class OnInstance(Order[Wanted, Report]):
    instance_id: str
    wanted: Wanted
    about = Kind.INSTANCE

    @classmethod
    def of(cls, target: str, wanted: Wanted) -> Self:
        return cls(target, wanted)

    @property
    def target(self) -> str:
        return self.instance_id

    @property
    def title(self) -> str:
        return f"{self.kind} {self.instance_id}"

    @property
    def command(self) -> str:
        force = " --force" if getattr(self.wanted, "force", False) else ""
        return f"llumctl {self.verb()} {self.instance_id}{force}"


@dataclass(frozen=True)
class OnRequest(Order[Wanted, Report]):
    """The base of the orders about a request. `request_id`: the whole id."""

    request_id: str
    wanted: Wanted
    about = Kind.REQUEST
    changes_spec = False

    @classmethod
    def of(cls, target: str, wanted: Wanted) -> Self:
        return cls(target, wanted)

    @property
    def target(self) -> str:
        return self.request_id

    @property
    def title(self) -> str:
        return f"{self.kind} {self.request_id}"


@dataclass(frozen=True)
class OnCluster(Order[Wanted, Report]):
    """The base of the orders about the whole cluster, or about one of several models of it."""

    wanted: Wanted
    model: str = ""
    about = Kind.CLUSTER

    @classmethod
    def of(cls, _: str, wanted: Wanted) -> Self:
        return cls(wanted)

    def on(self, model: str) -> Self:
        return replace(self, model=model)

    @property
    def url(self) -> str:
        return f"/models/{quote(self.model)}{self.path}" if self.model else self.path


_STARTING = (InstanceState.STARTING, InstanceState.RESTARTING, InstanceState.FAILED)


@dataclass(frozen=True, slots=True)
class Progress:
    text: str
    is_over: bool = False
    failed: bool = False


def progress(wanted: Sequence[Awaited], status: ClusterStatus, model: str = "") -> Progress:
    """The progress of all awaited things together; it is over when each of them is over. `model`:
    the model that the order was about, if the cluster serves several."""
    instances = {item.id: item for item in status.instances}
    found = [
        (
            each,
            _rolled(each, status, model)
            if each.end is End.ROLLED
            else _one(each, instances.get(each.instance_id)),
        )
        for each in wanted
    ]
    if len(found) == 1:
        return found[0][1]
    return Progress(
        ", ".join(f"{each.instance_id}: {it.text}" for each, it in found),
        is_over=all(it.is_over for _, it in found),
        failed=any(it.failed for _, it in found),
    )


def _rolled(wanted: Awaited, status: ClusterStatus, model: str) -> Progress:
    of_model = status.of_model(model)
    found = status.rolling if of_model is None else of_model.rolling
    if found is None or found.rolling_id != wanted.drain_id:
        return Progress("another one began", is_over=True, failed=True)
    text = rolling_progress(found).removeprefix("rolling restart: ")
    return Progress(text, found.state != "going", failed=found.state in ("failed", "stopped"))


def _one(wanted: Awaited, found: InstanceStatus | None) -> Progress:
    if wanted.end is End.STARTED:
        return _start(found)
    if found is None:
        is_removed = wanted.end is End.REMOVED
        return Progress("removed" if is_removed else "it is gone", True, failed=not is_removed)
    drain = found.drain
    if drain is None or drain.drain_id != wanted.drain_id:
        return _without_drain(wanted, found)
    if wanted.end is End.RESTARTED and found.state in _STARTING:
        return _start(found)
    if drain.safe_to_delete and wanted.end is End.DRAINED:
        return Progress("drained", is_over=True)
    left = drain.num_requests_left
    words = f"{left} request{'' if left == 1 else 's'} left, {found.num_moves_out or 0} migrating"
    return Progress(words)


def _start(found: InstanceStatus | None) -> Progress:
    if found is None:
        return Progress("not launched yet")
    if found.state is InstanceState.ACTIVE:
        return Progress("serves", is_over=True)
    if found.state is InstanceState.FAILED:
        return Progress(f"failed: {found.detail}".rstrip(": "), is_over=True, failed=True)
    return Progress(found.detail or str(found.state))


def _without_drain(wanted: Awaited, found: InstanceStatus) -> Progress:
    """The progress when the drain is over and the instance still exists. After a restart the
    instance may have a new process."""
    before = wanted.incarnation
    if wanted.end is End.RESTARTED and before is not None and found.incarnation > before:
        if found.state not in _STARTING:
            return Progress("restarted", is_over=True)
        return _start(found)
    return Progress("taken back, or given up at its deadline", is_over=True, failed=True)
