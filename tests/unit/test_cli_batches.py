"""`llumctl batches`: what it shows of the files on disk, and a batch that it cancels."""

import json

import pytest

from controller.api.errors import EXIT_NOT_FOUND, EXIT_REFUSED
from controller.api.state import run_state
from controller.api.state.batch_files import BatchFiles, BatchRecord
from tests.unit.cli_support import Cli

SECRET = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"secret"}}\n'


@pytest.fixture
def files() -> BatchFiles:
    found = BatchFiles(run_state.state_dir("default"), 1 << 20)
    found.prepare()
    return found


@pytest.fixture
def record(files: BatchFiles) -> BatchRecord:
    upload = files.upload()
    upload.write(SECRET)
    file_id = upload.finish("0123456789ab", "in.jsonl", "batch").id
    window = ("24h", 86_400)
    found = files.new_batch("0123456789ab", file_id, "/v1/completions", window, None)
    assert found is not None
    return found


def test_batches_are_listed_though_no_cluster_runs(cli: Cli, record: BatchRecord) -> None:
    header, row = cli.out("batches").splitlines()
    assert header.split() == [
        *("ID", "STATUS", "LINES", "ANSWERED", "FAILED", "AGE", "LEFT", "ENDPOINT", "KEY")
    ]
    assert row.split()[:2] == [record.id, "validating"]
    assert row.split()[-2:] == ["/v1/completions", "0123456789ab"]
    (entry,) = json.loads(cli.out("batches", "-o", "json"))["batches"]
    assert (entry["id"], entry["key"], entry["ended_at_s"]) == (record.id, "0123456789ab", None)
    assert json.loads(cli.out("batches", "-o", "jsonl"))["status"] == "validating"


def test_no_batches(cli: Cli) -> None:
    assert cli("batches").err == "cluster default has no batches\n"
    assert json.loads(cli.out("batches", "-o", "json"))["batches"] == []


def test_one_is_cancelled_once(cli: Cli, files: BatchFiles, record: BatchRecord) -> None:
    assert "is cancelled" in cli("batches", "--cancel", record.id).err
    assert cli.out("batches").split("\n")[1].split()[1] == "cancelling"
    run = files.take(record.id)
    assert run is not None
    run.finish("cancelled", [])
    run.close()
    assert "has ended: cancelled" in cli("batches", "--cancel", record.id, code=EXIT_REFUSED).err
    for wrong in ("batch_x", "../run", ""):
        assert "has no batch" in cli("batches", "--cancel", wrong, code=EXIT_NOT_FOUND).err
