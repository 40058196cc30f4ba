"""Asks before a command does what others will notice."""

import contextlib
import sys

from controller.api.errors import RefusedError
from llumctl.text import output


def check_terminal(what: str, hint: str) -> None:
    """Raises RefusedError where there is no terminal to ask on; `what` is the command's name."""
    if not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stderr)):
        raise RefusedError(f"{what} asks before it acts, and there is no terminal to ask on", hint)


def ask(question: str) -> None:
    """Raises RefusedError unless the answer is yes; an end of input is none."""
    output.say_on(f"{question} [y/N] ")
    answer = ""
    with contextlib.suppress(UnicodeDecodeError):
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            output.say("\ninterrupted: nothing was changed")
            raise
    if not answer.endswith("\n"):
        output.say("")
    if answer.strip().lower() not in ("y", "yes"):
        raise RefusedError("the answer was not yes: nothing was changed")
