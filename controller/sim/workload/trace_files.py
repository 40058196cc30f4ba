"""Trace files: public formats and our own recordings. The first line tells which one a file has.

Azure             CSV: TIMESTAMP,ContextTokens,GeneratedTokens
BurstGPT          CSV: Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
Mooncake, Qwen    JSON Lines: timestamp, input_length, output_length, hash_ids
recordings        JSON Lines that begin with a header; `llumctl record --traffic` writes them
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from controller.api.state import user_files
from controller.sim.workload.trace import Trace, TraceRequest, hashes_of

MAX_LINE_BYTES = 1 << 24
"""The most bytes in a line. A prompt of a million tokens has 62,500 hashes of 16 tokens, which take
about 1 MB."""
MAX_TOKENS = 1 << 30


class TraceError(ValueError):
    """`message` says where and why, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Line:
    path: Path
    number: int
    text: str
    is_whole: bool = True
    """Whether a newline ends the line. It is False for a last line that was cut."""

    def error(self, why: str) -> TraceError:
        return bad_line(self.path, self.number, why)

    def tokens(self, name: str, value: object) -> int:
        """A number of tokens, at least 0, from a CSV cell or a JSON value. Raises TraceError."""
        if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
            value = int(value)
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            raise self.error(f"{name} must be a number of tokens, not {_shown(value)}")
        return value

    def json_object(self) -> dict[str, object]:
        """The JSON object of this line. Raises TraceError."""
        try:
            parsed = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"not JSON ({error})") from error
        if not isinstance(parsed, dict):
            raise self.error("not a JSON object")
        return parsed

    def number_from_zero(self, name: str, unit: str, value: object) -> float:
        """The number, which must not be negative. Raises TraceError."""
        if type(value) not in (int, float) or not 0 <= value < 1e15:  # type: ignore[operator]
            raise self.error(f"{name} must be a number of {unit} from 0 on, not {_shown(value)}")
        return float(value)  # type: ignore[arg-type]

    def hashes(self, name: str, value: object) -> tuple[int, ...]:
        """The prefix hashes in this field. Raises TraceError."""
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(f"{name} must be a list of integers")
        return tuple(value)


def bad_line(path: Path, number: int, why: str) -> TraceError:
    return TraceError(f"{path}:{number}: {why}", f"correct or delete line {number} of {path}")


def lines_of(path: Path, file: BinaryIO) -> Iterator[Line]:
    """The lines that are not blank. Raises TraceError for a line that is no text."""
    number = 0
    while content := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(content) > MAX_LINE_BYTES:
            raise bad_line(path, number, f"longer than {MAX_LINE_BYTES} bytes")
        try:
            text = content.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise bad_line(path, number, f"not UTF-8 text (byte {error.start})") from error
        if text.strip():
            yield Line(path, number, text, content.endswith(b"\n"))


def _shown(value: object) -> str:
    return f"{value!r:.40}"


# -- any file --------------------------------------------------------------------------------------


def read_trace(path: Path) -> Trace:
    """The requests of a file in order of arrival, the first of them at 0 s.

    Raises:
        TraceError: the file cannot be read, is of no known format, has a line that is wrong
            (FILE:LINE), or holds no request.
    """
    try:
        with user_files.opened(path, takes_pipe=True) as file:
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
    if VERSION_FIELD in fields:
        prefix_hash_tokens = _read_header(first)
        return prefix_hash_tokens, _recorded(prefix_hash_tokens, lines)
    return _block_traces(itertools.chain([first], lines))


def _csv(header: Line) -> Callable[[Line, Iterator[Line]], Iterator[TraceRequest]]:
    names = cells_of(header)
    for parser, columns in ((_azure, AZURE_COLUMNS), (_burstgpt, BURSTGPT_COLUMNS)):
        if set(names) & set(columns):
            return parser
    raise TraceError(
        f"{header.path}:{header.number}: the first line is the header of no known trace",
        f"begin the file with {','.join(AZURE_COLUMNS)} (Azure), {','.join(BURSTGPT_COLUMNS)}"
        f' (BurstGPT), or a line of JSON with "timestamp" (Mooncake, Qwen) or'
        f' "{VERSION_FIELD}" (a recording)',
    )


# -- CSV -------------------------------------------------------------------------------------------
# A row is one line: no trace has line breaks in its cells.


def cells_of(line: Line) -> list[str]:
    """The cells of a row. Raises TraceError."""
    try:
        (cells,) = csv.reader([line.text], strict=True)
    except csv.Error as error:
        raise line.error(f"not CSV ({error})") from error
    return [cell.strip() for cell in cells]


def places_of(header: Line, names: Sequence[str]) -> list[int]:
    """The positions of these columns. Raises TraceError if one is missing."""
    found = cells_of(header)
    missing = [name for name in names if name not in found]
    if missing:
        raise header.error(f"no column {missing[0]!r}; they must be {','.join(names)}")
    return [found.index(name) for name in names]


def rows_of(header: Line, lines: Iterator[Line]) -> Iterator[tuple[Line, list[str]]]:
    """Raises TraceError for a row that has not as many cells as the header."""
    num_columns = len(cells_of(header))
    for line in lines:
        cells = cells_of(line)
        if len(cells) != num_columns:
            raise line.error(f"{len(cells)} columns where the header has {num_columns}")
        yield line, cells


# -- Azure -----------------------------------------------------------------------------------------

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _azure(header: Line, lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """Arrivals count from the first line's; a count of 0 tokens is taken for 1. Raises
    TraceError."""
    at, prompt, outputs = places_of(header, AZURE_COLUMNS)
    first = None
    for line, cells in rows_of(header, lines):
        when = _azure_time(line, cells[at])
        first = first or when
        yield TraceRequest(
            (when - first) / timedelta(seconds=1),
            max(1, line.tokens(AZURE_COLUMNS[1], cells[prompt])),
            max(1, line.tokens(AZURE_COLUMNS[2], cells[outputs])),
        )


def _azure_time(line: Line, cell: str) -> datetime:
    """The seventh decimal of a second, which the 2023 trace has, is cut off."""
    try:
        when = datetime.fromisoformat(cell)
    except ValueError as error:
        raise line.error(f"{cell[:40]!r} is no time like 2023-11-16 18:15:46.68") from error
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


# -- BurstGPT --------------------------------------------------------------------------------------
# Its later files have a session column, too. Its publishers mark a failed request by a response of
# 0 tokens; failed requests are left out.

BURSTGPT_COLUMNS = (
    "Timestamp",
    "Model",
    "Request tokens",
    "Response tokens",
    "Total tokens",
    "Log Type",
)
SESSION_COLUMN = "Session ID"


def _burstgpt(header: Line, lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """The requests of a BurstGPT file. Raises TraceError."""
    at, _, prompt, outputs, *_ = places_of(header, BURSTGPT_COLUMNS)
    names = cells_of(header)
    session = names.index(SESSION_COLUMN) if SESSION_COLUMN in names else None
    for line, cells in rows_of(header, lines):
        num_output_tokens = line.tokens(BURSTGPT_COLUMNS[3], cells[outputs])
        num_prompt_tokens = max(1, line.tokens(BURSTGPT_COLUMNS[2], cells[prompt]))
        arrival_s = _burstgpt_seconds(line, cells[at])
        if num_output_tokens:
            yield TraceRequest(
                arrival_s,
                num_prompt_tokens,
                num_output_tokens,
                session="" if session is None else cells[session],
            )


def _burstgpt_seconds(line: Line, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError as error:
        raise line.error(f"Timestamp must be a number of seconds, not {cell[:40]!r}") from error
    return line.number_from_zero("Timestamp", "seconds", number)


# -- Mooncake and Qwen -----------------------------------------------------------------------------
# Two publishers write these fields and mean different things by them:
#
#               timestamp      hash_ids                      more fields
#     Mooncake  milliseconds   one per 512 tokens            none
#     Qwen      seconds        one per 16 tokens, unchained  chat_id, parent_chat_id, turn, type
#
# Others write the same fields with blocks of other sizes. So without a chat_id the size of a block
# is the one that all lines agree with, and a line that fits no such size is an error. Timestamps
# count seconds where the lines have a chat_id or a timestamp has a fraction: Mooncake's are whole
# milliseconds.

MOONCAKE_TOKENS = 512
QWEN_TOKENS = 16
HASH_BITS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """One way to cut prompts: blocks of `size` tokens, with or without one that is not full."""

    size: int
    with_rest: bool

    def num_in(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size) if self.with_rest else num_tokens // self.size


BLOCKS = tuple(Blocks(1 << power, with_rest) for power in range(17) for with_rest in (True, False))


def _block_traces(lines: Iterator[Line]) -> tuple[int, list[TraceRequest]]:
    """Tokens per hash, and the requests. A count of 0 tokens is taken for 1. Raises TraceError."""
    blocks, in_seconds, is_qwens = BLOCKS, False, False
    roots: dict[int, int] = {}
    found = []
    for line in lines:
        row = line.json_object()
        timestamp = line.number_from_zero(
            "timestamp", "milliseconds or seconds", row.get("timestamp")
        )
        num_prompt_tokens = max(1, line.tokens("input_length", row.get("input_length")))
        num_output_tokens = max(1, line.tokens("output_length", row.get("output_length")))
        hashes = line.hashes("hash_ids", row.get("hash_ids", []))
        session = ""
        if "chat_id" in row:
            is_qwens = True
            session = _qwen_session(line, row, roots)
            hashes = _chained(line, hashes, num_prompt_tokens)
        else:
            blocks = _fitting(line, blocks, num_prompt_tokens, len(hashes))
        in_seconds = in_seconds or not timestamp.is_integer()
        found.append((timestamp, num_prompt_tokens, num_output_tokens, session, hashes))
    per_s = 1 if is_qwens or in_seconds else 1000
    return QWEN_TOKENS if is_qwens else _preferred(blocks), [
        TraceRequest(timestamp / per_s, prompt, outputs, 0, session, hashes)
        for timestamp, prompt, outputs, session, hashes in found
    ]


def _fitting(
    line: Line, blocks: tuple[Blocks, ...], num_tokens: int, num_hashes: int
) -> tuple[Blocks, ...]:
    """Those ways to cut a prompt, out of `blocks`, that give `num_hashes` hashes for `num_tokens`
    tokens. Raises TraceError if there is none."""
    if not num_hashes:
        return blocks
    fitting = tuple(each for each in blocks if each.num_in(num_tokens) == num_hashes)
    if not fitting:
        why = f"{num_hashes} hash_ids for a prompt of {num_tokens} tokens"
        if len(blocks) == 1:
            size, expected = blocks[0].size, blocks[0].num_in(num_tokens)
            raise line.error(f"{why}; of {size} tokens each, as before, they are {expected}")
        raise line.error(f"{why} fit no size of a block that fits the lines before")
    return fitting


def _preferred(blocks: tuple[Blocks, ...]) -> int:
    sizes = [each.size for each in blocks]
    return MOONCAKE_TOKENS if MOONCAKE_TOKENS in sizes else max(sizes)


def _qwen_session(line: Line, row: dict[str, object], roots: dict[int, int]) -> str:
    """The session of a line: the id of the conversation's first chat. The chats of a conversation
    stand in order in the file."""
    chat, parent = row["chat_id"], row.get("parent_chat_id", -1)
    if type(chat) is not int or type(parent) is not int:
        raise line.error("chat_id and parent_chat_id must be integers")
    root = roots.get(parent, parent) if parent >= 0 else chat
    roots[chat] = root
    return f"chat-{root}"


def _chained(line: Line, hashes: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """Names for the prompt from its beginning to the end of each block, made from Qwen's names for
    single blocks: equal blocks that come after different blocks must not count as an equal
    beginning. Raises TraceError for more blocks than the prompt has."""
    most = Blocks(QWEN_TOKENS, True).num_in(num_tokens)
    if len(hashes) > most:
        raise line.error(
            f"{len(hashes)} hash_ids for a prompt of {num_tokens} tokens; of {QWEN_TOKENS} tokens"
            f" each they are at most {most}"
        )
    name, chained = 0, []
    for each in hashes:
        name = hash((name, each)) & HASH_BITS
        chained.append(name)
    return tuple(chained)


# -- recordings of a cluster -----------------------------------------------------------------------
# They have no text of a prompt or an answer. The first line is the header: {"llumctl_recording": 1,
# "prefix_hash_tokens": 16}. Then each line is a request, in any order:
#
#     {"arrival_s": 0.25, "num_prompt_tokens": 374, "num_output_tokens": 44, "rank": 1,
#      "session": "client-7", "prefix_hashes": [8021, 977]}
#
# `rank`, `session` and `prefix_hashes` are left out where they are 0 or empty, and so are `gap_s`
# and `answer_hashes`, which only drawn sessions have. The fields mean what `TraceRequest` says. A
# request that an error or its client ended has an `outcome` too; without a token of output it is
# not read. A recording that was ended properly says so in its last line,
# which counts the requests that are missing:
#
#     {"end_s": 600.0, "num_requests": 1200, "num_lost": 0, "num_live": 7, "num_breaks": 0}
#
# A killed recorder may leave a cut last line, which is not read.
#
# Readers ignore fields that they do not know, so a later writer may add some;
# the number in the header goes up when a field's meaning changes.

VERSION = 1
VERSION_FIELD = "llumctl_recording"
END_FIELD = "end_s"
FINISHED = "finished"
MAX_RANK = 1 << 31


def header_line(prefix_hash_tokens: int) -> str:
    """The first line of a recording. `prefix_hash_tokens`: 0 if no request has hashes."""
    return _json_line({VERSION_FIELD: VERSION, "prefix_hash_tokens": prefix_hash_tokens})


def request_line(request: TraceRequest, outcome: str = FINISHED) -> str:
    """The line of one request. A request may have no output only if its outcome is not FINISHED."""
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
    if request.answer_hashes:
        row["answer_hashes"] = request.answer_hashes
    if request.gap_s is not None:
        row["gap_s"] = request.gap_s
    if outcome != FINISHED:
        row["outcome"] = outcome
    return _json_line(row)


def end_line(
    end_s: float, *, num_requests: int, num_lost: int, num_live: int, num_breaks: int
) -> str:
    """The last line of a recording. `num_lost`: requests that ended and are not in the file;
    `num_live`: requests that had not ended. After each of `num_breaks` breaks more may be
    missing."""
    return _json_line(
        {
            END_FIELD: end_s,
            "num_requests": num_requests,
            "num_lost": num_lost,
            "num_live": num_live,
            "num_breaks": num_breaks,
        }
    )


def _read_header(line: Line) -> int:
    """Tokens per prefix hash. Raises TraceError."""
    header = line.json_object()
    version = header.get(VERSION_FIELD)
    if type(version) is not int or version != VERSION:
        raise line.error(f"a recording of version {version!r:.20}; this llumctl reads {VERSION}")
    return line.tokens("prefix_hash_tokens", header.get("prefix_hash_tokens", 0))


def _recorded(prefix_hash_tokens: int, lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """The requests of a recording. Raises TraceError."""
    for line in lines:
        try:
            row = line.json_object()
        except TraceError:
            if line.is_whole:
                raise
            return
        has_output = row.get("num_output_tokens") != 0 or row.get("outcome", FINISHED) == FINISHED
        if END_FIELD not in row and has_output:
            yield _recorded_request(prefix_hash_tokens, line, row)


def _recorded_request(prefix_hash_tokens: int, line: Line, row: dict[str, object]) -> TraceRequest:
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
        line.hashes("answer_hashes", row.get("answer_hashes", [])),
        line.number_from_zero("gap_s", "seconds", row["gap_s"]) if "gap_s" in row else None,
    )
    num_hashes = len(request.prefix_hashes)
    if num_hashes and not prefix_hash_tokens:
        raise line.error("prefix_hashes, but the header says no prefix_hash_tokens")
    if num_hashes and (num_hashes - 1) * prefix_hash_tokens >= request.num_prompt_tokens:
        raise line.error(
            f"{num_hashes} prefix_hashes of {prefix_hash_tokens} tokens for a prompt of"
            f" {request.num_prompt_tokens}"
        )
    num_tokens = request.num_prompt_tokens + request.num_output_tokens
    if request.answer_hashes and len(hashes_of(request)) * prefix_hash_tokens > num_tokens:
        raise line.error(f"{len(request.answer_hashes)} answer_hashes are too many")
    return request


def _positive(line: Line, name: str, row: dict[str, object]) -> int:
    num_tokens = line.tokens(name, row.get(name))
    if num_tokens < 1:
        raise line.error(f"{name} must be at least 1")
    return num_tokens


def _json_line(fields: dict[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"), allow_nan=False) + "\n"
