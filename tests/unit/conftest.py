"""Unit tests run without Ray: whoever starts it by accident hears of it at once."""

import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a unit test started Ray")

    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "init", refuse)


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is configured and no cluster runs; nothing of the user's is seen or touched."""
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
