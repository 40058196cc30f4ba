"""What the operator chose to see; data does not change it."""

from dataclasses import dataclass, field

from tui.panes.instances import ORDERS
from tui.panes.layout import Pane


@dataclass
class View:
    sort: str = "freeness"
    descending: bool = False
    filters: dict[Pane, str] = field(default_factory=dict)
    focused: Pane = Pane.INSTANCES
    tab: Pane = Pane.QUEUE
    """The lower pane that shows where there is room for one."""
    zoomed: Pane | None = None
    expanded: bool = False
    """Whether events show causes and figures, in the whole width."""
    follow: bool = True
    """The newest event stays in view."""

    def sort_by(self, column: str) -> None:
        """In the direction that puts what an operator looks for first; again: reversed."""
        again = column == self.sort
        self.descending = not self.descending if again else ORDERS[column]
        self.sort = column

    def go_to(self, pane: Pane) -> None:
        self.focused = pane
        if pane is not Pane.INSTANCES:
            self.tab = pane
            self.expanded = self.expanded and pane is Pane.EVENTS
        if self.zoomed is not None:
            self.zoomed = pane

    def back(self) -> None:
        """Goes one step: out of the zoom, then to the instances."""
        if self.zoomed is not None:
            self.zoomed = None
        else:
            self.focused = Pane.INSTANCES
