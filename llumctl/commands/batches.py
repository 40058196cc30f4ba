"""`llumctl batches` shows the batches of the endpoint's batch API, and cancels one.

It reads the files of the cluster on this machine, so it needs no API key, and works when the
cluster is stopped. What lines and answers contain is not shown.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import LlumctlError, NotFoundError, RefusedError
from controller.api.text.quantities import duration
from llumctl import output
from llumctl.commands.options import ClusterName, OutputFormat
from llumctl.config import config_file
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.state.batch_files import BatchFiles, BatchRecord


def batches(
    cancel: Annotated[
        str | None,
        typer.Option(
            "--cancel",
            metavar="BATCH",
            help="Cancel this batch. Lines that are not answered yet are never answered.",
        ),
    ] = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: ClusterName = None,
) -> None:
    """Show the batches of the endpoint's batch API, or cancel one.

    A batch that is under way when the cluster stops goes on after the next start.
    """
    from controller.api.state import run_state
    from controller.api.state.batch_files import BatchFiles

    name = config_file.cluster_name(cluster)
    files = BatchFiles(run_state.state_path(name), 0)
    if cancel is not None:
        _cancel(files, cancel, name)
        return
    records = files.batches()
    if output_format is not Format.TABLE:
        output.emit(_encoded(files, records, output_format))
    elif records:
        output.emit(_table(files, records))
    else:
        output.say(f"cluster {name} has no batches")


def _cancel(files: "BatchFiles", batch_id: str, cluster: str) -> None:
    record = files.batch(batch_id)
    if record is None:
        raise NotFoundError(f"cluster {cluster} has no batch {batch_id[:60]!r}", "llumctl batches")
    if record.has_ended:
        raise RefusedError(f"{batch_id} has ended: {record.status}", "llumctl batches")
    try:
        files.cancel(batch_id)
    except OSError as error:
        raise LlumctlError(
            f"cannot cancel {batch_id}: {error.strerror}", "llumctl doctor"
        ) from error
    output.say(f"{batch_id} is cancelled, at once or when the cluster runs again")


def _status(files: "BatchFiles", record: "BatchRecord") -> str:
    is_cancelled = files.cancelled_at_s(record.id) is not None
    return "cancelling" if is_cancelled and not record.has_ended else record.status


def _table(files: "BatchFiles", records: "Sequence[BatchRecord]") -> str:
    now_s = time.time()
    header = ("ID", "STATUS", "LINES", "ANSWERED", "FAILED", "AGE", "LEFT", "ENDPOINT", "KEY")
    rows = [
        (
            each.id,
            _status(files, each),
            str(each.num_lines),
            str(each.num_completed + each.num_failed),
            str(each.num_failed),
            duration(max(0.0, now_s - each.created_at_s)),
            "" if each.has_ended else duration(max(0.0, each.expires_at_s - now_s)),
            each.endpoint,
            each.owner,
        )
        for each in records
    ]
    return output.table(header, rows)


def _encoded(files: "BatchFiles", records: "Sequence[BatchRecord]", format_: Format) -> str:
    from pydantic import BaseModel

    class Batch(BaseModel):
        id: str
        status: str
        endpoint: str
        key: str
        num_lines: int
        num_completed: int
        num_failed: int
        created_at_s: int
        expires_at_s: int
        ended_at_s: int | None
        input_file_id: str
        output_file_id: str
        error_file_id: str

    class Batches(BaseModel):
        schema_version: int = 1
        batches: list[Batch]

    found = [
        Batch(
            status=_status(files, each),
            key=each.owner,
            **{
                name: getattr(each, name)
                for name in Batch.model_fields
                if name not in ("status", "key")
            },
        )
        for each in records
    ]
    return output.encode(format_, Batches(batches=found), found)
