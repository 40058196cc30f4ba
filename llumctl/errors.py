"""How a command ends: every way out becomes lines on stderr and an exit code."""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from controller.api.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    LlumctlError,
)
from controller.api.text.quantities import printable
from llumctl.text import output

MAX_LOG_BYTES = 1 << 20


def guarded(command: Callable[[], int]) -> int:
    """Runs a command to its exit code; nothing but `SystemExit` gets through."""
    try:
        code = command()
    except LlumctlError as error:
        show(error.message, error.hint)
        code = error.exit_code
    except KeyboardInterrupt:
        output.say("interrupted")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_DONE
    except OSError as error:
        if _is_of_the_parser(error):
            show(output.refused(sys.stdout, error).message)
            code = EXIT_FAILED
        else:
            code = _unforeseen(error)
    except Exception as error:
        code = _unforeseen(error)
    output.flush()
    return code


def _is_of_the_parser(error: OSError) -> bool:
    """Whether the parser could not write: help and completions do not go through `output`."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_name == "echo"


def show(message: str, hint: str = "") -> None:
    """The command to try stands last, where the eye is."""
    told = printable(message, keep="\n")
    output.say(f"error: {told}")
    if hint:
        output.say(f"try:   {printable(hint)}")


def _unforeseen(error: Exception) -> int:
    """The parser's own complaints, known by what they carry; anything else is our defect."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        context = getattr(error, "ctx", None)
        command = "llumctl" if context is None else context.command_path
        show(format_message(), f"{command} --help")
        return int(getattr(error, "exit_code", EXIT_USAGE))
    if type(error).__name__ == "Abort":
        output.say("interrupted")
        return EXIT_INTERRUPTED
    written = _log(error)
    if written is None:
        traceback.print_exception(error)
        show(f"unexpected {type(error).__name__}: {error}")
    else:
        show(f"unexpected {type(error).__name__}: {error} (traceback in {written})")
    return EXIT_FAILED


def _log(error: Exception) -> Path | None:
    """Appends the traceback to a private file, which starts anew when it has grown large."""
    from controller.api.state import run_state

    with contextlib.suppress(OSError, LlumctlError):
        path = run_state.state_root() / "errors.log"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
            if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
                os.ftruncate(descriptor, 0)
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {sys.argv}\n")
            file.writelines(traceback.format_exception(error))
        return path
    return None
