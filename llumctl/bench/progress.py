"""A bar on stderr while requests run; nothing at all where stderr is no terminal."""

import sys
import time
from typing import TYPE_CHECKING, Self

from llumctl.bench.runner import Results
from llumctl.text import output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """Call it with the results so far."""

    def __init__(self, num_requests: int) -> None:
        self._total = num_requests
        self._progress: Progress | None = None
        self._task: TaskID
        self._counted = (0, 0)  # results, and their tokens
        self._last = (time.perf_counter(), 0)

    def __enter__(self) -> Self:
        if output.can_redraw(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._progress.add_task("", total=self._total)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, results: Results) -> None:
        if self._progress is None:
            return
        now_s, num_tokens = time.perf_counter(), self._num_tokens(results)
        then_s, num_before = self._last
        rate = max(0, num_tokens - num_before) / max(now_s - then_s, 1e-3)
        self._last = (now_s, num_tokens)
        self._progress.update(
            self._task,
            completed=len(results.ended),
            description=f"sent {results.num_sent}  live {len(results.live)}"
            f"  failed {results.num_failed}  {rate:.0f} tokens/s",
            refresh=True,
        )

    def _num_tokens(self, results: Results) -> int:
        """Counts each ended request once, so that a long run costs no more than a short one."""
        num_seen, num_tokens = self._counted
        num_tokens += sum(len(result.answer.token_times_s) for result in results.ended[num_seen:])
        self._counted = (len(results.ended), num_tokens)
        return num_tokens + sum(len(answer.token_times_s) for answer in results.live.values())
