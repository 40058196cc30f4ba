"""`llumctl attach` and `llumctl detach`: servers that somebody else started as instances of the
cluster."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_INTERRUPTED, EXIT_WOULD_CHANGE, LlumctlError
from llumctl import connect, output
from llumctl.commands.instances import InstanceIds, carry_out, ids_once
from llumctl.commands.options import (
    Cluster,
    Detach,
    DryRun,
    Flags,
    Force,
    IfRevision,
    Model,
    OutputFormat,
    Reason,
    Yes,
)
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.operations.on_attached import AttachReport

POLL_S = 0.3


def attach(
    urls: Annotated[
        list[str], typer.Argument(metavar="URL...", help="Where each server is: http://HOST:PORT")
    ],
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file with the servers' API key, on the controller's machine, mode 600.",
        ),
    ] = None,
    capacity: Annotated[
        int,
        typer.Option(
            metavar="TOKENS",
            min=0,
            help="How many tokens the KV cache of each server holds (the server is asked).",
        ),
    ] = 0,
    other_model: Annotated[
        bool,
        typer.Option(
            "--other-model", help="Attach them although their model has another name than ours."
        ),
    ] = False,
    detach: Detach = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Attach vLLM, SGLang or llama.cpp servers that run already.

    Each becomes an instance with the same model as the others. It gets requests by its load, and
    can be drained like any other, but its requests never move. Servers that cannot be given a
    request, for example one with a structured output, do not get it. If one of several servers is
    refused, none is attached.
    """
    from controller.api.operations.on_attached import Attach, AttachRequest

    attached = connect.attached(cluster)
    orders = [
        Attach(
            AttachRequest(
                url=url,
                key_file="" if key_file is None else str(Path.cwd() / key_file.expanduser()),
                capacity_tokens=capacity,
                other_model=other_model,
                dry_run=dry_run,
                reason=reason,
            )
        )
        for url in dict.fromkeys(urls)
    ]
    if len(orders) > 1 and not dry_run:  # if one server is refused, none is attached
        for order in orders:
            with connect.client(attached) as client:
                client.send(order.dry())
    reports = []
    for order in orders:
        with connect.client(attached) as client:
            report = client.send(order)
        reports.append(report)
        output.say(_words(report))
    if dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE if any(each.changes for each in reports) else 0)
    if not detach:
        _follow(attached, [each for each in reports if each.changes])


def detach(
    instance_ids: InstanceIds,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Do not wait until the requests have ended.")
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Detach servers once their requests have ended.

    Asks first. Until then they get no new requests. The servers themselves go on. Ctrl-C does not
    end the order; llumctl uncordon takes it back.
    """
    wanted_ids = ids_once(instance_ids)
    flags = Flags(cluster, dry_run, yes, reason, if_revision, output_format, detach, force)
    from controller.api.operations.on_attached import Detach as DetachOrder
    from controller.api.operations.on_attached import DetachRequest

    wanted = DetachRequest(dry_run=dry_run, force=force, reason=reason, if_revision=if_revision)
    orders = DetachOrder.of_each(wanted_ids, wanted)
    carry_out(flags, orders, None, command=f"llumctl detach {' '.join(wanted_ids)}")


def _words(report: "AttachReport") -> str:
    if not report.changes:
        return f"{report.facts} is attached already as {report.instance_id}"
    return f"{report.facts} {'would become' if report.dry_run else 'is'} {report.instance_id}"


def _follow(cluster: str, reports: "list[AttachReport]") -> None:
    """Waits until each of the servers serves. Raises LlumctlError if one of them cannot."""
    said = dict[str, str]()
    to_come = {each.instance_id for each in reports}
    try:
        while to_come:
            with connect.client(cluster) as client:
                found = {each.id: each for each in client.status().instances}
            for key in sorted(to_come):
                it = found.get(key)
                if it is None:
                    raise LlumctlError(f"{key} was detached meanwhile", "llumctl status")
                if it.state == "failed":
                    raise LlumctlError(f"{key}: {it.detail}", f"llumctl detach {key}")
                if it.state in ("active", "draining"):
                    to_come.discard(key)
                    output.say(f"{key} serves")
                elif it.detail and said.get(key) != it.detail:
                    said[key] = it.detail
                    output.say(f"{key}: {it.detail}")
            time.sleep(POLL_S if to_come else 0)
    except KeyboardInterrupt:
        output.say("no longer watching: the servers stay attached\ntry:   llumctl status")
        raise typer.Exit(EXIT_INTERRUPTED) from None
