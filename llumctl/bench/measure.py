"""One measurement: the load, the cluster's own figures before, during and after it, Ctrl-C."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.wire.status import ClusterStatus
from llumctl.bench.runner import Results, Run

STATUS_INTERVAL_S = 2.0


@dataclass(slots=True)
class Observed:
    """What the cluster said of itself; `statuses` in order, `num_unanswered` statuses missing."""

    statuses: list[ClusterStatus] = field(default_factory=list)
    num_unanswered: int = 0


async def measure(run: Run, control: ControlClient | None) -> tuple[Results, Observed]:
    """SIGINT ends the run early, with the results so far."""
    observed = Observed()
    with _interrupted_by_sigint(run.stop):
        if control is None:
            return await run.run(), observed
        await _look(control, observed)
        is_over = asyncio.Event()
        watching = asyncio.create_task(_watch(control, observed, is_over))
        try:
            results = await run.run()
        finally:
            is_over.set()
            await watching
    return results, observed


async def _watch(control: ControlClient, observed: Observed, is_over: asyncio.Event) -> None:
    """Asks for the status every STATUS_INTERVAL_S, and once more when the run is over."""
    while not is_over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), STATUS_INTERVAL_S)
        await _look(control, observed)


async def _look(control: ControlClient, observed: Observed) -> None:
    """Asks in a thread: a controller that hangs must not hold up the load."""
    try:
        observed.statuses.append(await asyncio.to_thread(control.status))
    except LlumctlError:
        observed.num_unanswered += 1


@contextlib.contextmanager
def _interrupted_by_sigint(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
