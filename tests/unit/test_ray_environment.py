"""The environment that every process of a cluster inherits."""

import pytest

from controller.main.machine.ray_environment import head_environment


def test_memory_that_was_freed_is_given_back_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert head_environment("n", {}, loopback=True)["MALLOC_ARENA_MAX"] == "2"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert head_environment("n", {}, loopback=True)["MALLOC_ARENA_MAX"] == "8"


def test_a_ray_that_the_user_talks_to_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "RAY_ADDRESS" not in head_environment("n", {}, loopback=True)


def test_ray_s_own_settings_are_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that docs/reliability.md names, for starts that hang."""
    monkeypatch.delenv("RAY_worker_register_timeout_seconds", raising=False)
    assert "RAY_worker_register_timeout_seconds" not in head_environment("n", {}, loopback=True)
    monkeypatch.setenv("RAY_worker_register_timeout_seconds", "20")
    found = head_environment("n", {}, loopback=True)
    assert found["RAY_worker_register_timeout_seconds"] == "20"
