"""A bar on stderr while runs are simulated; nothing at all where stderr is no terminal."""

import sys
from typing import TYPE_CHECKING, Self

from llumctl.simulate.workers import Progress
from llumctl.text import output

if TYPE_CHECKING:
    from rich import progress


class ProgressBar:
    """Call it with the progress. `title` says what is under way, where there is more than one
    thing."""

    def __init__(self) -> None:
        self.title = ""
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID

    def __enter__(self) -> Self:
        if output.can_redraw(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:.0f}%"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task("simulating", total=1.0)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        if self._bar is None:
            return
        runs = f"{progress.num_done}/{progress.num_runs} runs"
        self._bar.update(
            self._task,
            completed=progress.share,
            description="  ".join(part for part in (self.title, runs) if part),
            refresh=True,
        )
