"""`llumctl logs`: what the processes of the cluster wrote, each into its file."""

import contextlib
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import LlumctlError, NotFoundError, UsageError
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

    folder = _folder_of(name)
    one = DEFAULT_MEMBER if member is None else member
    found = _chosen(_logs_in(folder), None if everyone else one, name)
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
                for key, path in _logs_in(folder).items():
                    if key not in tails:
                        tails[key] = opened(path)


_NUMBER = re.compile(r"(\d+)")


def _folder_of(cluster: str) -> Path:
    """Where the logs are; of a cluster that was stopped, where they were left."""
    from controller.api.state import run_state

    state = run_state.load(cluster)
    return run_state.state_path(cluster) / "logs" if state is None else Path(state.log_dir)


def _logs_in(folder: Path) -> dict[str, Path]:
    """Member -> file, i-2 before i-10."""
    try:
        files = [path for path in folder.iterdir() if path.suffix == ".log"]
    except (FileNotFoundError, NotADirectoryError):
        files = []
    except OSError as error:
        raise LlumctlError(f"cannot read {folder}: {error.strerror}", f"ls -ld {folder}") from error
    return {path.stem: path for path in sorted(files, key=_natural)}


def _chosen(logs: dict[str, Path], member: str | None, cluster: str) -> dict[str, Path]:
    """The log of one member, or all. Raises NotFoundError with the names that there are."""
    if not logs:
        raise NotFoundError(f"cluster {cluster} has left no logs", "llumctl up")
    if member is None:
        return logs
    if member not in logs:
        raise NotFoundError(
            f"cluster {cluster} has no log of {member[:60]!r}",
            f"llumctl logs ID      with one of {', '.join(logs)}",
        )
    return {member: logs[member]}


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part or 0) if part.isdigit() else -1, part) for part in _NUMBER.split(path.stem)]


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
