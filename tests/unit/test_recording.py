"""Recordings: what is written, and what is read back."""

import errno
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from controller.api.errors import LlumctlError, NotFoundError, RefusedError, UsageError
from controller.api.recording import (
    RecordingHeader,
    RecordingReader,
    RecordingWriter,
    new_header,
    past_frames,
)
from controller.api.wire.history import HistoryReport
from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, Frame, GapFrame, PingFrame

HEADER = RecordingHeader(cluster="c1", time_s=100.0, status_every_s=0.5)
FRAMES: list[Frame] = [
    PingFrame(time_s=101.0),
    GapFrame(time_s=102.5, missed=3),
    PingFrame(time_s=103.0),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "r.jsonl"
    writer = RecordingWriter(file, HEADER)
    for frame in FRAMES:
        writer.append(frame)
    writer.close()
    return file


def insert(path: Path, line: str) -> None:
    """Puts a line between the first and the second frame."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], line + "\n", *lines[2:]]))


def test_what_was_written_is_read_and_nobody_else_s(path: Path) -> None:
    with RecordingReader(path) as reader:
        assert reader.header == HEADER
        assert list(reader) == FRAMES
        assert not reader.truncated
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert before.count(b"\n") == 4
    with pytest.raises(RefusedError, match="exists already"):
        RecordingWriter(path, HEADER)
    assert path.read_bytes() == before
    header = new_header("c1", 5.0, 1.0)
    assert (header.cluster, header.time_s, header.schema_version) == ("c1", 5.0, 1)


def test_it_begins_with_the_past_which_does_not_count_as_recorded(tmp_path: Path) -> None:
    client = Mock()
    client.history.side_effect = [
        HistoryReport(time_s=(99.0, 100.0)),
        HistoryReport(time_s=(100.0,), instances={"i-0": {"freeness_steps": (5.0,)}}),
        HistoryReport(),
        HistoryReport(),
        NotFoundError("no such path"),
    ]
    past = past_frames(client)
    assert [each.time_s for each in past] == [100.0, 100.0]
    writer = RecordingWriter(tmp_path / "r", HEADER, past)
    assert writer.num_frames == 0
    writer.append(FRAMES[0])
    writer.close()
    with RecordingReader(tmp_path / "r") as reader:
        assert list(reader) == [*past, FRAMES[0]]
        assert [mark.type for mark in reader.marks()] == ["history", "history", "ping"]
    assert past_frames(client) == [], "the controller remembers nothing yet"
    assert past_frames(client) == [], "an older controller has no history"
    RecordingWriter(tmp_path / "none", HEADER, past).close()
    assert not (tmp_path / "none").exists()


def test_each_frame_is_in_the_file_at_once_and_without_frames_there_is_none(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", HEADER)
    writer.append(FRAMES[0])
    assert (tmp_path / "r").read_text().count("\n") == 2
    for _ in range(2):
        writer.close()
    with pytest.raises(LlumctlError, match="is closed"):
        writer.append(FRAMES[0])
    RecordingWriter(tmp_path / "none", HEADER).close()
    assert not (tmp_path / "none").exists()


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = RecordingWriter(tmp_path / "r", HEADER)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(LlumctlError, match="No space left"):
            writer.append(FRAMES[0])
    writer.close()


def test_a_cut_last_line_is_tolerated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    with RecordingReader(path) as reader:
        assert list(reader) == FRAMES[:2]
        assert reader.truncated


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"ping","time_s":1.2.3}',
        '{"type":"ping","time_s":1e300}',
        '{"type":"ping","time_s":"\\u0031e300"}',
        '{"type":"gap","time_s":1,"missed":%s}' % ("9" * 400),
        '{"type":"requests","time_s":1,"num_before":0,"stands":[[0,"running","i-0",1,0,0,1e999]]}',
        '{"type":"ping"}',
    ],
)
def test_figures_that_no_clock_shows_are_no_frame(path: Path, line: str) -> None:
    """Such figures used to end the dashboard that replayed them."""
    insert(path, line)
    with RecordingReader(path) as reader, pytest.raises(UsageError, match=":3: not a frame"):
        list(reader)
    with RecordingReader(path) as reader, pytest.raises(UsageError, match=":3: not a frame"):
        [reader.frame(mark) for mark in reader.marks()]


def test_what_is_no_recording(tmp_path: Path) -> None:
    for text in ("", "\n", "{}", "nonsense", '{"type": "ping", "time_s": 1}\n'):
        (tmp_path / "x").write_text(text)
        with pytest.raises(UsageError, match="x:1: not a recording"):
            RecordingReader(tmp_path / "x")
    with pytest.raises(UsageError, match="no such recording"):
        RecordingReader(tmp_path / "none")
    (tmp_path / "x").write_text(
        HEADER.model_copy(update={"schema_version": 2}).model_dump_json() + "\n"
    )
    with pytest.raises(LlumctlError, match="newer llumctl"):
        RecordingReader(tmp_path / "x")
    with pytest.raises(LlumctlError):
        RecordingWriter(tmp_path / "no/such/folder", HEADER)


def test_a_file_of_one_endless_line_stays_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.api.recording.MAX_LINE_BYTES", 100)
    (tmp_path / "x").write_text("x" * 1000)
    with pytest.raises(UsageError, match="longer than 100 bytes"):
        RecordingReader(tmp_path / "x")


def test_marks_tell_where_frames_are_without_parsing_them(path: Path) -> None:
    """Lines with their keys in another order, as another writer may leave them, have marks, too."""
    event = Event(kind="instance_died", time_s=8.0, cause_id="x", position="a1-1")
    with path.open("a") as file:
        file.write(EventFrame(time_s=8.0, event=event).model_dump_json() + "\n")
        file.write('{"time_s": 9.5, "type": "gap", "missed": 3}\n{"type": "later", "time_s": 1}\n')
    with RecordingReader(path) as reader:
        marks = list(reader.marks())
        frames = list(reader)
        assert [reader.frame(mark) for mark in reversed(marks)] == frames[::-1]
    assert [(mark.type, mark.time_s) for mark in marks] == [(f.type, f.time_s) for f in frames]
    assert [mark.kind for mark in marks] == ["", "", "", "instance_died", ""]
    assert marks[-1].time_s == 9.5
