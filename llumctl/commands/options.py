"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import UsageError
from llumctl.output import Format

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Which cluster; else $LLUMCTL_CLUSTER_NAME, else the config file's, else 'default'.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Config file; else $LLUMCTL_CONFIG, else ~/.config/llumctl/config.toml if present.",
    ),
]
# Some commands have formats of their own.
format_option = typer.Option("-o", "--output", help="Format of what goes to stdout.")
OutputFormat = Annotated[Format, format_option]


def positive(value: float | None, flag: str) -> None:
    """Refuses what is no duration: zero, negative, NaN, infinite."""
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{flag}: must be a positive number of seconds, not {value:g}")
