"""Recorded traffic, replayed: the public files of Azure (CSV) and Mooncake (JSON lines).

Azure LLM inference trace: TIMESTAMP,ContextTokens,GeneratedTokens. Mooncake: timestamp in ms,
input_length, output_length and hash_ids, one per 512 tokens of the prompt; where two prompts
begin with the same ids, they begin with the same tokens.
"""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from controller.api.errors import UsageError
from controller.api.state import plain_file

MAX_BYTES = 1 << 30
MOONCAKE_BLOCK_TOKENS = 512
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """`at_s` counts from the first row. `block_ids` name the prompt's content, block by block;
    empty: it shares nothing."""

    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()


def read(path: Path) -> list[TraceRow]:
    """The rows in order of time.

    Raises:
        UsageError: no such file, no such format, or a line that is none (FILE:LINE).
    """
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise UsageError(
            f"--trace: {path} is neither .csv (Azure's columns) nor .jsonl (Mooncake's fields)",
            "llumctl bench --trace FILE.csv",
        )
    try:
        text = plain_file.read(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})", f"file {path}") from error
    except OSError as error:
        raise UsageError(
            f"--trace: cannot read {path}: {error.strerror}", f"ls -l {path}"
        ) from error
    rows = sorted(parse(path, text), key=lambda row: row.at_s)
    if not rows:
        raise UsageError(f"{path}:1: the trace holds no request", f"head {path}")
    first_s = rows[0].at_s
    return [
        TraceRow(row.at_s - first_s, row.num_prompt_tokens, row.num_output_tokens, row.block_ids)
        for row in rows
    ]


def parse_azure(path: Path, text: str) -> Iterator[TraceRow]:
    lines = csv.reader(text.splitlines())
    header = [name.strip() for name in next(lines, [])]
    missing = [name for name in AZURE_COLUMNS if name not in header]
    if missing:
        raise _bad(path, 1, f"no column {missing[0]}; they must be {','.join(AZURE_COLUMNS)}")
    at, prompt, outputs = (header.index(name) for name in AZURE_COLUMNS)
    for cells in lines:
        number = lines.line_num
        if not cells:
            continue
        if len(cells) != len(header):
            raise _bad(path, number, f"{len(cells)} columns where the header has {len(header)}")
        yield TraceRow(
            _azure_time_s(path, number, cells[at]),
            _count(path, number, header[prompt], cells[prompt]),
            _count(path, number, header[outputs], cells[outputs]),
        )


def parse_mooncake(path: Path, text: str) -> Iterator[TraceRow]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad(path, number, f"not JSON ({error})") from error
        if not isinstance(raw, dict):
            raise _bad(path, number, "not a JSON object")
        at_ms = raw.get("timestamp")
        if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not 0 <= at_ms < 1e15:
            raise _bad(path, number, f"timestamp must be milliseconds, not {at_ms!r:.40}")
        ids = raw.get("hash_ids", [])
        if not isinstance(ids, list) or not all(type(item) is int for item in ids):
            raise _bad(path, number, "hash_ids must be a list of integers")
        yield TraceRow(
            at_ms / 1000,
            _count(path, number, "input_length", raw.get("input_length")),
            _count(path, number, "output_length", raw.get("output_length")),
            tuple(ids),
        )


_PARSERS = {".csv": parse_azure, ".jsonl": parse_mooncake}


def _azure_time_s(path: Path, number: int, cell: str) -> float:
    """Reads seven decimals of a second, one more than datetime does."""
    whole, _, fraction = cell.strip().partition(".")
    try:
        seconds = (datetime.fromisoformat(whole) - datetime(1970, 1, 1)).total_seconds()
        return seconds + int(fraction or 0) / math.pow(10, len(fraction))
    except (ValueError, TypeError) as error:
        raise _bad(path, number, f"{cell[:40]!r} is no time like 2023-11-16 18:15:46.68") from error


def _count(path: Path, number: int, name: str, value: object) -> int:
    """Tokens, at least 1: an endpoint takes no fewer."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if type(value) is not int or value < 0:
        raise _bad(path, number, f"{name} must be a number of tokens, not {value!r:.40}")
    return max(1, value)


def _bad(path: Path, number: int, why: str) -> UsageError:
    return UsageError(f"{path}:{number}: {why}", f"sed -n {number}p {path}")
