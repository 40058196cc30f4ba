"""A cluster's temporary folder is new for each run, and is deleted only if its marker proves what
it is."""

import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError
from controller.api.state import run_state
from controller.api.state.run_state import RunState
from controller.main.down import tear_down
from controller.main.machine import run_folders
from tools.synthetic_cluster import run_state_of

NONCE = "0123456789abcdef"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made; its path may be too long for Ray's
    sockets."""
    monkeypatch.setattr(run_folders, "MAX_RAY_BYTES", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(folder: Path) -> Path:
    ray = folder / run_folders.RAY
    (ray / "session" / "sockets").mkdir(parents=True)
    (ray / "session" / "sockets" / "raylet").write_text("")
    (ray / "session_latest").symlink_to(ray / "session")
    ray.chmod(0o777)  # as Ray does
    return folder


def test_two_runs_never_share_a_folder(base: Path) -> None:
    first, second = run_folders.make_temp(NONCE), run_folders.make_temp(NONCE)
    assert first != second
    assert {first.parent, second.parent} == {base}
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert run_folders.remove_temp(str(filled(first)), NONCE) == ""
    assert not first.exists()
    assert second.exists()
    assert run_folders.remove_temp(str(first), NONCE) == "", "gone is gone"


def test_ray_s_sockets_find_room_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    for base in (str(long), "/tmp"):
        monkeypatch.setattr(tempfile, "tempdir", base)
        folder = run_folders.make_temp(NONCE)
        assert len(os.fsencode(folder / run_folders.RAY)) <= run_folders.MAX_RAY_BYTES
        assert run_folders.remove_temp(str(folder), NONCE) == ""


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(base / "none"))
    with pytest.raises(LlumctlError, match=r"cannot make a temporary folder in .*/none"):
        run_folders.make_temp(NONCE)


def a_foreign_folder(base: Path) -> Path:
    (base / "home").mkdir(mode=0o700)
    (base / "home" / "thesis").write_text("years")
    return base / "home"


def another_run(_base: Path) -> Path:
    return filled(run_folders.make_temp("f" * 16))


def a_link(base: Path) -> Path:
    (base / "link").symlink_to(filled(run_folders.make_temp(NONCE)))
    return base / "link"


def an_open_one(_base: Path) -> Path:
    folder = filled(run_folders.make_temp(NONCE))
    folder.chmod(0o770)
    return folder


def a_marker_that_is_a_link(base: Path) -> Path:
    folder = a_foreign_folder(base)
    mark = run_folders.make_temp(NONCE) / run_folders.MARKER
    (folder / run_folders.MARKER).symlink_to(mark)
    return folder


def a_marker_that_never_ends(base: Path) -> Path:
    folder = a_foreign_folder(base)
    os.mkfifo(folder / run_folders.MARKER)
    return folder


NOT_OURS = (
    a_foreign_folder,
    another_run,
    a_link,
    an_open_one,
    a_marker_that_is_a_link,
    a_marker_that_never_ends,
)


@pytest.mark.parametrize("make", NOT_OURS, ids=lambda make: make.__name__)
def test_what_is_not_proved_is_left(make: Callable[[Path], Path], base: Path) -> None:
    folder = make(base)
    before = set(base.rglob("*"))
    assert run_folders.remove_temp(str(folder), NONCE)
    assert set(base.rglob("*")) == before


@pytest.mark.usefixtures("base")
def test_a_nonce_of_nothing_proves_nothing() -> None:
    folder = run_folders.make_temp("")
    assert run_folders.remove_temp(str(folder), "") == "it has no mark of this cluster"
    assert folder.exists()


def test_what_links_point_to_stays(base: Path) -> None:
    folder, home = run_folders.make_temp(NONCE), a_foreign_folder(base)
    (folder / "out").symlink_to(home)
    (folder / "session").mkdir()
    (folder / "session" / "out").symlink_to(home)
    assert run_folders.remove_temp(str(folder), NONCE) == ""
    assert (home / "thesis").read_text() == "years"


# -- `down` -------------------------------------------------------------------------------


def state(temp_dir: Path, nonce: str = NONCE) -> RunState:
    found = run_state_of("http://127.0.0.1:9", "secret", "c1")
    return replace(found, nonce=nonce, ray_address="", temp_dir=str(temp_dir))


def test_down_deletes_its_own_and_not_that_of_a_cluster_of_the_same_name(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {home: filled(run_folders.make_temp(home * 16)) for home in ("a", "b")}
    for home, folder in folders.items():
        monkeypatch.setenv("XDG_STATE_HOME", str(base / home))
        run_state.save(state(folder, home * 16))
    tear_down(state(folders["b"], "b" * 16), drain=False, grace_s=0.0)
    assert not folders["b"].exists()
    assert (folders["a"] / run_folders.RAY / "session" / "sockets" / "raylet").exists()


def test_down_deletes_nothing_else_that_a_run_state_names(base: Path) -> None:
    home = a_foreign_folder(base)
    found = state(home)
    run_state.save(found)
    told: list[str] = []
    tear_down(found, drain=False, grace_s=0.0, progress=told.append)
    assert (home / "thesis").read_text() == "years"
    assert told == [f"{home} is left as it is: it has no mark of this cluster"]
    assert run_state.load("c1") is None
