"""The environment that every process of a cluster inherits."""

import os
import pwd
from pathlib import Path

import pytest

from controller.main.machine import ray_environment


def head_environment(timeout_s: float = 600.0) -> dict[str, str]:
    return ray_environment.head_environment("n", {}, loopback=True, start_timeout_s=timeout_s)


def test_memory_that_was_freed_is_given_back_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert head_environment()["MALLOC_ARENA_MAX"] == "2"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert head_environment()["MALLOC_ARENA_MAX"] == "8"


def test_a_ray_that_the_user_talks_to_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "RAY_ADDRESS" not in head_environment()


def test_ray_s_own_settings_are_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's variable is one that docs/reliability.md names for starts that hang."""
    monkeypatch.delenv("RAY_worker_register_timeout_seconds", raising=False)
    assert "RAY_worker_register_timeout_seconds" not in head_environment()
    monkeypatch.setenv("RAY_worker_register_timeout_seconds", "20")
    found = head_environment()
    assert found["RAY_worker_register_timeout_seconds"] == "20"


def test_ray_waits_for_its_parts_as_long_as_up_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own limit of 30 s for a node ended starts on a busy machine."""
    seconds, ms = "RAY_raylet_start_wait_time_s", "RAY_agent_register_timeout_ms"
    found = head_environment(1800.5)
    assert (found[seconds], found[ms]) == ("1801", "1801000")
    assert found["RAY_raylet_client_num_connect_attempts"] == "1801", "one a second"
    pause = "RAY_raylet_client_connect_timeout_milliseconds"
    assert pause not in found, "raylets slept for so long between two attempts"
    assert head_environment(5.0)[seconds] == "60", "less than usual helps nobody"
    assert int(head_environment(1e12)[ms]) < 1 << 31
    monkeypatch.setenv(seconds, "45")
    assert head_environment(1800)[seconds] == "45", "the user's own counts"


@pytest.mark.parametrize("name", sorted(ray_environment.NOT_INHERITED))
def test_what_would_change_our_processes_is_not_inherited(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert name not in head_environment()
    assert name not in ray_environment.own_environment()


def test_strangers_with_our_names_are_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("module", "package", "plugin"):
        (tmp_path / name).mkdir()
    (tmp_path / "module" / "controller.py").touch()
    (tmp_path / "package" / "tui").mkdir()
    (tmp_path / "package" / "tui" / "__init__.py").touch()
    (tmp_path / "plugin" / "parser.py").touch()
    root = str(Path(__file__).parents[2])
    folders = [str(tmp_path / name) for name in ("module", "package", "plugin")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, root]))
    assert head_environment()["PYTHONPATH"] == os.pathsep.join([folders[2], root])


def test_a_user_without_an_entry_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and torch look up the name of the user who runs them."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    assert head_environment()["USER"] == f"uid-{os.getuid()}"
    monkeypatch.setenv("LOGNAME", "me")
    assert "USER" not in head_environment()
