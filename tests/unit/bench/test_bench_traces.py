"""Traces: both formats as their publishers write them, and each bad line by its number."""

import json
from pathlib import Path

import pytest

from controller.api.errors import UsageError
from llumctl.bench import traces
from llumctl.bench.traces import TraceRow

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:16:00,0,55"
)


def written(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_azure(tmp_path: Path) -> None:
    rows = traces.read(written(tmp_path, "a.csv", AZURE))
    assert [(row.num_prompt_tokens, row.num_output_tokens) for row in rows] == [
        (374, 44),
        (396, 109),
        (1, 55),
    ]
    assert [row.at_s for row in rows] == pytest.approx([0, 4.314579, 13.31941], abs=1e-5)


def test_mooncake(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 1000, "input_length": 30, "output_length": 7, "hash_ids": [9]},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    assert traces.read(written(tmp_path, "m.JSONL", text)) == [
        TraceRow(0.0, 30, 7, (9,)),
        TraceRow(2.0, 600, 5, (1, 2)),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("yesterday,1,2", "'yesterday' is no time"),
        ("2023-11-16 18:15:46.5x,1,2", "is no time"),
        ("2023-11-16 18:15:46+01:00,1,2", "is no time"),
        ("2023-11-16 18:15:46,-1,2", "ContextTokens must be a number of tokens, not '-1'"),
        ("2023-11-16 18:15:46,1,many", "GeneratedTokens must be"),
        ("2023-11-16 18:15:46,1", "2 columns where the header has 3"),
    ],
)
def test_bad_azure_lines(tmp_path: Path, line: str, why: str) -> None:
    path = written(tmp_path, "a.csv", f"{AZURE}\n{line}\n")
    with pytest.raises(UsageError) as caught:
        traces.read(path)
    assert caught.value.message.startswith(f"{path}:5: ")
    assert why in caught.value.message
    assert caught.value.hint == f"sed -n 5p {path}"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"timestamp": "1", "input_length": 1, "output_length": 1}', "timestamp must be"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp must be"),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', "input_length must be"),
        ('{"timestamp": 1, "input_length": 1}', "output_length must be"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
    ],
)
def test_bad_mooncake_lines(tmp_path: Path, line: str, why: str) -> None:
    path = written(tmp_path, "m.jsonl", "\n" + line)
    with pytest.raises(UsageError) as caught:
        traces.read(path)
    assert caught.value.message.startswith(f"{path}:2: ")
    assert why in caught.value.message


def test_bad_files(tmp_path: Path) -> None:
    bad = {
        "none.csv": "cannot read",
        "a.txt": "neither .csv",
        "empty.csv": "no column TIMESTAMP",
        "header.csv": "holds no request",
        "empty.jsonl": "holds no request",
        "latin.csv": "not UTF-8",
    }
    written(tmp_path, "empty.csv", "")
    written(tmp_path, "empty.jsonl", "")
    written(tmp_path, "header.csv", AZURE.split("\n")[0])
    written(tmp_path, "latin.csv", b"\xff\xfe\xfa")
    for name, why in bad.items():
        with pytest.raises(UsageError) as caught:
            traces.read(tmp_path / name)
        assert why in caught.value.message
        assert name in caught.value.message
