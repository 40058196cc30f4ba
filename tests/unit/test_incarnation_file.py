"""Incarnations on disk: which earlier incarnations a restarted controller finds."""

import logging
import stat
from pathlib import Path

import pytest

from controller.adapters.files.state_files import INCARNATION_FILE, IncarnationFile
from controller.core.fleet.incarnations import LastIncarnation

FIRST, SECOND = LastIncarnation(1, alive=False), LastIncarnation(2, alive=True)


def test_the_last_of_each_member_comes_back(tmp_path: Path) -> None:
    store = IncarnationFile(tmp_path, "run")
    assert store.load() == {}
    store.keep("i-0", FIRST)
    store.keep("f-0", SECOND)
    store.keep("i-0", SECOND)
    assert IncarnationFile(tmp_path, "run").load() == {"i-0": SECOND, "f-0": SECOND}
    assert stat.S_IMODE((tmp_path / INCARNATION_FILE).stat().st_mode) == 0o600


def test_another_run_begins_anew(tmp_path: Path) -> None:
    IncarnationFile(tmp_path, "run").keep("i-0", SECOND)
    another = IncarnationFile(tmp_path, "another")
    assert another.load() == {}
    another.keep("i-1", FIRST)
    assert another.load() == {"i-1": FIRST}


@pytest.mark.parametrize("torn", [b"\n[", b'\n["i-9",[1', b"\n\xff", b'\n["i-9",["1",true]]'])
def test_a_torn_line_costs_no_other(tmp_path: Path, torn: bytes) -> None:
    store = IncarnationFile(tmp_path, "run")
    store.keep("i-0", FIRST)
    with (tmp_path / INCARNATION_FILE).open("ab") as file:
        file.write(torn)
    store.keep("i-1", SECOND)
    assert store.load() == {"i-0": FIRST, "i-1": SECOND}


def test_what_cannot_be_kept_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / INCARNATION_FILE).mkdir()
    store = IncarnationFile(tmp_path, "run")
    with caplog.at_level(logging.ERROR):
        store.keep("i-0", SECOND)
        assert store.load() == {}
    assert "i-0: incarnation 2 is not kept" in caplog.text
