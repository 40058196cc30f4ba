"""Traces of lengths and block hashes, JSON Lines: timestamp, input_length, output_length, hash_ids.

Two publishers write these fields and mean different things by them:

              timestamp      hash_ids                      more fields
    Mooncake  milliseconds   one per 512 tokens            none
    Qwen      seconds        one per 16 tokens, unchained  chat_id, parent_chat_id, turn, type

Others write the same fields with blocks of other sizes. So without a chat_id the size of a block is
the one that all lines agree with, and a line that fits no such size is an error. Timestamps count
seconds where the lines have a chat_id or a timestamp has a fraction: Mooncake's are whole
milliseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from controller.sim.workload.formats.lines import Line
from controller.sim.workload.request import TraceRequest

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


def read(lines: Iterator[Line]) -> tuple[int, list[TraceRequest]]:
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
            session = _session(line, row, roots)
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
    """Those of the ways to cut a prompt by which so many tokens have so many hashes. Raises
    TraceError if there is none."""
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


def _session(line: Line, row: dict[str, object], roots: dict[int, int]) -> str:
    """The first chat of a conversation names it. Its turns stand in order."""
    chat, parent = row["chat_id"], row.get("parent_chat_id", -1)
    if type(chat) is not int or type(parent) is not int:
        raise line.error("chat_id and parent_chat_id must be integers")
    root = roots.get(parent, parent) if parent >= 0 else chat
    roots[chat] = root
    return f"chat-{root}"


def _chained(line: Line, hashes: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """Names for the prompt from its beginning to the end of each block, made of Qwen's names for
    blocks alone: equal blocks after different ones must not count as an equal beginning. Raises
    TraceError for more blocks than the prompt has."""
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
