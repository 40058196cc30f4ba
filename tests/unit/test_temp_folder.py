"""A cluster's temporary folder: new for each run, and deleted only where it is proved."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError
from controller.api.state import run_state
from controller.api.state.run_state import RunState
from controller.main.down import tear_down
from controller.main.machine import temp_folder

NONCE = "0123456789abcdef"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made; long paths are none for Ray's sockets."""
    monkeypatch.setattr(temp_folder, "MAX_RAY_BYTES", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(folder: Path) -> Path:
    ray = folder / temp_folder.RAY
    (ray / "session" / "sockets").mkdir(parents=True)
    (ray / "session" / "sockets" / "raylet").write_text("")
    (ray / "session_latest").symlink_to(ray / "session")
    ray.chmod(0o777)  # as Ray does
    return folder


def test_two_runs_never_share_a_folder(base: Path) -> None:
    first, second = temp_folder.make(NONCE), temp_folder.make(NONCE)
    assert first != second
    assert {first.parent, second.parent} == {base}
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert temp_folder.remove(str(filled(first)), NONCE) == ""
    assert not first.exists()
    assert second.exists()
    assert temp_folder.remove(str(first), NONCE) == "", "gone is gone"


def test_ray_s_sockets_find_room_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    for base in (str(long), "/tmp"):
        monkeypatch.setattr(tempfile, "tempdir", base)
        folder = temp_folder.make(NONCE)
        assert len(os.fsencode(folder / temp_folder.RAY)) <= temp_folder.MAX_RAY_BYTES
        assert temp_folder.remove(str(folder), NONCE) == ""


def test_ray_gets_no_folder_whose_name_it_cannot_send(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fürs").mkdir()
    monkeypatch.setattr(temp_folder, "MAX_RAY_BYTES", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "fürs"))
    folder = temp_folder.make(NONCE)
    assert folder.parent == Path("/tmp")
    assert temp_folder.remove(str(folder), NONCE) == ""


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(base / "none"))
    with pytest.raises(LlumctlError, match=r"cannot make a temporary folder in .*/none"):
        temp_folder.make(NONCE)


def a_foreign_folder(base: Path) -> str:
    (base / "home").mkdir(mode=0o700)
    (base / "home" / "thesis").write_text("years")
    return str(base / "home")


def another_run(_base: Path) -> str:
    return str(filled(temp_folder.make("f" * 16)))


def a_link(base: Path) -> str:
    (base / "link").symlink_to(filled(temp_folder.make(NONCE)))
    return str(base / "link")


def an_open_one(_base: Path) -> str:
    folder = filled(temp_folder.make(NONCE))
    folder.chmod(0o770)
    return str(folder)


def a_marker_that_is_a_link(base: Path) -> str:
    folder = Path(a_foreign_folder(base))
    mark = temp_folder.make(NONCE) / temp_folder.MARKER
    (folder / temp_folder.MARKER).symlink_to(mark)
    return str(folder)


def a_marker_that_never_ends(base: Path) -> str:
    folder = Path(a_foreign_folder(base))
    os.mkfifo(folder / temp_folder.MARKER)
    return str(folder)


def a_file(base: Path) -> str:
    (base / "file").write_text("")
    return str(base / "file")


NOT_OURS = (
    a_foreign_folder,
    another_run,
    a_link,
    an_open_one,
    a_marker_that_is_a_link,
    a_marker_that_never_ends,
    a_file,
)


def everything_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@pytest.mark.parametrize("make", NOT_OURS, ids=lambda make: make.__name__)
def test_what_is_not_proved_is_left(make: Callable[[Path], str], base: Path) -> None:
    folder = make(base)
    before = everything_below(base)
    assert temp_folder.remove(folder, NONCE)
    assert everything_below(base) == before


@pytest.mark.usefixtures("base")
def test_a_nonce_of_nothing_proves_nothing() -> None:
    folder = temp_folder.make("")
    assert temp_folder.remove(str(folder), "") == "it has no mark of this cluster"
    assert folder.exists()


def test_what_links_point_to_stays(base: Path) -> None:
    folder, home = temp_folder.make(NONCE), Path(a_foreign_folder(base))
    (folder / "out").symlink_to(home)
    (folder / "session").mkdir()
    (folder / "session" / "out").symlink_to(home)
    assert temp_folder.remove(str(folder), NONCE) == ""
    assert (home / "thesis").read_text() == "years"


# -- `down` -------------------------------------------------------------------------------


def state(temp_dir: Path, nonce: str = NONCE) -> RunState:
    return RunState(
        cluster="c1",
        nonce=nonce,
        control_url="http://127.0.0.1:9",
        control_token="secret",
        endpoint_url="http://127.0.0.1:9",
        ray_address="",
        owns_ray=True,
        ray_head_pid=None,
        ray_head_started_s=None,
        namespace="n",
        started_at_s=7,
        log_dir="/l",
        temp_dir=str(temp_dir),
    )


def test_down_deletes_its_own_and_not_that_of_a_cluster_of_the_same_name(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {home: filled(temp_folder.make(home * 16)) for home in ("a", "b")}
    for home, folder in folders.items():
        monkeypatch.setenv("XDG_STATE_HOME", str(base / home))
        run_state.save(state(folder, home * 16))
    tear_down(state(folders["b"], "b" * 16), drain=False, grace_s=0.0)
    assert not folders["b"].exists()
    assert (folders["a"] / temp_folder.RAY / "session" / "sockets" / "raylet").exists()


def test_down_deletes_nothing_else_that_a_run_state_names(base: Path) -> None:
    home = Path(a_foreign_folder(base))
    found = state(home)
    run_state.save(found)
    told: list[str] = []
    tear_down(found, drain=False, grace_s=0.0, progress=told.append)
    assert (home / "thesis").read_text() == "years"
    assert told == [f"{home} is left as it is: it has no mark of this cluster"]
    assert run_state.load("c1") is None
