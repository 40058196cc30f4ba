"""Options that several commands share."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import UsageError
from controller.api.settings.bounds import MAX_DEADLINE_S, MAX_REASON_CHARS
from llumctl import arguments, completion, meant
from llumctl.text.output import Format

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        callback=meant.cluster_is,
        metavar="NAME|URL",
        help="Which cluster, by its name, or by the URL of its control API; else"
        " $LLUMCTL_CLUSTER_NAME, else the config file's, else 'default', else the only one.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        callback=meant.cluster_is,
        metavar="NAME",
        help="Which cluster; else $LLUMCTL_CLUSTER_NAME, else the config file's, else 'default'.",
    ),
]
"""For what needs the cluster's files, and must not find another one than was meant."""
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=meant.config_is,
        metavar="FILE",
        help="Config file; else $LLUMCTL_CONFIG, else ~/.config/llumctl/config.toml if present.",
    ),
]


ClusterConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Config file; else the one that the cluster started with."
    ),
]


class TableOrJson(StrEnum):
    TABLE = "table"
    JSON = "json"


format_option = typer.Option("-o", "--output", help="Format of what goes to stdout.")
OutputFormat = Annotated[Format, format_option]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="REQUEST",
        autocompletion=completion.requests,
        help="Its id (a beginning, or as tables shorten it, is enough) or the client's id.",
    ),
]
Reason = Annotated[str, typer.Option("-m", "--reason", metavar="MSG", help="Why, for the record.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
IfRevision = Annotated[
    int | None,
    typer.Option(
        "--if-revision", metavar="R", help="Refuse (exit 6) unless status shows this revision."
    ),
]


def positive(value: float | None, flag: str) -> None:
    """Refuses what is no duration: zero, negative, NaN, infinite."""
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{flag}: must be a positive number of seconds, not {value:g}")


def deadline_of(text: str | None) -> float | None:
    """How many seconds a drain may take."""
    if text is None:
        return None
    found = arguments.positive(text, "--deadline")
    if found > MAX_DEADLINE_S:
        raise UsageError(
            "--deadline: must be at most 7d", f"durations look like {arguments.EXAMPLES}"
        )
    return found


def one_line(reason: str, flag: str = "--reason") -> str:
    """A reason as the record takes it."""
    if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
        raise UsageError(f"{flag}: one line of up to {MAX_REASON_CHARS} characters")
    return reason


def not_negative(value: int | None, flag: str) -> int | None:
    if value is not None and value < 0:
        raise UsageError(f"{flag}: must be at least 0, not {value}")
    return value


@dataclass(frozen=True, slots=True)
class Flags:
    """What forms of one command have in common."""

    cluster: str | None
    dry_run: bool
    yes: bool
    reason: str
    if_revision: int | None
    output_format: Format
    detach: bool = False
    force: bool = False
