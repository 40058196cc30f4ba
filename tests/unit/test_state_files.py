"""What a controller that starts again finds on disk: the cluster's spec, the incarnations of its
members, and the last events."""

import asyncio
import errno
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.adapters.files import state_files
from controller.adapters.files.state_files import (
    INCARNATION_FILE,
    SPEC_FILE,
    EventFile,
    IncarnationFile,
    SpecFile,
)
from controller.api.errors import LlumctlError
from controller.api.state.audit import AuditLog
from controller.core.emptying.claims import Drain, Evacuate, Remove, Restart, SlowDrain
from controller.core.fleet.cluster_spec import ClusterSpec, EngineChange, RollingOrder, ScaleHold
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.runtime.controller.journal import Journal

PATIENCE_S = 10.0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# -- the spec: written whole or not at all ------------------------------------------------------

NEW = EngineChange(2, {"max_num_seqs": 64, "compilation_config": {"level": 0}, "speed": 2.5})
SPEC = (
    ClusterSpec.first(2)
    .with_instances_added(1)
    .with_settings(
        {
            "migration.enabled": False,
            "migration.max_moves": 4,
            "migration.max_bytes_per_s": 30.0,
            "scheduler.policy": "infaas++",
            "endpoint.request_timeout_s": None,
        }
    )
    .with_claims({"i-2": Drain("d-1", 7.5, reason="a fan"), "i-0": SlowDrain("d-3", 7.0)})
    .with_claims({"i-2": Remove("d-2", 8.5, 9.5, "abort"), "i-0": Restart("d-4", 8.0, nonce="n")})
    .with_claims({"i-0": Evacuate("d-5", 9.0, 39.0, actor="ana", reason="a new disk, größer")})
    .held_by(ScaleHold("ana", 3, 12.5))
    .with_rolling(
        RollingOrder("op-1", 1.0, (), (), {"i-0": 2.5}, engine=NEW, state="done", ended_s=9.0),
        engines={"i-1": EngineChange(1, {"enforce_eager": True})},
    )
)


@pytest.fixture
def file(tmp_path: Path) -> SpecFile:
    return SpecFile(tmp_path, "n0nce")


def test_a_spec_comes_back_as_it_was_to_the_same_run_alone(file: SpecFile, tmp_path: Path) -> None:
    assert file.load() is None
    old = os.umask(0)
    try:
        file.save(SPEC)
    finally:
        os.umask(old)
    assert mode(file.path) == 0o600
    found = file.load()
    assert found == SPEC
    assert [(k, type(v)) for k, v in found.settings.items()] == [
        (k, type(v)) for k, v in SPEC.settings.items()
    ]
    assert SpecFile(tmp_path, "another").load() is None
    file.save(ClusterSpec.first(1))
    assert file.load() == ClusterSpec.first(1)


def test_a_full_disk_leaves_what_was(file: SpecFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.save(SPEC)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LlumctlError, match=r"spec\.json: No space left"):
        file.save(ClusterSpec.first(1))
    assert file.load() == SPEC
    assert os.listdir(file.path.parent) == [SPEC_FILE]  # noqa: PTH208 - nothing temporary stays


def written(**changes: object) -> str:
    kept = {"schema_version": 3, "nonce": "n0nce", "spec": {"revision": 1}}
    return json.dumps(kept | changes)


UNCLAIMED = {
    "instance_ids": ["i-0"],
    "next_instance": 1,
    "drains": {"i-0": {"drain_id": "d", "began_s": 1.0}},
}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema_version": 1, "nonce": "n0nce", "spec"', "Invalid JSON"),
        ("{}", "schema_version: Field required"),
        (written(schema_version=4), "written by a newer llumctl"),
        (written(schema_version=1), "written by an older llumctl (schema 1, this"),
        (written(nonce=""), "nonce: "),
        (written(spec={"revision": "1"}), "spec.revision: "),
        (written(spec={"instance_ids": ["i-0", "i-0"]}), "named twice"),
        (written(spec=UNCLAIMED), "a drain that nobody claims"),
    ],
)
def test_what_is_broken_is_no_spec_and_no_half_of_one(file: SpecFile, text: str, why: str) -> None:
    file.path.write_text(text)
    with pytest.raises(LlumctlError, match="is broken") as raised:
        file.load()
    assert why in raised.value.message
    assert str(file.path) in raised.value.message
    assert str(file.path) in raised.value.hint


def test_a_spec_that_cannot_be_read_whole(file: SpecFile) -> None:
    file.path.write_text(written(later=1, spec={"revision": 3, "later": {}}))
    assert file.load() == ClusterSpec(3), "fields of a newer version are skipped"
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(LlumctlError, match=r"cannot read .*spec\.json"):
        file.load()


# -- incarnations -------------------------------------------------------------------------------

FIRST, SECOND = LastIncarnation(1, alive=False), LastIncarnation(2, alive=True)


@pytest.mark.parametrize("torn", [b"", b"\n[", b"\n\xff", b'\n["i-9",["1",true]]'])
def test_the_last_incarnation_of_each_member_comes_back_to_the_same_run(
    tmp_path: Path, torn: bytes
) -> None:
    store = IncarnationFile(tmp_path, "run")
    assert store.load() == {}
    store.keep("i-0", FIRST)
    store.keep("f-0", SECOND)
    with (tmp_path / INCARNATION_FILE).open("ab") as file:
        file.write(torn)
    store.keep("i-0", SECOND)
    assert IncarnationFile(tmp_path, "run").load() == {"i-0": SECOND, "f-0": SECOND}
    assert mode(tmp_path / INCARNATION_FILE) == 0o600
    another = IncarnationFile(tmp_path, "another")
    assert another.load() == {}
    another.keep("i-1", FIRST)
    assert another.load() == {"i-1": FIRST}


def test_an_incarnation_that_cannot_be_kept_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / INCARNATION_FILE).mkdir()
    store = IncarnationFile(tmp_path, "run")
    store.keep("i-0", SECOND)
    assert store.load() == {}
    assert "i-0: incarnation 2 is not kept" in caplog.text


# -- events -------------------------------------------------------------------------------------


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


def kept(folder: Path, run: str = "run", max_events: int = 10**6) -> list[int]:
    return [int(e.time_s) for _, e in EventFile(folder, run).load(max_events)]


def test_events_come_back_with_their_positions(tmp_path: Path) -> None:
    assert kept(tmp_path) == []
    EventFile(tmp_path, "run").close()
    assert list(tmp_path.iterdir()) == []
    keep(EventFile(tmp_path, "run"), 1, 2)
    keep(EventFile(tmp_path, "run"), 3)
    assert EventFile(tmp_path, "run").load(10) == [(f"a-{n}", event(n)) for n in (1, 2, 3)]
    assert kept(tmp_path, max_events=2) == [2, 3]
    assert mode(tmp_path / state_files.FILE) == 0o600


def test_another_run_begins_anew(tmp_path: Path) -> None:
    keep(EventFile(tmp_path, "run", max_bytes=2000), *range(30))
    keep(EventFile(tmp_path, "run", max_bytes=2000), 31)
    assert len(list(tmp_path.iterdir())) == 2
    assert kept(tmp_path, "next") == []
    keep(EventFile(tmp_path, "next"), 7)
    assert kept(tmp_path, "next") == [7]
    assert kept(tmp_path, "run") == []
    (tmp_path / state_files.FILE).write_bytes(b'{"ru')  # a header that was torn
    assert kept(tmp_path, "next") == []
    keep(EventFile(tmp_path, "next"), 1)
    assert kept(tmp_path, "next") == [1]


NO_POSITION = b'["nowhere",{"kind":"migrated","time_s":1.0,"cause_id":"c","reason":"r"}]\n'


@pytest.mark.parametrize("torn", [b'["a-9",{"kind":"migr', b"\xff\xfe", b"{}\n[]\n7", NO_POSITION])
def test_a_torn_line_costs_no_other_event(tmp_path: Path, torn: bytes) -> None:
    keep(EventFile(tmp_path, "run"), 1, 2)
    with (tmp_path / state_files.FILE).open("ab") as file:
        file.write(torn)
    assert kept(tmp_path) == [1, 2]
    keep(EventFile(tmp_path, "run"), 3)
    assert kept(tmp_path) == [1, 2, 3]


def test_the_disk_holds_a_bounded_number(tmp_path: Path) -> None:
    for start in range(0, 200, 20):
        keep(EventFile(tmp_path, "run", max_bytes=20_000), *range(start, start + 20))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * 20_000 + 20 * 500
    found = kept(tmp_path)
    assert found == list(range(found[0], 200))
    assert len(found) > 40


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Files are opened by it. While it does not go on, it takes nothing."""
    disk = SimpleNamespace(num_opened=0, goes_on=threading.Event())
    disk.goes_on.set()
    really_open = os.open

    def opened(path: Path, *options: Any) -> int:
        disk.num_opened += 1
        assert disk.goes_on.wait(PATIENCE_S)
        return really_open(path, *options)

    monkeypatch.setattr(state_files.os, "open", opened)
    yield disk
    disk.goes_on.set()


@pytest.mark.long
def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, disk: SimpleNamespace) -> None:
    disk.goes_on.clear()
    store = EventFile(tmp_path, "run")
    store.keep("a-1", event(1))
    until(lambda: disk.num_opened)
    last = state_files.MAX_WAITING + 9
    for number in range(2, last + 1):
        store.keep(f"a-{number}", event(number))
    disk.goes_on.set()
    store.close()
    assert kept(tmp_path) == [1, *range(10, last + 1)], "the oldest of those that wait are lost"


def test_a_disk_that_takes_nothing_is_told_of_once(
    tmp_path: Path, disk: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    store = EventFile(gone, "run")
    for number in (1, 2):
        store.keep(f"a-{number}", event(number))
        until(lambda number=number: disk.num_opened == number)
    gone.mkdir()
    keep(store, 3)
    assert kept(gone) == [3]
    assert len(caplog.messages) == 1


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


# -- the audit log: an operation that cannot be recorded is not done ------------------------------


def test_an_entry_is_a_short_line_and_one_that_was_cut_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = AuditLog(tmp_path), os.write

    def note(action: str) -> None:
        log.write(actor="ana\n{}\x1b[2J", action=action, target="", outcome="begun", cause_id="x")

    note("x" * 5000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:20]))
        with pytest.raises(LlumctlError, match="No space left on device"):
            note("drain i-1")
    note("drain i-2")
    first, torn, last = log.path.read_text().splitlines()
    assert json.loads(first)["action"] == "x" * 200
    assert json.loads(first)["actor"] == "ana?{}?[2J"
    assert len(torn) == 20
    assert json.loads(last)["action"] == "drain i-2"
    assert mode(log.path) == 0o600
