"""`llumctl` and `python -m llumctl`."""

import os
import signal
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main() -> None:
    _open_standard_streams()
    _unwind_at_signals()
    _prefer_own_packages()
    from controller.api.interrupts import interrupts_arrive
    from llumctl.app import run

    with interrupts_arrive():
        code = run(sys.argv[1:])
    sys.exit(code)


def _open_standard_streams() -> None:
    """Opens the standard streams that the caller has closed. Otherwise the first file that is
    opened would get the number of such a stream, and would be overwritten when a process with
    streams of its own is started."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _unwind_at_signals() -> None:
    """Makes these signals raise SystemExit. By default they end a program at once, and leave its
    terminal raw or without a cursor. A signal that is ignored stays ignored."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def _prefer_own_packages() -> None:
    """Imports the packages next to this one, so that PYTHONPATH cannot put others in their
    place."""
    root = str(Path(__file__).resolve().parents[1])
    for name in ("controller", "tui"):
        spec = PathFinder.find_spec(name, [root])
        if spec is not None and spec.loader is not None:
            sys.modules[name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
