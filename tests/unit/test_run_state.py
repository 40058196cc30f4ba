"""The run state on disk is private, is written in one step, and says clearly if it cannot be
used. The audit log says when a cluster was stopped, and by whom."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError, RefusedError
from controller.api.state import run_state
from controller.api.state.audit import AuditLog, last_stop, last_stop_words
from controller.api.text.quantities import moment
from controller.main import down
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
    texts |= {"schema_version is missing": "{}", "is corrupt": "[" * 100_000}
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
