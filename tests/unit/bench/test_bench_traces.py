"""Traces of `bench`: they are read as the simulator reads them (tests/unit/sim), and what is wrong
with one is an error of usage."""

from pathlib import Path

import pytest

from controller.api.errors import UsageError
from controller.sim.workload.trace import TraceRequest
from llumctl.lab import bench_load
from llumctl.lab.bench_load import Load

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_a_recording_is_replayed_with_its_hashes(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    row = '{"arrival_s":4,"num_prompt_tokens":40,"num_output_tokens":2,"prefix_hashes":[7,8]}\n'
    path.write_text(f'{{"llumctl_recording":1,"prefix_hash_tokens":32}}\n{row}')
    rows = bench_load.rows(Load(trace=path))
    assert rows.prefix_hash_tokens == 32
    assert list(rows.requests) == [TraceRequest(0.0, 40, 2, prefix_hashes=(7, 8))]


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        (
            HEADER + "yesterday,1,2\n",
            "{path}:2: 'yesterday' is no time",
            "correct or delete line 2",
        ),
        ("", "{path}:1: the file is empty", "name a trace with requests"),
        ("a,b\n", "{path}:1: the first line is the header of no known", "begin the file with TIME"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, why: str, hint: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        bench_load.read_trace_file(path)
    assert caught.value.message.startswith(f"--trace: {why.format(path=path)}")
    assert caught.value.hint.startswith(hint)
