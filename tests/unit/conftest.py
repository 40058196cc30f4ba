"""Unit tests run without Ray: whoever starts it by accident hears of it at once."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a unit test started Ray")

    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "init", refuse)
