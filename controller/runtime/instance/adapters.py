"""An instance's LoRA adapters: carries out what `core/fleet/adapters.py` decides, and lets requests
wait for their adapter."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from controller.core.fleet.adapters import (
    Adapter,
    Drop,
    Event,
    Fetch,
    Fetched,
    InstanceAdapters,
    Load,
    Loaded,
    LookAgain,
    Looked,
    Report,
    Told,
    Unload,
    Unloaded,
)
from controller.ports.engine import Engine
from controller.ports.processes import AdapterFiles
from controller.runtime.instance.engine_thread import EngineThread
from controller.runtime.messages.members import AdaptersSet

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 60.0
"""How long a request waits at most for its adapter. An adapter of 1 GB is copied and loaded within
seconds; a disk of another machine may be slow."""


class AdapterFailedError(Exception):
    """The request's adapter cannot be used on this instance."""


class AdapterRunner:
    """Used on the event loop's thread. `report` has the next status tell which adapters there
    are."""

    def __init__(
        self, thread: EngineThread, files: AdapterFiles, report: Callable[[], None]
    ) -> None:
        self._thread = thread
        self._files = files
        self._report = report
        self.machine = InstanceAdapters()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """Set, and replaced, whenever an adapter is loaded or has failed."""

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def told(self, message: AdaptersSet) -> None:
        self._tell(Told(message.adapters, message.next_number))

    def is_loaded(self, number: int) -> bool:
        """Whether a request with this adapter (0: none) can be added now."""
        return not number or self.machine.is_loaded(number)

    async def wait_for(self, number: int) -> None:
        """Waits until the adapter is loaded. Raises AdapterFailedError if it cannot be used here,
        and TimeoutError."""
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            while not self.is_loaded(number):
                if why := self.machine.why_never(number):
                    raise AdapterFailedError(why)
                await self._changed.wait()

    def _tell(self, event: Event) -> None:
        for instruction in self.machine.handle(event):
            match instruction:
                case Fetch(adapter):
                    self._begin(self._fetch(adapter))
                case Load(adapter, folder):
                    load = partial(_load, adapter, folder)
                    number = adapter.number
                    self._thread.between_steps(load, partial(self._loaded, number))
                case Unload(number):
                    self._thread.between_steps(
                        partial(_unload, number), partial(self._unloaded, number)
                    )
                case Drop(adapter):
                    self._begin(asyncio.to_thread(self._files.drop, adapter))
                case LookAgain(number, after_s):
                    loop = asyncio.get_running_loop()
                    loop.call_later(after_s, self._tell, Looked(number))
                case Report():
                    self._report()
        self._changed.set()
        self._changed = asyncio.Event()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, adapter: Adapter) -> None:
        try:
            folder = await asyncio.to_thread(self._files.fetch, adapter)
        except ValueError as error:
            fetched = Fetched(adapter.number, why=str(error))
        except Exception as error:
            log.exception("the files of the adapter %s cannot be fetched", adapter.name)
            fetched = Fetched(adapter.number, why=f"{type(error).__name__}: {error}")
        else:
            fetched = Fetched(adapter.number, folder)
        self._tell(fetched)

    def _loaded(self, number: int, why: str) -> None:
        self._tell(Loaded(number, why))

    def _unloaded(self, number: int, in_use: bool) -> None:
        self._tell(Unloaded(number, in_use))


def _load(adapter: Adapter, folder: str, engine: Engine) -> str:
    """Returns why the engine does not take the adapter, or an empty text. Runs on the engine's
    thread."""
    try:
        engine.load_adapter(adapter, folder)
    except ValueError as error:
        return str(error) or "the engine does not take it"
    return ""


def _unload(number: int, engine: Engine) -> bool:
    """Returns whether the adapter is still in use. Runs on the engine's thread."""
    return not engine.unload_adapter(number)
