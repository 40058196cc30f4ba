"""What the dialogs share: a frame of one width above the screen that they were opened from."""

from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from tui.console import Console, console_of
from tui.drawing import ASCII

MAX_WIDTH = 100

Ended = TypeVar("Ended")


class Dialog(ModalScreen[Ended]):
    """`show` draws it: when it opens, when its size changes, and with each status."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "app.quit", show=False)]

    @property
    def console(self) -> Console:
        return console_of(self)

    @property
    def frame_width(self) -> int:
        return min(MAX_WIDTH, self.size.width - 2)

    def show(self) -> None:
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_class(self.console.glyphs is ASCII, "-ascii")
        self.show()

    def on_resize(self) -> None:
        self.show()
