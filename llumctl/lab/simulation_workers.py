"""Carries out simulated runs on all cores, in several processes.

A worker gets one run at a time through a pipe, and sends its progress and the result through the
same pipe. Results are returned in the order of the runs, whichever run ended first. Workers are
fresh interpreters, because a process in which numpy has started threads cannot be forked safely.

Ctrl-C reaches only the parent, because workers are started with SIGINT blocked. The parent then
ends the workers at once. If the parent is killed, the workers end too: in each worker a thread
waits for the parent's end.
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
"""The shortest time between two reports of a worker."""
REFRESH_S = 0.5
"""The longest time between two reports to the caller, so that the clock that the caller shows goes
on."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the runs are. `share`: the part of the work that is done, including runs under way,
    if all runs take equally long."""

    num_done: int
    num_runs: int
    share: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a run failed, with a traceback if that is a defect of llumctl."""

    message: str
    traceback: str = ""


class Workers:
    """A context for runs. Its processes end with it.

    `num_workers`: by default the number of cores that this process may use. If one worker is
    enough, runs are carried out in this process.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self._num_workers = num_workers or len(os.sched_getaffinity(0))
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kills all processes at once."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()

    def run(self, runs: Sequence[Run], on_progress: OnProgress | None = None) -> list[Ran]:
        """Carries out all runs, and returns the results in their order.

        Raises:
            UsageError: a run cannot be carried out.
            LlumctlError: a worker died.
        """
        tell = on_progress or (lambda _: None)
        if min(self._num_workers, len(runs)) <= 1:
            return _here(runs, tell)
        try:
            return self._spread(runs, tell)
        except BaseException:
            self.stop()  # the runs that are still under way are not needed
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
    """One process. `place`: the position of its run among all runs."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.place = -1
        # Otherwise the tracker would be started together with the first worker, and starting the
        # tracker unblocks SIGINT.
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
        """The share of the run that is done so far, or the run's result."""
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
    """The main function of a worker: it receives runs, and sends reports and results."""
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
    """Carries out the runs one after the other in this process."""
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
    """A function that calls `tell` at most once in `REPORT_S`."""
    next_s = 0.0

    def maybe(share: float) -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s >= next_s:
            next_s = now_s + REPORT_S
            tell(share)

    return maybe


class ProgressBar:
    """A progress bar on stderr, if stderr is a terminal. Call it with the progress. `title`: what
    is under way, if there are several parts."""

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
