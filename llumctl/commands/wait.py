"""`llumctl wait`: return when a condition holds."""

from typing import Annotated

import typer

from llumctl import connect, durations
from llumctl.commands.options import Cluster
from llumctl.text import output

DEFAULT_TIMEOUT = "600"


def wait(
    condition: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="COND",
            help="ready, idle, cluster=STATE, instance/ID=STATE (or gone), frontend/ID=STATE,"
            " request/ID=STATE, drained=ID.",
        ),
    ],
    timeout: Annotated[
        str,
        typer.Option(metavar="S", help="How long: 90, 90s, 5m. Zero: look once."),
    ] = DEFAULT_TIMEOUT,
    cluster: Cluster = None,
) -> None:
    """Wait for a condition: exit 0 when it holds, 124 when the time is over."""
    timeout_s = durations.seconds(timeout, "--timeout")
    name = connect.attached(cluster)
    from llumctl.following import conditions, waiting

    wanted = conditions.parse(condition)
    output.say(waiting.wait(name, wanted, condition.strip(), timeout_s))
