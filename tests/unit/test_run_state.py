"""The run state on disk is private, is written in one step, and says clearly if it cannot be
used."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError, RefusedError
from controller.api.state import run_state
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


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ("{}", "schema_version is missing"),
        ("[" * 100_000, "is corrupt"),
        ('{"schema_version": 1}', "cluster is missing"),
        ({"owns_ray": 1}, "owns_ray has the wrong type"),
        ({"ray_head_pid": True}, "ray_head_pid has the wrong type"),
        ({"schema_version": 2}, "written by a newer llumctl"),
        ({"cluster": "c2"}, "is corrupt: it is that of cluster 'c2'"),
    ],
)
def test_unusable_state_is_told(root: Path, changed: str | dict[str, object], part: str) -> None:
    run_state.save(STATE)
    text = changed if isinstance(changed, str) else json.dumps(asdict(STATE) | changed)
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
