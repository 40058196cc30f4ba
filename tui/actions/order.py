"""What an operator tells the cluster to do: an order, its plan, and what came of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from controller.api.client import ControlClient
from tui.actions.progress import Awaited

if TYPE_CHECKING:
    from tui.actions.own import Run


class Order(Protocol):
    """A call of the control API that changes the cluster, as a value."""

    @property
    def action_id(self) -> str:
        """The action of the registry that gives such orders."""

    @property
    def title(self) -> str:
        """`drain i-7`."""

    @property
    def command(self) -> str:
        """What does the same on the command line."""

    @property
    def lane(self) -> str:
        """Orders of one lane are sent one after the other."""

    @property
    def revision(self) -> int | None:
        """The cluster's revision that was on the screen; None for an order that carries none."""

    @property
    def takes_s(self) -> float:
        """How long the controller may take to answer."""

    def at(self, revision: int) -> Self:
        """The same order at another revision."""

    def post(self, client: ControlClient, key: str) -> Any:
        """Gives the order and returns the controller's report."""

    def told(self, client: ControlClient, key: str) -> Any:
        """Asks what the order with that key was answered."""

    def outcome(self, report: Any) -> "Outcome": ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a report says. `can_undo`: `U` takes it back, unless somebody changes it first."""

    text: str
    can_undo: bool = False
    failed: bool = False
    """The controller answered, and what was wanted did not happen."""
    awaits: tuple[Awaited, ...] = ()
    """What is not over yet, and is followed in the statuses."""


@dataclass(frozen=True, slots=True)
class Together:
    """Orders that the operator gave at once: each is sent, and logged, as one of its own."""

    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an order would do, by the control API's dry run. The first line says it in short.
    `order`: the one to give, at the revision of the plan; None if there is nothing to do."""

    lines: tuple[str, ...]
    order: "Order | Together | Run | None"
    name_to_type: str = ""
    """What an operator must type to have it; empty: `y` is enough."""


class Asked(Protocol):
    """What is agreed to only after its plan was shown."""

    @property
    def question(self) -> str:
        """`Drain i-7?`"""

    @property
    def word(self) -> str:
        """What the button that gives the order says."""

    def plan(self, client: ControlClient) -> Plan: ...


class Planned(Order, Asked, Protocol):
    """An order that is given only after its plan was shown."""
