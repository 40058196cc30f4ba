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
    from llumctl.app import run

    sys.exit(run(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Whatever was opened first would get the number of a stream that the caller has closed, and be
    overwritten where a process is started with streams of its own."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _unwind_at_signals() -> None:
    """By default these end a program on the spot, and its terminal stays as it was: raw, or without
    a cursor. What is ignored stays so."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def _prefer_own_packages() -> None:
    """Imports the packages beside this one, before PYTHONPATH can bring others of their names."""
    root = str(Path(__file__).resolve().parents[1])
    for name in ("controller", "tui"):
        spec = PathFinder.find_spec(name, [root])
        if spec is not None and spec.loader is not None:
            sys.modules[name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
