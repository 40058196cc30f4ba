"""`llumctl requests`: the requests that are live and those that ended lately, or one of them."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import UsageError
from llumctl import choices, completion, connect
from llumctl.commands.options import Cluster, OutputFormat
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.models import RequestDetail, RequestList, RequestState

DEFAULT_LIMIT = 100
# The controller lists no more.
MAX_LIMIT = 10_000


def requests(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[REQUEST]",
            autocompletion=completion.requests,
            help="Show this one with its history: its id (a beginning, or as tables shorten it, is"
            " enough) or the client's id.",
            show_default=False,
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Only those of this instance.",
            autocompletion=completion.instances,
        ),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="S,...", help="Only these states: running,evicted")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", help="At most so many (100).")
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show requests: running first, then waiting (oldest first; what the controller holds in the
    order in which it is to go), then those that ended last."""
    if limit is not None and not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"--limit: must be between 1 and {MAX_LIMIT}, not {limit}")
    filters = {"--instance": instance, "--state": state, "--limit": limit}
    given = [flag for flag, value in filters.items() if value is not None]
    if reference is not None and given:
        raise UsageError(f"{given[0]}: only for the list, not for one request")
    if reference is not None:
        choices.an_id(reference, "REQUEST")
    if instance is not None:
        choices.an_id(instance, "--instance")
    states = _states(state)
    with connect.client(connect.attached(cluster)) as client:
        if reference is not None:
            output.emit(_detail(client.request(reference), output_format))
            return
        found = client.requests(instance, states, limit or DEFAULT_LIMIT, movable=True)
    if text := _listed(found, output_format):
        output.emit(text)
    _tell_what_is_missing(found)


def _states(text: str | None) -> "tuple[RequestState, ...]":
    if text is None:
        return ()
    from controller.api.wire.models import RequestState

    found = choices.several_of(text, list(RequestState), "--state", "a state of a request")
    return tuple(map(RequestState, found))


def _listed(found: "RequestList", output_format: Format) -> str:
    """The requests stay in the controller's order."""
    rows = found.requests
    if output_format is Format.NAME:
        return "\n".join(item.id for item in rows)
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import requests as requests_table

        colours = output.use_colours(sys.stdout)
        return requests_table.render(rows, wide=output_format is Format.WIDE, colours=colours)
    return output.encode(output_format, found, rows)


def _detail(found: "RequestDetail", output_format: Format) -> str:
    if output_format is Format.NAME:
        return found.id
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import requests as requests_table

        return requests_table.render_detail(found, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, (found,))


def _tell_what_is_missing(found: "RequestList") -> None:
    for frontend in found.silent_frontends:
        output.say(f"frontend {frontend} did not answer: its requests are missing")
    if found.num_matching > len(found.requests):
        shown, more = len(found.requests), min(found.num_matching, MAX_LIMIT)
        hint = f"; more: --limit {more}" if more > shown else ""
        output.say(f"{shown} of {found.num_matching} requests{hint}")
