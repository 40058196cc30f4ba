"""Our own recordings of traffic, JSON Lines without any text of a prompt or an answer.

The first line is the header: {"llumctl_recording": 1, "prefix_hash_tokens": 16}. Then each line
is a request, in any order:

    {"arrival_s": 0.25, "num_prompt_tokens": 374, "num_output_tokens": 44, "rank": 1,
     "session": "client-7", "prefix_hashes": [8021, 977]}

`rank`, `session` and `prefix_hashes` are left out where they are 0 or empty. The fields mean what
`TraceRequest` says. A request that an error or its client ended has an `outcome` too; without a
token of output it is not read. A recording that was ended says so in its last line, which counts
what it lacks:

    {"end_s": 600.0, "num_requests": 1200, "num_lost": 0, "num_live": 7, "num_breaks": 0}

A killed recorder may leave a cut last line, which is not read.

Readers ignore fields that they do not know, so a later writer may add some;
the number in the header goes up when a field's meaning changes.
"""

import json
from collections.abc import Iterator

from controller.sim.workload.formats.lines import Line, TraceError
from controller.sim.workload.request import TraceRequest

VERSION = 1
VERSION_FIELD = "llumctl_recording"
END_FIELD = "end_s"
FINISHED = "finished"
MAX_RANK = 1 << 31


def header_line(prefix_hash_tokens: int) -> str:
    """`prefix_hash_tokens`: 0 where no request has hashes."""
    return _line({VERSION_FIELD: VERSION, "prefix_hash_tokens": prefix_hash_tokens})


def request_line(request: TraceRequest, outcome: str = FINISHED) -> str:
    """Only with another outcome than FINISHED a request may have no output."""
    row: dict[str, object] = {
        "arrival_s": request.arrival_s,
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_output_tokens": request.num_output_tokens,
    }
    if request.rank:
        row["rank"] = request.rank
    if request.session:
        row["session"] = request.session
    if request.prefix_hashes:
        row["prefix_hashes"] = request.prefix_hashes
    if outcome != FINISHED:
        row["outcome"] = outcome
    return _line(row)


def end_line(
    end_s: float, *, num_requests: int, num_lost: int, num_live: int, num_breaks: int
) -> str:
    """`num_lost`: requests that ended and are not in the file; `num_live`: those that had not
    ended. After each of `num_breaks` breaks more may be missing."""
    return _line(
        {
            END_FIELD: end_s,
            "num_requests": num_requests,
            "num_lost": num_lost,
            "num_live": num_live,
            "num_breaks": num_breaks,
        }
    )


def read_header(line: Line) -> int:
    """Tokens per prefix hash. Raises TraceError."""
    header = line.json_object()
    version = header.get(VERSION_FIELD)
    if type(version) is not int or version != VERSION:
        raise line.error(f"a recording of version {version!r:.20}; this llumctl reads {VERSION}")
    return line.tokens("prefix_hash_tokens", header.get("prefix_hash_tokens", 0))


def requests(prefix_hash_tokens: int, lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """Raises TraceError."""
    for line in lines:
        try:
            row = line.json_object()
        except TraceError:
            if line.is_whole:
                raise
            return
        has_output = row.get("num_output_tokens") != 0 or row.get("outcome", FINISHED) == FINISHED
        if END_FIELD not in row and has_output:
            yield _request(prefix_hash_tokens, line, row)


def _request(prefix_hash_tokens: int, line: Line, row: dict[str, object]) -> TraceRequest:
    rank, session = row.get("rank", 0), row.get("session", "")
    if type(rank) is not int or not -MAX_RANK <= rank <= MAX_RANK:
        raise line.error(f"rank must be an integer, not {rank!r:.40}")
    if not isinstance(session, str):
        raise line.error(f"session must be a string, not {session!r:.40}")
    request = TraceRequest(
        line.number_from_zero("arrival_s", "seconds", row.get("arrival_s")),
        _positive(line, "num_prompt_tokens", row),
        _positive(line, "num_output_tokens", row),
        rank,
        session,
        line.hashes("prefix_hashes", row.get("prefix_hashes", [])),
    )
    num_hashes = len(request.prefix_hashes)
    if num_hashes and not prefix_hash_tokens:
        raise line.error("prefix_hashes, but the header says no prefix_hash_tokens")
    if num_hashes and (num_hashes - 1) * prefix_hash_tokens >= request.num_prompt_tokens:
        raise line.error(
            f"{num_hashes} prefix_hashes of {prefix_hash_tokens} tokens for a prompt of"
            f" {request.num_prompt_tokens}"
        )
    return request


def _positive(line: Line, name: str, row: dict[str, object]) -> int:
    num_tokens = line.tokens(name, row.get(name))
    if num_tokens < 1:
        raise line.error(f"{name} must be at least 1")
    return num_tokens


def _line(fields: dict[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"), allow_nan=False) + "\n"
