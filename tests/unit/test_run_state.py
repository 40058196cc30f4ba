"""The run state on disk is private, is written in one step, and says clearly if it cannot be
used. The audit log says when a cluster was stopped, and by whom. A cluster's temporary folder is
new for each run, and is deleted only if its marker proves what it is."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError, RefusedError
from controller.api.state import run_state
from controller.api.state.audit import AuditLog, last_stop, last_stop_words
from controller.api.state.run_state import RunState
from controller.api.text.quantities import moment
from controller.main import down
from controller.main.down import tear_down
from controller.main.machine import run_folders
from tests.unit.cli_support import remember
from tools.synthetic_cluster import run_state_of

STATE = replace(
    run_state_of("http://127.0.0.1:8700", "secret", "c1"),
    nonce="ab12",
    ray_head_pid=12,
    ray_head_started_s=3.5,
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "llumctl"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_round_trip_is_private(root: Path) -> None:
    assert run_state.load("c1") is None
    assert not root.exists()
    old = os.umask(0)
    try:
        path = run_state.save(STATE)
    finally:
        os.umask(old)
    assert [mode(root), mode(root / "c1"), mode(path)] == [0o700, 0o700, 0o600]
    assert run_state.load("c1") == STATE
    assert run_state.clusters() == ["c1"]
    assert not {"secret", "ab12"} & set(repr(STATE).split("'"))
    (root / "c1").chmod(0o755)
    assert mode(run_state.state_dir("c1")) == 0o700, "an open folder is closed"
    for _ in range(2):
        run_state.remove("c1")
    assert run_state.load("c1") is None
    assert run_state.clusters() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_link_that_another_user_put_there_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    root.symlink_to(tmp_path / "mine")
    os.lchown(root, 12345, 12345)
    with pytest.raises(RefusedError, match="belongs to another user"):
        run_state.state_dir("c1")
    assert mode(tmp_path / "mine") == 0o755
    os.lchown(root, os.geteuid(), os.getegid())
    assert run_state.state_dir("c1").is_dir(), "a link of one's own is one's own choice"


def test_saving_replaces_in_one_step(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_state.save(STATE)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LlumctlError, match="No space left"):
        run_state.save(replace(STATE, nonce="new"))
    assert run_state.load("c1") == STATE
    assert os.listdir(root / "c1") == ["run.json"]  # noqa: PTH208 - nothing temporary stays


def test_unusable_state_is_told(root: Path) -> None:
    run_state.save(STATE)
    changed: dict[str, dict[str, object]] = {
        "owns_ray has the wrong type": {"owns_ray": 1},
        "ray_head_pid has the wrong type": {"ray_head_pid": True},
        "written by a newer llumctl": {"schema_version": 2},
        "is corrupt: it is that of cluster 'c2'": {"cluster": "c2"},
    }
    texts = {part: json.dumps(asdict(STATE) | fields) for part, fields in changed.items()}
    texts |= {
        "schema_version is missing": "{}",
        "is corrupt": "[" * 100_000,
        "not an object": "[1]",
    }
    for part, text in (texts | {"cluster is missing": '{"schema_version": 1}'}).items():
        (root / "c1" / "run.json").write_text(text)
        with pytest.raises(LlumctlError, match=part) as caught:
            run_state.load("c1")
        assert caught.value.exit_code == 1
        assert caught.value.hint


def test_unknown_fields_are_ignored_and_nulls_allowed(root: Path) -> None:
    run_state.save(STATE)
    without_head = {"ray_head_pid": None, "ray_head_started_s": None}
    text = json.dumps(asdict(STATE) | without_head | {"later": 1})
    (root / "c1" / "run.json").write_text(text)
    assert run_state.load("c1") == replace(STATE, ray_head_pid=None, ray_head_started_s=None)


@pytest.mark.parametrize("name", ["", "..", "../x", "A", "-a", "a" * 25, "a\n"])
def test_names_that_are_no_clusters(name: str) -> None:
    assert run_state.load("a" * 24) is None
    with pytest.raises(LlumctlError) as caught:
        run_state.load(name)
    assert caught.value.exit_code == 2


def test_relative_xdg_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert run_state.state_root() == tmp_path / ".local" / "state" / "llumctl"


def test_lock_is_exclusive_within_a_cluster(root: Path) -> None:
    for _ in range(2):
        assert not run_state.is_being_changed("c1")
        with run_state.lock("c1"):
            assert run_state.is_being_changed("c1")
            assert not run_state.is_being_changed("c2")
            with pytest.raises(LlumctlError, match=f"command .pid {os.getpid()}.") as caught:
                run_state.lock("c1").__enter__()
            with run_state.lock("c2"):
                pass
    assert caught.value.exit_code == 5
    assert mode(root / "c1" / "lock") == 0o600


@pytest.mark.process
def test_lock_ends_with_its_process() -> None:
    script = (
        "from controller.api.state import run_state\n"
        "held = run_state.lock('c1')\n"
        "held.__enter__()\n"
        "print('held', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LlumctlError, match=f"pid {holder.pid}"):
            run_state.lock("c1").__enter__()
        holder.kill()
        holder.wait()
        with run_state.lock("c1"):
            pass


def test_a_folder_that_cannot_be_made_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert run_state.load("c1") is None
    with pytest.raises(LlumctlError, match="cannot use the state folder"):
        run_state.save(STATE)


# -- when a cluster was stopped -----------------------------------------------------------


def audit() -> AuditLog:
    return AuditLog(run_state.state_dir("default"))


def write(action: str, actor: str = "ana@head") -> None:
    audit().write(actor=actor, action=action, target="", outcome="done", cause_id="x")


def test_the_last_down_counts_whatever_was_done_since() -> None:
    assert last_stop("default") is None
    assert last_stop_words("default") == "cluster default was stopped"
    write("scale +1")
    assert last_stop("default") is None
    write("down: now", "bob@head")
    write("down: drain", "ana@head")
    write("scale +1", "eve@head")
    found = last_stop("default")
    assert found is not None
    assert found.actor == "ana@head"
    assert last_stop_words("default") == f"cluster default was stopped at {found.words()}"


def test_lines_that_are_no_entries_are_passed_over() -> None:
    for junk in (
        b"{",
        b"[]\n",
        b'{"action": "down: x", "time_s": "soon", "actor": "a"}\n',
        b'{"action": "down: x", "time_s": 1, "actor": 5}\n',
    ):
        write("down: drain")
        with audit().path.open("ab") as file:
            file.write(junk)
        found = last_stop("default")
        assert found is not None
        assert found.actor == "ana@head"


def test_a_pipe_in_place_of_the_log_holds_nobody_up() -> None:
    os.mkfifo(audit().path)
    assert last_stop("default") is None


def test_what_an_actor_calls_itself_drives_no_terminal() -> None:
    write("down: now")
    line = audit().path.read_text().replace("ana@head", "\\u001b[2Jana")
    audit().path.write_text(line)
    found = last_stop("default")
    assert found is not None
    assert found.actor == "?[2Jana"


def test_down_leaves_its_end_on_the_record_before_the_run_state_goes() -> None:
    state = remember("http://127.0.0.1:1")
    assert down.run(state.cluster, drain=False, timeout_s=0.1, progress=lambda _: None)
    entries = [json.loads(line) for line in audit().path.read_text().splitlines()]
    assert [(each["action"], each["outcome"]) for each in entries] == [
        ("down: now", "begun"),
        ("down: now", "done"),
    ]
    found = last_stop("default")
    assert found is not None
    assert found.time_s == entries[1]["time_s"]


def test_moments_of_another_day_have_their_date() -> None:
    noon_s = 1_767_268_800.0
    assert moment(noon_s, noon_s + 60, UTC) == "12:00:00"
    assert moment(noon_s, noon_s + 86_400, UTC) == "2026-01-01 12:00:00"
    assert moment(float("inf"), noon_s, UTC) == "--:--:--"


# -- temporary folders --------------------------------------------------------------------


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
