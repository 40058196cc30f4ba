"""Events on disk: which earlier events a restarted controller finds."""

import asyncio
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.adapters.files import state_files
from controller.adapters.files.state_files import EventFile
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.runtime.controller.journal import Journal

PATIENCE_S = 10.0


def event(number: int) -> LoggedEvent:
    return LoggedEvent(
        EventKind.MIGRATED,
        float(number),
        f"m-{number}",
        "a reason\nin two lines",
        instance_id="i-0",
        incarnation=2,
        numbers={"downtime_s": 0.01, "num_stages": 3, "nothing": None},
        labels={"from": "i-0"},
    )


def keep(store: EventFile, *numbers: int) -> None:
    for number in numbers:
        store.keep(f"a-{number}", event(number))
    store.close()


def kept(folder: Path, run: str = "run", max_events: int = 1000) -> list[int]:
    return [int(e.time_s) for _, e in EventFile(folder, run).load(max_events)]


def test_events_come_back_with_their_positions(tmp_path: Path) -> None:
    keep(EventFile(tmp_path, "run"), 1, 2)
    keep(EventFile(tmp_path, "run"), 3)
    assert EventFile(tmp_path, "run").load(10) == [(f"a-{n}", event(n)) for n in (1, 2, 3)]
    assert kept(tmp_path, max_events=2) == [2, 3]
    assert stat.S_IMODE((tmp_path / state_files.FILE).stat().st_mode) == 0o600


def test_there_is_nothing_to_find_at_the_start(tmp_path: Path) -> None:
    assert kept(tmp_path) == []
    EventFile(tmp_path, "run").close()
    assert list(tmp_path.iterdir()) == []


def test_another_run_begins_anew(tmp_path: Path) -> None:
    small = EventFile(tmp_path, "run", max_bytes=2000)
    keep(small, *range(30))
    keep(EventFile(tmp_path, "run", max_bytes=2000), 31)
    assert len(list(tmp_path.iterdir())) == 2
    assert kept(tmp_path, "next") == []
    keep(EventFile(tmp_path, "next"), 7)
    assert kept(tmp_path, "next") == [7]
    assert kept(tmp_path, "run") == []


NO_POSITION = b'["nowhere",{"kind":"migrated","time_s":1.0,"cause_id":"c","reason":"r"}]\n'


@pytest.mark.parametrize(
    "torn", [b'["a-9",{"kind":"migr', b"\xff\xfe", b"[", b"{}\n[]\n7", NO_POSITION]
)
def test_a_torn_line_costs_no_other(tmp_path: Path, torn: bytes) -> None:
    keep(EventFile(tmp_path, "run"), 1, 2)
    with (tmp_path / state_files.FILE).open("ab") as file:
        file.write(torn)
    assert kept(tmp_path) == [1, 2]
    keep(EventFile(tmp_path, "run"), 3)
    assert kept(tmp_path) == [1, 2, 3]


def test_a_header_that_was_torn_begins_anew(tmp_path: Path) -> None:
    (tmp_path / state_files.FILE).write_bytes(b'{"ru')
    assert kept(tmp_path) == []
    keep(EventFile(tmp_path, "run"), 1)
    assert kept(tmp_path) == [1]


def test_the_disk_holds_a_bounded_number(tmp_path: Path) -> None:
    for start in range(0, 1000, 20):
        keep(EventFile(tmp_path, "run", max_bytes=20_000), *range(start, start + 20))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * 20_000 + 20 * 500
    found = kept(tmp_path)
    assert found == list(range(found[0], 1000))
    assert len(found) > 40


@pytest.fixture
def hanging_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    goes_on = threading.Event()
    append = EventFile._append

    def hang(self: EventFile, batch: bytes) -> None:
        assert goes_on.wait(PATIENCE_S)
        append(self, batch)

    monkeypatch.setattr(EventFile, "_append", hang)
    yield goes_on
    goes_on.set()


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, hanging_disk: threading.Event) -> None:
    store = EventFile(tmp_path, "run")
    store.keep("a-1", event(1))
    deadline_s = time.monotonic() + PATIENCE_S
    while store._waiting and time.monotonic() < deadline_s:
        time.sleep(0.01)  # the thread has taken it and hangs
    for number in range(2, 2 * state_files.MAX_WAITING):
        store.keep(f"a-{number}", event(number))
    assert len(store._waiting) == state_files.MAX_WAITING
    hanging_disk.set()
    store.close()
    assert kept(tmp_path, max_events=10**6)[-1] == 2 * state_files.MAX_WAITING - 1


def test_a_disk_that_takes_nothing_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    store = EventFile(gone, "run")
    for _ in range(3):
        store._write(b"x\n")
    assert len(caplog.messages) == 1
    gone.mkdir()
    keep(store, 1)
    assert kept(gone) == [1]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / state_files.FILE).symlink_to(target)
    keep(EventFile(tmp_path, "run"), 1)
    assert target.read_text() == "precious"


async def test_a_journal_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    store = EventFile(tmp_path, "run")
    before = Journal("a", store=store)
    before.controller_started()
    before.operator("op-1", "somebody", "drain i-0")
    await asyncio.sleep(0)
    store.close()
    after = Journal("b", store=EventFile(tmp_path, "run"))
    assert after.log.last_position == "a-2"
    after.controller_started()
    page = after.log.after("a-1", 10)
    assert [position for position, _ in page.entries] == ["a-2", "b-3"]
    assert page.missed == 0
    assert after.counts == {EventKind.CONTROLLER_STARTED: 1}


def test_an_event_that_json_cannot_hold_does_not_end_the_writing(tmp_path: Path) -> None:
    store = EventFile(tmp_path, "run")
    store.keep("a-1", LoggedEvent(EventKind.OPERATOR, 1.0, "op-1", "half a character: \ud800"))
    keep(store, 2, 3)
    assert kept(tmp_path) == [2, 3]
