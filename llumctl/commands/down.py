"""`llumctl down`: stop a cluster."""

from typing import Annotated

import typer

from controller.api.errors import RefusedError
from llumctl.commands.options import ClusterName, positive
from llumctl.config import config_file
from llumctl.text import output


def down(
    cluster: ClusterName = None,
    confirm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Refuse unless this is the name of the cluster."),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option("--drain/--now", help="Let live requests finish first, or stop at once."),
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="How many seconds live requests may take (scheduler.grace_s)."
        ),
    ] = None,
) -> None:
    """Stop the cluster and all its processes."""
    positive(timeout, "--timeout")
    name = config_file.cluster_name(cluster)
    if confirm is not None and confirm != name:
        raise RefusedError(
            f"the cluster is {name!r}, not {confirm!r}: nothing was stopped",
            f"llumctl down --confirm {name}",
        )
    from controller.main import down as down_main

    if not down_main.run(name, drain=drain, timeout_s=timeout, progress=output.say):
        output.say(f"nothing to stop: cluster {name} is not running")
