"""SIGTERM as a notice: the first signal is announced, the second one does what it did before."""

import signal
from collections.abc import Iterator

import pytest

from controller.adapters.ray.ray_starts import EndNotice


@pytest.fixture
def ended() -> Iterator[list[str]]:
    """Signals that reached the earlier handler."""
    found: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: found.append("ended"))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_the_first_one_is_told_and_the_second_one_ends(ended: list[str]) -> None:
    notice, told = EndNotice(), list[str]()
    notice.listen(lambda: told.append("told"))
    signal.raise_signal(signal.SIGTERM)
    assert (told, ended) == (["told"], [])
    signal.raise_signal(signal.SIGTERM)
    assert (told, ended) == (["told"], ["ended"])


def test_without_a_listener_it_ends_at_once(ended: list[str]) -> None:
    EndNotice()
    signal.raise_signal(signal.SIGTERM)
    assert ended == ["ended"]
