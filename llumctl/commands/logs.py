"""`llumctl logs`: what the processes of the cluster wrote."""

import contextlib
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import UsageError
from llumctl import completion
from llumctl.commands.options import ClusterName
from llumctl.config import config_file
from llumctl.text import output

DEFAULT_MEMBER = "controller"
DEFAULT_LINES = 100
POLL_S = 0.2


def logs(
    member: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            autocompletion=completion.members,
            help="i-0, f-0, head, ...; default the controller's.",
            show_default=False,
        ),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--all", help="All there are, each line behind its member's name.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", metavar="N", help="Begin with the last N lines of each.")
    ] = DEFAULT_LINES,
    cluster: ClusterName = None,
) -> None:
    """Show the log of a member; of a cluster that was stopped, too."""
    if lines < 0:
        raise UsageError(f"--lines: must be 0 or more, not {lines}")
    if everyone and member is not None:
        raise UsageError(f"--all: the log of {member[:60]!r} is among all of them")
    name = config_file.cluster_name(cluster)
    from controller.api.state.log_tail import LogTail
    from llumctl import log_files

    folder = log_files.folder(name)
    one = DEFAULT_MEMBER if member is None else member
    found = log_files.choose(log_files.find(folder), None if everyone else one, name)
    show = _Printer(found, everyone=everyone)
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> LogTail:
            return stack.enter_context(contextlib.closing(LogTail(path)))

        tails = {key: opened(path) for key, path in found.items()}
        for key, tail in tails.items():
            begun = tail.last(lines)
            if not follow and lines:
                begun += tail.unfinished()
            if any(map(str.strip, begun)):
                show(key, begun)
            elif lines and not everyone:
                output.say(f"the log of {key} is empty so far: {found[key]}")
        while follow and not output.reader_left():
            time.sleep(POLL_S)
            for key, tail in tails.items():
                show(key, tail.added())
            if everyone:
                for key, path in log_files.find(folder).items():
                    if key not in tails:
                        tails[key] = opened(path)


class _Printer:
    """Lines on stdout: behind a name if several members speak, harmless on a terminal."""

    def __init__(self, names: Iterable[str], *, everyone: bool) -> None:
        self._width = max(map(len, names)) if everyone else 0
        self._on_terminal = output.is_terminal(sys.stdout)

    def __call__(self, name: str, lines: list[str]) -> None:
        from controller.api.state.log_tail import harmless

        if not lines:
            return
        prefix = f"{name:<{self._width}} | " if self._width else ""
        output.emit(
            "\n".join(prefix + (harmless(line) if self._on_terminal else line) for line in lines)
        )
