"""The environment that every process of a cluster inherits."""

import os
import pwd
from pathlib import Path

import pytest

from controller.main.machine import ray_environment


def head_environment(timeout_s: float = 600.0) -> dict[str, str]:
    return ray_environment.head_environment("n", {}, loopback=True, start_timeout_s=timeout_s)


def test_what_the_user_has_set_counts_but_for_a_ray_that_is_not_to_be_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Freed memory is given back, and the other variable is one that docs/reliability.md names for
    starts that hang."""
    arenas, register = "MALLOC_ARENA_MAX", "RAY_worker_register_timeout_seconds"
    for name in (arenas, register):
        monkeypatch.delenv(name, raising=False)
    assert head_environment()[arenas] == "2"
    assert register not in head_environment()
    for name, value in ((arenas, "8"), (register, "20"), ("RAY_ADDRESS", "10.0.0.1:6379")):
        monkeypatch.setenv(name, value)
    found = head_environment()
    assert (found[arenas], found[register]) == ("8", "20")
    assert "RAY_ADDRESS" not in found
    for name in ray_environment.NOT_INHERITED:
        monkeypatch.setenv(name, "1")
    for found in (head_environment(), ray_environment.own_environment()):
        assert not ray_environment.NOT_INHERITED & found.keys()


def test_ray_waits_for_its_parts_as_long_as_up_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own limit of 30 s for a node ended starts on a busy machine."""
    seconds, ms = "RAY_raylet_start_wait_time_s", "RAY_agent_register_timeout_ms"
    found = head_environment(1800.5)
    assert (found[seconds], found[ms]) == ("1801", "1801000")
    assert head_environment(5.0)[seconds] == "60", "less than usual helps nobody"
    assert int(head_environment(1e12)[ms]) < 1 << 31
    monkeypatch.setenv(seconds, "45")
    assert head_environment(1800)[seconds] == "45", "the user's own counts"


def test_strangers_with_our_names_are_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("module/controller.py", "package/tui/__init__.py", "plugin/parser.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    root = str(Path(__file__).parents[2])
    folders = [str(tmp_path / name) for name in ("module", "package", "plugin")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, root]))
    assert head_environment()["PYTHONPATH"] == os.pathsep.join([folders[2], root])


def test_a_user_without_an_entry_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and torch look up the name of the user who runs them."""
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    for name in ("LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    assert head_environment()["USER"] == f"uid-{os.getuid()}"
    monkeypatch.setenv("LOGNAME", "me")
    assert "USER" not in head_environment()
