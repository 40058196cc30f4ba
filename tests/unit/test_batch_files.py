"""The files of batches on disk: what survives a process that dies at any byte, who may run a batch,
and what is wrong with a file of lines."""

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.api.state import batch_files
from controller.api.state.batch_files import BatchFiles, BatchRecord, BatchRun, Done, FullError

PATH = "/v1/completions"
DAY = ("24h", 86_400)


def line(custom_id: object, **changed: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": PATH, "body": {"n": 1}} | changed


def text_of(*lines: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def answer(custom_id: str) -> dict[str, Any]:
    return {"id": "x", "custom_id": custom_id, "response": {"body": {"text": "é" * 9}}}


@pytest.fixture
def files(tmp_path: Path) -> BatchFiles:
    found = BatchFiles(tmp_path, 1 << 20)
    found.prepare()
    return found


def uploaded(files: BatchFiles, text: bytes) -> str:
    upload = files.upload()
    upload.write(text)
    return upload.finish("", "in.jsonl", "batch").id


def new_batch(files: BatchFiles, text: bytes) -> BatchRecord:
    found = files.new_batch("", uploaded(files, text), PATH, DAY, None)
    assert found is not None
    return found


def run_of(files: BatchFiles, record: BatchRecord) -> BatchRun:
    run = files.take(record.id)
    assert run is not None
    return run


def done_of(run: BatchRun) -> Done:
    done = run.open()
    assert isinstance(done, Done)
    return done


def test_a_process_that_dies_at_any_byte_of_an_answer_has_written_it_or_not(
    files: BatchFiles,
) -> None:
    record = new_batch(files, text_of(*(line(str(n)) for n in range(4))))
    with run_of(files, record) as run:
        assert done_of(run) == Done(set(), set())
        run.append([(False, answer("0")), (True, answer("2")), (False, answer("1"))])
    path = files.path(record.output_file_id)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for num_bytes in range(len(whole) + 1):
        path.write_bytes(whole[:num_bytes])
        with run_of(files, record) as run:
            completed = {0, 1} if num_bytes == len(whole) else {0} if num_bytes >= first else set()
            assert done_of(run) == Done(completed, {2}), num_bytes
            run.append([(False, answer(str(n))) for n in (0, 1, 3) if n not in completed])
        written = [json.loads(each)["custom_id"] for each in path.read_text().splitlines()]
        assert written == ["0", "1", "3"], num_bytes


def test_the_body_of_a_line_is_what_the_client_wrote(files: BatchFiles) -> None:
    odd = {"prompt": "\ud800 é\n", "x": [1.5, None]}
    text = b"\n  \n" + text_of(line("a"), line("b", body=odd)) + text_of(line("c"))[:-1]
    with run_of(files, new_batch(files, text)) as run:
        done_of(run)
        assert [json.loads(run.body_of(n)) for n in range(3)] == [{"n": 1}, odd, {"n": 1}]


def test_one_process_runs_a_batch_and_the_next_one_when_it_is_gone(files: BatchFiles) -> None:
    record = new_batch(files, text_of(line("a")))
    first = run_of(files, record)
    assert files.take(record.id) is None
    first.close()
    second = run_of(files, record)
    done_of(second)
    second.append([(False, answer("a"))])
    second.finish("completed", [], num_completed=1)
    second.close()
    assert files.take(record.id) is None
    ended = files.batch(record.id)
    assert ended is not None
    assert (ended.status, ended.num_completed) == ("completed", 1)
    shown = files.file(record.output_file_id)
    assert shown is not None
    assert shown.num_bytes == files.path(shown.id).stat().st_size
    assert files.file(record.error_file_id) is None
    assert not files.path(record.error_file_id).exists()


def test_a_file_is_there_when_all_of_it_is(files: BatchFiles) -> None:
    upload = files.upload()
    upload.write(b"abc")
    assert files.files() == []
    other = BatchFiles(files.path(upload.file_id).parents[2], 1 << 20)
    other.prepare()  # a frontend that starts leaves the upload of another one alone
    assert files.path(upload.file_id).exists()
    record = upload.finish("k", "a.jsonl", "batch")
    assert files.files() == [record]
    assert files.path(record.id).read_bytes() == b"abc"


def test_an_upload_that_was_cut_short_leaves_nothing(files: BatchFiles) -> None:
    given_up, dead = files.upload(), files.upload()
    given_up.write(b"abc")
    given_up.give_up()
    dead.write(b"abc")
    dead._file.close()  # its process died: the kernel has freed its lock
    files.prepare()
    assert files.num_bytes() == 3  # another process may be about to lock it
    long_ago_s = time.time() - 2 * batch_files.STALE_S
    os.utime(files.path(dead.file_id), (long_ago_s, long_ago_s))
    files.prepare()
    assert files.num_bytes() == 0


def test_what_a_running_batch_has_written_is_no_rest_of_an_upload(files: BatchFiles) -> None:
    record = new_batch(files, text_of(line("a"), line("b")))
    with run_of(files, record) as run:
        done_of(run)
        run.append([(False, answer("a"))])
    long_ago_s = time.time() - 2 * batch_files.STALE_S
    os.utime(files.path(record.output_file_id), (long_ago_s, long_ago_s))
    files.prepare()
    with run_of(files, record) as run:
        assert done_of(run).completed == {0}


def test_all_files_together_take_only_so_much(tmp_path: Path) -> None:
    files = BatchFiles(tmp_path, 600)
    files.prepare()
    upload = files.upload()
    upload.write(b"x" * 500)
    with pytest.raises(FullError):
        upload.write(b"x" * 101)
    upload.give_up()
    file_id = uploaded(files, b"x" * 590)
    with pytest.raises(FullError):
        files.upload()
    with pytest.raises(FullError):
        files.new_batch("", file_id, PATH, DAY, None)
    assert files.delete(file_id) == ""
    files.upload().give_up()


def test_only_its_owner_can_read_what_is_on_disk(files: BatchFiles) -> None:
    record = new_batch(files, text_of(line("a")))
    files.cancel(record.id)
    with run_of(files, record) as run:
        done_of(run)
        run.append([(False, answer("a"))])
        run.finish("completed", [])
    folder = files.path(record.input_file_id).parents[1]
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_file_that_a_batch_needs_is_not_deleted_and_the_last_file_takes_the_batch_along(
    files: BatchFiles,
) -> None:
    record = new_batch(files, text_of(line("a")))
    assert files.delete(record.input_file_id) == record.id
    with run_of(files, record) as run:
        done_of(run)
        run.append([(False, answer("a"))])
        run.finish("completed", [])
    assert files.delete(record.input_file_id) == ""
    assert files.batch(record.id) is not None
    assert files.delete(record.output_file_id) == ""
    assert files.batches() == []
    assert [*files._runs.iterdir(), *files._files.iterdir()] == []


def test_a_disk_that_is_full_takes_back_what_it_took(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = new_batch(files, text_of(line("a"), line("b")))
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:-50])

    with run_of(files, record) as run:
        done_of(run)
        run.append([(False, answer("a"))])
        before = files.path(record.output_file_id).read_bytes()
        monkeypatch.setattr(batch_files.os, "write", full)
        with pytest.raises(OSError, match="No space"):
            run.append([(False, answer("b"))])
        assert files.path(record.output_file_id).read_bytes() == before


BAD: dict[str, tuple[object, str]] = {
    "invalid_request": ([], "object"),
    "invalid_custom_id": (line(3), "custom_id"),
    "duplicate_custom_id": (line("good"), "same"),
    "invalid_method": (line("b", method="GET"), "POST"),
    "mismatched_endpoint": (line("b", url="/v1/chat/completions"), PATH),
}


@pytest.mark.parametrize("code", BAD)
def test_a_bad_line_is_named_before_any_line_is_asked(files: BatchFiles, code: str) -> None:
    bad, why = BAD[code]
    with run_of(files, new_batch(files, text_of(line("good"), bad, line("other")))) as run:
        errors = run.open()
    assert isinstance(errors, list)
    assert [(each["code"], each["line"]) for each in errors] == [(code, 2)]
    assert why in errors[0]["message"]


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        text_of(line("\ud800")),
        text_of(line("")),
        text_of(line("x" * 513)),
        text_of(line("a", body=[])),
        text_of(line("a", body={"stream": True})),
        text_of(line("a", body={"priority": 0})),
        b"",
        b"\n \n",
    ],
)
def test_no_line_breaks_the_reader(files: BatchFiles, bad: bytes) -> None:
    with run_of(files, new_batch(files, bad)) as run:
        errors = run.open()
    assert isinstance(errors, list)
    assert len(errors) == 1


def test_a_bad_file_of_many_lines_has_few_errors(
    files: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_of(files, new_batch(files, b"{\n" * 5000)) as run:
        errors = run.open()
    assert isinstance(errors, list)
    assert len(errors) == batch_files.MAX_TOLD_ERRORS
    monkeypatch.setattr(batch_files, "MAX_LINES", 2)
    with run_of(files, new_batch(files, text_of(*(line(str(n)) for n in range(9))))) as run:
        errors = run.open()
    assert isinstance(errors, list)
    assert [each["code"] for each in errors] == ["too_many_lines"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text('{"id": "x"}'),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_record_that_cannot_be_read_is_no_record(
    files: BatchFiles, spoil: Callable[[Path], object]
) -> None:
    record = new_batch(files, text_of(line("a")))
    other = new_batch(files, text_of(line("a")))
    spoil(files._runs / f"{record.id}.json")
    assert files.batch(record.id) is None
    assert files.batches() == [other]
    assert files.take(record.id) is None
