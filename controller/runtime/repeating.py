"""The repeated work of a process, in turns: a turn that fails is logged and tried again; its loop
goes on, and so does all other repeated work. Otherwise a full disk, a Ray that is away or a defect
in one watch would end the process, or a loop that nobody awaits, without any message.

This is a module of its own because each kind of process uses it, and none may import another one's
modules.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from controller.api.errors import LlumctlError
from controller.ports.processes import LauncherLostError

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""The pause after a turn that failed, because ten errors a second would bury the log."""


class GuardedTurns:
    """Takes turns by name, one after the other. `now_s` is any monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._retry_at_s: dict[str, float] = {}

    def take(self, name: str, turn: Callable[[], object]) -> None:
        now_s = self._now_s()
        if now_s < self._retry_at_s.get(name, now_s):
            return
        try:
            turn()
        except Exception as error:
            self._retry_at_s[name] = now_s + RETRY_S
            is_defect = not isinstance(error, LlumctlError | LauncherLostError | OSError)
            log.error("%s failed, and is tried again: %s", name, error, exc_info=is_defect)


async def repeat(
    every_s: float,
    name: str,
    turn: Callable[[], Awaitable[None] | None],
    needed: asyncio.Event | None = None,
) -> None:
    """Takes a turn every `every_s` for ever, the first one after `every_s`. `needed`: turns are
    only taken while this event is set, so that a process that has nothing to do does not wake."""
    while True:
        if needed is not None:
            await needed.wait()
        await asyncio.sleep(every_s)
        try:
            if (pending := turn()) is not None:
                await pending
        except Exception:
            log.exception("%s failed, and is tried again", name)
