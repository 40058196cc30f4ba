"""`llumctl explain`: why a request is where it is."""

import sys
from typing import TYPE_CHECKING

from llumctl import choices, connect
from llumctl.commands.options import Cluster, OutputFormat, Reference
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.explain import Explanation


def explain(
    reference: Reference,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show which instances were considered for a request, what was chosen, what not, and why."""
    choices.an_id(reference, "REQUEST")
    with connect.client(connect.attached(cluster)) as client:
        found = client.explain(reference)
    output.emit(_text(found, output_format))


def _text(found: "Explanation", output_format: Format) -> str:
    if output_format is Format.NAME:
        return found.request.id
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import explain as explain_text

        wide = output_format is Format.WIDE
        return explain_text.render(found, wide=wide, colours=output.use_colours(sys.stdout))
    return output.encode(output_format, found, found.steps)
