"""Trace files: each format as its publisher writes it, our recordings written and read, and each
bad line named by its number."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sim.workload import trace_files
from controller.sim.workload.trace import Trace, TraceRequest
from controller.sim.workload.trace_files import TraceError, read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:16:00,0,55"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,0,1087,Conversation log\n"
    "118.5,GPT-4,417,276,693,API log\n"
)
MOONCAKE = (
    '{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    '{"timestamp": 1000, "input_length": 30, "output_length": 7, "hash_ids": [9]}\n\n'
)
QWEN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33,'
    ' "output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}\n'
    '{"chat_id": 8, "parent_chat_id": 7, "timestamp": 63, "input_length": 48,'
    ' "output_length": 7, "type": "text", "turn": 2, "hash_ids": [1, 2, 9]}\n'
    '{"chat_id": 9, "parent_chat_id": -1, "timestamp": 64, "input_length": 37,'
    ' "output_length": 7, "type": "text", "turn": 1, "hash_ids": [4, 2, 5]}\n'
)


def written(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


FORMATS = {
    "azure, its times in any zone": (
        "\ufeff" + AZURE.replace("18:16:00,", "20:16:00+02:00,"),
        0,
        [(0.0, 374, 44), (4.314579, 396, 109), (13.31941, 1, 55)],
    ),
    "burstgpt without what failed": (BURSTGPT, 0, [(0.0, 472, 18), (113.5, 417, 276)]),
    "mooncake": (MOONCAKE, 512, [(0.0, 30, 7, 0, "", (9,)), (2.0, 600, 5, 0, "", (1, 2))]),
}


@pytest.mark.parametrize(("text", "num_hash_tokens", "rows"), FORMATS.values(), ids=FORMATS)
def test_formats(
    tmp_path: Path, text: str, num_hash_tokens: int, rows: list[tuple[Any, ...]]
) -> None:
    trace = read_trace(written(tmp_path, text))
    assert (trace.name, trace.prefix_hash_tokens) == ("t", num_hash_tokens)
    assert trace.requests == [TraceRequest(*row) for row in rows]


def test_qwen_counts_seconds_and_blocks_of_16(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, QWEN, "q.jsonl"))
    assert trace.prefix_hash_tokens == 16
    assert [request.arrival_s for request in trace.requests] == pytest.approx([0, 1.886, 2.886])
    assert [request.session for request in trace.requests] == ["chat-7", "chat-7", "chat-9"]
    first, second, third = (request.prefix_hashes for request in trace.requests)
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert third[1] not in first, "an equal block after another beginning is not shared"


def test_seconds_and_the_size_of_blocks_are_known_by_the_numbers(tmp_path: Path) -> None:
    chats = ("chat_id", "parent_chat_id", "turn", "type")
    for names in (chats, ("hash_ids",), (*chats, "hash_ids")):
        rows = [json.loads(line) for line in QWEN.splitlines()]
        kept = [{name: row[name] for name in row.keys() - set(names)} for row in rows]
        text = "\n".join(json.dumps(row) for row in kept)
        assert read_trace(written(tmp_path, text)).span_s == pytest.approx(2.886), names
    lengths = ((600, 10), (100, 2), (64, 1))
    lines = [mooncake(input_length=num, hash_ids=list(range(hashes))) for num, hashes in lengths]
    assert read_trace(written(tmp_path, "\n".join(lines))).prefix_hash_tokens == 64


REQUESTS = st.builds(
    TraceRequest,
    arrival_s=st.floats(0, 1e6),
    num_prompt_tokens=st.integers(257, 9999),
    num_output_tokens=st.integers(1, 64),
    rank=st.integers(-100, 100),
    session=st.sampled_from(["", "client-7", 'a "b"\n\\', "\u00e9\u2028\x00"]),
    prefix_hashes=st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple),
)


@given(st.integers(1, 64), st.lists(REQUESTS, min_size=1, max_size=5))
def test_what_is_recorded_is_read(
    tmp_path_factory: pytest.TempPathFactory, size: int, requests: list[TraceRequest]
) -> None:
    requests[0] = requests[0].arriving(0.0)
    path = tmp_path_factory.getbasetemp() / "recording"
    lines = [trace_files.header_line(size), *map(trace_files.request_line, requests)]
    path.write_text("".join(lines), "utf-8")
    assert all(line.count("\n") == 1 for line in lines)
    expected = sorted(requests, key=lambda request: request.arrival_s)
    assert read_trace(path) == Trace("recording", expected, size)


AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT_HEAD = BURSTGPT.split("\n")[0] + "\n"
MOONCAKE_HEAD = MOONCAKE.split("\n")[0] + "\n"
RECORDING_HEAD = '{"llumctl_recording": 1, "prefix_hash_tokens": 16}\n'
UNHASHED_HEAD = '{"llumctl_recording": 1}\n'
QWEN_HEAD = QWEN.split("\n")[0] + "\n"


def mooncake(**fields: object) -> str:
    return json.dumps({"timestamp": 1, "input_length": 600, "output_length": 1, **fields})


def recorded(**fields: object) -> str:
    return json.dumps({"arrival_s": 0, "num_prompt_tokens": 9, "num_output_tokens": 9, **fields})


AZURE_TIME = "2023-11-16 18:15:46"
BAD_AZURE = [
    ("yesterday,1,2", "'yesterday' is no time like"),
    (f"{AZURE_TIME},-1,2", "ContextTokens must be a number of tokens"),
    (f"{AZURE_TIME},1", "2 columns where the header has 3"),
    (f"{AZURE_TIME},1,{'1' * 5000}", "GeneratedTokens must be"),
    (f'{AZURE_TIME},1,"2', "not CSV"),
]
BAD_BURSTGPT = [
    ("nan,GPT-4,1,1,2,API log", "Timestamp must be a number of seconds"),
    ("1,GPT-4,1,,2,API log", "Response tokens must be a number of tokens"),
]
BAD_MOONCAKE = [
    ("[" * 100_000, "not JSON"),
    ('{"timestamp": true}', "timestamp must be a number of milliseconds or"),
    (mooncake(output_length=None), "output_length must be"),
    (mooncake(hash_ids=["a"]), "hash_ids must be a list of integers"),
    (mooncake(hash_ids=[1, 2, 3]), "3 hash_ids for a prompt of 600 tokens"),
    (mooncake(chat_id="a"), "chat_id and parent_chat_id must be integers"),
]
BAD_RECORDING = [
    (recorded(arrival_s=-1), "arrival_s must be a number of seconds from 0 on"),
    (recorded(num_prompt_tokens=0), "num_prompt_tokens must be at least 1"),
    (recorded(rank=1.5), "rank must be an integer"),
    (recorded(prefix_hashes=[1, 2]), "2 prefix_hashes of 16 tokens for a"),
]
BAD_LINES = [
    *((AZURE_HEAD, *bad) for bad in BAD_AZURE),
    *((BURSTGPT_HEAD, *bad) for bad in BAD_BURSTGPT),
    *((MOONCAKE_HEAD, *bad) for bad in BAD_MOONCAKE),
    (
        QWEN_HEAD,
        mooncake(input_length=32, hash_ids=[1, 2, 3], chat_id=1),
        "of 16 tokens each they are at most 2",
    ),
    *((RECORDING_HEAD, *bad) for bad in BAD_RECORDING),
    (UNHASHED_HEAD, recorded(prefix_hashes=[1]), "the header says no prefix_hash_tokens"),
]


@pytest.mark.parametrize(("head", "line", "why"), BAD_LINES)
def test_bad_lines(tmp_path: Path, head: str, line: str, why: str) -> None:
    path = written(tmp_path, f"\n{head}{line}\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.message.startswith(f"{path}:3: ")
    assert why in caught.value.message
    assert caught.value.hint == f"correct or delete line 3 of {path}"
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ":1: the file is empty"),
        (AZURE_HEAD, "holds no request"),
        ("a,b,c\n1,2,3\n", ":1: the first line is the header of no known trace"),
        ("TIMESTAMP,ContextTokens\n", ":1: no column 'GeneratedTokens'"),
        ('{"llumctl_recording": 2}\n', ":1: a recording of version 2; this llumctl reads 1"),
        ('{"llumctl_recording": 1, "prefix_hash_tokens": -1}\n', ":1: prefix_hash_tokens must be"),
        (AZURE_HEAD.encode() + b"a\xff", ":2: not UTF-8 text (byte 1)"),
        (AZURE_HEAD + "x" * 200, ":2: longer than 100 bytes"),
    ],
)
def test_bad_files(
    tmp_path: Path, text: str | bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.sim.workload.trace_files.MAX_LINE_BYTES", 100)
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert why in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for name, why in (("none.csv", "No such file"), ("", "Is a directory"), ("pipe.csv", "a pipe")):
        with pytest.raises(TraceError, match=why) as caught:
            read_trace(tmp_path / name)
        assert caught.value.message.startswith(f"cannot read {tmp_path / name}")


def test_no_traces() -> None:
    for times_s, why in (([], "holds no request"), ([1.0, 0.5], "must ascend")):
        with pytest.raises(ValueError, match=why):
            Trace("t", [TraceRequest(at_s, 1, 1) for at_s in times_s])
