"""The Mooncake traces, JSON Lines: timestamp (ms), input_length, output_length, hash_ids.

There is one id per 512 tokens of the prompt, the last of which may be fewer; an id names the
prompt from its beginning to there.
"""

from collections.abc import Iterator

from controller.sim.workload.formats.lines import Line
from controller.sim.workload.request import TraceRequest

HASH_TOKENS = 512


def requests(lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """A count of 0 tokens is taken for 1. Raises TraceError."""
    for line in lines:
        row = line.json_object()
        yield TraceRequest(
            line.number_from_zero("timestamp", "milliseconds", row.get("timestamp")) / 1000,
            max(1, line.tokens("input_length", row.get("input_length"))),
            max(1, line.tokens("output_length", row.get("output_length"))),
            prefix_hashes=line.hashes("hash_ids", row.get("hash_ids", [])),
        )
