"""Trace files of any format: the first line tells which one it is."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from controller.api.state import plain_file
from controller.sim.workload.formats import azure, block_traces, burstgpt, recording
from controller.sim.workload.formats.csv_rows import cells_of
from controller.sim.workload.formats.lines import Line, TraceError, lines_of
from controller.sim.workload.request import Trace, TraceRequest


def read_trace(path: Path) -> Trace:
    """The requests of a file in order of arrival, the first of them at 0 s.

    Raises:
        TraceError: the file cannot be read, is of no known format, has a line that is wrong
            (FILE:LINE), or holds no request.
    """
    try:
        with plain_file.opened(path, takes_pipe=True) as file:
            lines = lines_of(path, file)
            first = next(lines, None)
            if first is None:
                raise TraceError(f"{path}:1: the file is empty", "name a trace with requests")
            prefix_hash_tokens, found = _parsed(first, lines)
            requests = sorted(found, key=lambda request: request.arrival_s)
    except OSError as error:
        raise TraceError(
            f"cannot read {path}: {error.strerror}", "name a file that is there and may be read"
        ) from error
    if not requests:
        raise TraceError(f"{path}: the trace holds no request", "name a trace with requests")
    first_s = requests[0].arrival_s
    if first_s:
        requests = [request.arriving(request.arrival_s - first_s) for request in requests]
    return Trace(path.stem, requests, prefix_hash_tokens)


def _parsed(first: Line, lines: Iterator[Line]) -> tuple[int, Iterable[TraceRequest]]:
    """Tokens per prefix hash, and the requests."""
    if not first.text.lstrip().startswith(("{", "[")):
        return 0, _csv(first)(first, lines)
    fields = first.json_object()
    if recording.VERSION_FIELD in fields:
        prefix_hash_tokens = recording.read_header(first)
        return prefix_hash_tokens, recording.requests(prefix_hash_tokens, lines)
    return block_traces.read(itertools.chain([first], lines))


def _csv(header: Line) -> Callable[[Line, Iterator[Line]], Iterator[TraceRequest]]:
    names = cells_of(header)
    for parser, columns in ((azure.requests, azure.COLUMNS), (burstgpt.requests, burstgpt.COLUMNS)):
        if set(names) & set(columns):
            return parser
    raise TraceError(
        f"{header.path}:{header.number}: the first line is the header of no known trace",
        f"begin the file with {','.join(azure.COLUMNS)} (Azure), {','.join(burstgpt.COLUMNS)}"
        f' (BurstGPT), or a line of JSON with "timestamp" (Mooncake, Qwen) or'
        f' "{recording.VERSION_FIELD}" (a recording)',
    )
