"""Many simulated runs on all cores, each in one of several processes.

A worker gets one run at a time through a pipe, and tells its progress and what came of it through
the same pipe. The order of the results is that of the runs, whichever ended first. The workers are
fresh interpreters: forking one in which numpy has begun threads is not safe.

Ctrl-C reaches the parent only, because workers are started with SIGINT blocked, and keep it so. The
parent ends them at once. A worker whose parent was killed ends too: a thread waits for that.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Self

from controller.api.errors import LlumctlError, UsageError
from controller.sim.run import Ran, Run, carry_out
from llumctl import output

if TYPE_CHECKING:
    from rich import progress

REPORT_S = 0.1
"""How long at least between two reports of a worker."""
REFRESH_S = 0.5
"""How often the caller is told at least, so that its clock goes on."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`share` of the work that is done, runs under way included, if all runs are equally long."""

    num_done: int
    num_runs: int
    share: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a run cannot be carried out; with a traceback if that is our defect."""

    message: str
    traceback: str = ""


class Workers:
    """A context in which runs are carried out; its processes end with it.

    `num_workers`: as many as this process may use cores, unless it is given. Where one is enough,
    runs are carried out in this process.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self._num_workers = num_workers or len(os.sched_getaffinity(0))
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all processes, whatever they are doing."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()

    def run(self, runs: Sequence[Run], on_progress: OnProgress | None = None) -> list[Ran]:
        """All of them, in the order given.

        Raises:
            UsageError: one of them cannot be carried out.
            LlumctlError: a worker died.
        """
        tell = on_progress or (lambda _: None)
        if min(self._num_workers, len(runs)) <= 1:
            return _here(runs, tell)
        try:
            return self._spread(runs, tell)
        except BaseException:
            self.stop()  # what they still do is of no use for the next runs
            raise

    def _spread(self, runs: Sequence[Run], tell: OnProgress) -> list[Ran]:
        found: list[Ran | None] = [None] * len(runs)
        shares = [0.0] * len(runs)
        places = iter(range(len(runs)))
        while len(self._workers) < min(self._num_workers, len(runs)):
            self._workers.append(_Worker())
        busy: dict[Connection, _Worker] = {}
        for worker, place in zip(self._workers, places, strict=False):
            worker.give(place, runs[place])
            busy[worker.pipe] = worker
        while busy:
            for pipe in wait(list(busy), REFRESH_S):
                assert isinstance(pipe, Connection)
                worker = busy[pipe]
                answer = worker.answer()
                if isinstance(answer, float):
                    shares[worker.place] = answer
                    continue
                found[worker.place], shares[worker.place] = answer, 1.0
                if (following := next(places, None)) is None:
                    del busy[pipe]
                else:
                    worker.give(following, runs[following])
            num_done = sum(each is not None for each in found)
            tell(Progress(num_done, len(runs), sum(shares) / len(runs)))
        return [each for each in found if each is not None]


class _Worker:
    """One process, and the run that it has: its `place` among all runs."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.place = -1
        # To start the tracker, which the first worker would do, unblocks SIGINT again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def give(self, place: int, run: Run) -> None:
        self.place = place
        try:
            self.pipe.send(run)
        except OSError:
            raise self._died() from None

    def answer(self) -> Ran | float:
        """The share of its run that is done, or what came of it."""
        try:
            answer: Ran | float | _Failed = self.pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if not isinstance(answer, _Failed):
            return answer
        if answer.traceback:
            raise RuntimeError(f"{answer.message} in a simulated run\n{answer.traceback}")
        raise UsageError(answer.message)

    def _died(self) -> LlumctlError:
        self.process.join()
        code = self.process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        memory = (
            "; the machine may lack memory for so many at once" if code == -signal.SIGKILL else ""
        )
        return LlumctlError(f"a process with a simulated run ended {how}{memory}", "--jobs 1")


def _work(pipe: Connection) -> None:
    """A worker's life: runs come, reports and results go."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            run = pipe.recv()
            pipe.send(_outcome(run, pipe))
    except (EOFError, OSError):
        return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _outcome(run: Run, pipe: Connection) -> Ran | _Failed:
    try:
        return carry_out(run, _seldom(pipe.send))
    except OSError:
        raise
    except ValueError as error:
        return _Failed(str(error))
    except Exception as error:
        return _Failed(f"{type(error).__name__}: {error}", traceback.format_exc())


def _here(runs: Sequence[Run], tell: OnProgress) -> list[Ran]:
    """One after the other, in this process."""
    found: list[Ran] = []
    for num_done, run in enumerate(runs):

        def within(share: float, num_done: int = num_done) -> None:
            tell(Progress(num_done, len(runs), (num_done + share) / len(runs)))

        try:
            found.append(carry_out(run, _seldom(within)))
        except ValueError as error:
            raise UsageError(str(error)) from error
        tell(Progress(len(found), len(runs), len(found) / len(runs)))
    return found


def _seldom(tell: Callable[[float], None]) -> Callable[[float], None]:
    """Tells it at most once in `REPORT_S`."""
    next_s = 0.0

    def maybe(share: float) -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s >= next_s:
            next_s = now_s + REPORT_S
            tell(share)

    return maybe


class ProgressBar:
    """A bar on stderr, if that is a terminal. Call it with the progress. `title` says what is under
    way, where there is more than one thing."""

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
