"""An order is a row: whatever the command line, the console, the audit log, undo, the control API
and its description have to know of one kind of order stands in its class, once. `table.ORDERS` has
all of them.

An object of such a class is one order: what is asked for, and of what. What the controller does
with it, by the same kind, stands in `controller/adapters/http/*_orders.py`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Self, TypeVar
from urllib.parse import quote

from controller.api.wire.base import AnswerModel, OrderModel

Wanted = TypeVar("Wanted", bound=OrderModel)
Report = TypeVar("Report", bound=AnswerModel)

CLUSTER = "the cluster"
"""What the audit log names where an order is about no instance and no request."""


class Kind(StrEnum):
    """What an order is about."""

    INSTANCE = "instance"
    REQUEST = "request"
    CLUSTER = "cluster"


class Order(Generic[Wanted, Report]):
    """The columns of the row stand here; `wanted` is of one order."""

    kind: str
    """Its name; the audit log keeps it of an order that takes another one back."""
    about: Kind
    does: str
    """One line for the control API's description of itself."""
    path: str
    """Of the control API, with the name of the target in braces."""
    method: str = "POST"
    body: type[Wanted]
    report: type[Report]
    wants_body: bool = False
    """Whether the description says that a body is needed."""
    changes_spec: bool = True
    """Whether it changes the cluster's spec: such orders are carried out one after the other, and
    may name the revision that they are about."""
    undone_by: str = ""
    """The kind of the order that takes it back; empty if nothing does."""

    wanted: Wanted

    @classmethod
    def of(cls, target: str, wanted: Wanted) -> Self:
        raise NotImplementedError

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
        """What the audit log says of it."""
        return self.title

    @property
    def url(self) -> str:
        """Its path, with the target's id."""
        return self.path.format(
            **{f"{self.about}_id": quote(self.target, safe="")} if self.target else {}
        )


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


@dataclass(frozen=True)
class OnRequest(Order[Wanted, Report]):
    """`request_id`: the whole one."""

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
    wanted: Wanted
    about = Kind.CLUSTER

    @classmethod
    def of(cls, _: str, wanted: Wanted) -> Self:
        return cls(wanted)
