"""Runs one of the operator's programs, and ends it with its group when the dashboard is gone.

The dashboard starts this file as the leader of a session and passes it one end of a socket: FD
PROGRAM ARGUMENT... When the dashboard ends, even by SIGKILL, the kernel closes the other end. (The
kernel's own signal for a parent's death would reach only the program, not the processes that it
started.) The file stands alone and imports little of the standard library, since Python runs it
anew for each program.
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
    """Returns the program's exit status, or ends by the signal that ended the program. If the
    program could not be started, it tells the dashboard why."""
    os.set_inheritable(dashboard, False)
    # The whole group gets SIGTERM, and the guard has to outlive a program that is slow to end. So
    # the guard needs a handler. It must not ignore the signal, because the program would inherit
    # that.
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
