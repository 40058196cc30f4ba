"""What an operator chooses from before an order is given."""

from collections.abc import Callable
from dataclasses import dataclass

from controller.api.client import ControlClient
from tui.actions.order import Order, Together


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an order would take, by the control API's dry run, or why it cannot be carried out."""

    text: str
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """`estimate`: asked while the cursor is on the choice, and before it can be taken."""

    name: str
    text: str
    order: Order | Together
    estimate: Callable[[ControlClient], Estimate] | None = None


@dataclass(frozen=True, slots=True)
class Choices:
    question: str
    choices: tuple[Choice, ...]
