"""Runs a program of the operator's and ends it, with its group, when the dashboard is gone.

The dashboard starts this file as the leader of a session, with one end of a socket: FD PROGRAM
ARGUMENT... The kernel closes the other end whichever way the dashboard ends, by SIGKILL too. The
kernel's own signal for a parent's death would reach the program alone, and not what that started.
Only the standard library is imported, and little of it: this is run for each program.
"""

import os
import signal
import sys
import threading

NOT_STARTED = 127


def _end_with(dashboard: int) -> None:
    while os.read(dashboard, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _main(dashboard: int, arguments: list[str]) -> int:
    """The program's exit status, or its end by the same signal. A program that could not be started
    is told to the dashboard."""
    os.set_inheritable(dashboard, False)
    # The program may take its time over the polite signal that the whole group gets. A handler,
    # since a signal that is ignored would be ignored by the program too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        program = os.posix_spawnp(
            arguments[0], arguments, os.environ, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
        )
    except OSError as error:
        os.write(dashboard, str(error).encode("utf-8", "replace"))
        return NOT_STARTED
    threading.Thread(target=_end_with, args=(dashboard,), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    os._exit(_main(int(sys.argv[1]), sys.argv[2:]))
