"""`llumctl top --web` from its first line on the terminal to its last."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from controller.api.errors import RefusedError
from llumctl.text import output
from llumctl.web.connections import listening
from llumctl.web.doors import CODE_LIFE_S, Doors
from llumctl.web.server import Server

HOST = "127.0.0.1"
BACKGROUND_S = 1.0
"""How often a job in the background looks whether it has its terminal again."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(command: Sequence[str], port: int) -> None:
    """Serves until Ctrl-C. `port` 0: any that is free.

    The address goes to the terminal only, and no browser is started with it: arguments of
    processes can be read by everybody on this machine.

    Raises:
        RefusedError: the port is not free.
    """
    asyncio.run(_serve(command, port))


async def _serve(command: Sequence[str], port: int) -> None:
    doors = Doors(time.monotonic)
    server = Server(command, doors, output.say)
    async with contextlib.AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(listening(server.app(), HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RefusedError(
                f"cannot listen on {HOST}:{port}: {reason}", "llumctl top --web --port 0"
            ) from error
        _tell_address(doors, port)
        with _on_enter(partial(_tell_address, doors, port)):
            await _ended()


def _tell_address(doors: Doors, port: int) -> None:
    output.emit(f"http://{HOST}:{port}/?code={doors.new_code()}")
    output.say(f"opens once, within {CODE_LIFE_S / 60:.0f} minutes; Enter: another; Ctrl-C: end")


async def _ended() -> None:
    ended = asyncio.Event()
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()


@contextlib.contextmanager
def _on_enter(react: Callable[[], None]) -> Iterator[None]:
    """Calls back for each line that is typed, where there is a terminal to type on."""
    stdin, loop = sys.stdin, asyncio.get_running_loop()
    if stdin is None or not output.is_terminal(stdin):
        yield
        return
    descriptor = stdin.fileno()
    later: asyncio.TimerHandle | None = None

    def listen() -> None:
        loop.add_reader(descriptor, typed)

    def typed() -> None:
        nonlocal later
        try:
            # A job in the background that reads its terminal would be stopped, and what it leaves
            # unread would wake it all the time.
            if os.tcgetpgrp(descriptor) != os.getpgrp():
                loop.remove_reader(descriptor)
                later = loop.call_later(BACKGROUND_S, listen)
                return
            line = os.read(descriptor, 1024)
        except OSError:  # The terminal is gone, and would be said to have news for ever.
            line = b""
        if b"\n" in line:
            react()
        elif not line:
            loop.remove_reader(descriptor)

    listen()
    try:
        yield
    finally:
        if later is not None:
            later.cancel()
        loop.remove_reader(descriptor)
