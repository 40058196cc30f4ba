"""Commands of the operator's own, which `llumctl top` reads in the configuration file."""

from typing import Annotated, Literal

from pydantic import Field

from controller.api.settings.table import Seconds, Table


class OwnCommandTable(Table):
    """`[commands.NAME]`: a program that the dashboard runs for a row, never through a shell."""

    run: Annotated[list[str], Field(min_length=1, max_length=100)]
    """The program and its arguments. `{id}` as a whole argument, or behind `--name=`, is a value of
    the row."""
    key: str = ""
    """The key that runs it; without one it is typed after `:`."""
    at: Literal["instance", "request"] = "instance"
    """What the rows must be about."""
    text: str = ""
    """What the help says of it."""
    terminal: bool = False
    """It gets the terminal until it ends; else what it writes is shown."""
    timeout_s: Seconds = 30.0
    """It is ended after that long, unless it has the terminal."""
