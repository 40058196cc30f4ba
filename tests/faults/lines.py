"""What a child process and its test say to each other: one JSON object a line.

Commands come on stdin, `{"do": name, ...}`; what happens goes to stdout, `{"said": what, ...}`.
All else that a library prints goes to stderr.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Commands = Mapping[str, Callable[..., object]]

PR_SET_PDEATHSIG = 1

_out = sys.stdout


def take_over_stdout() -> None:
    """Call once, first."""
    global _out
    _out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)


def die_with_the_test() -> None:
    """Also while stopped, and when the test was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def say(what: str, **fields: Any) -> None:
    _out.write(json.dumps({"said": what, **fields}) + "\n")


def listen(commands: Commands) -> None:
    """Carries them out on the running loop. The end of stdin is the end of the process."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            command = json.loads(line)
            loop.call_soon_threadsafe(partial(commands[command.pop("do")], **command))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
