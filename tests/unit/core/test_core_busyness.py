"""Instances that compute without a request."""

from controller.core.fleet.liveness import (
    BUSY_CORES,
    LASTS_S,
    Busyness,
    IdleSeen,
    InstanceGone,
    TellBusy,
)


class Watched:
    def __init__(self) -> None:
        self.machine = Busyness()

    def look(self, now_s: float, cores: float | None = None) -> list[TellBusy]:
        """None: it has work, or does not serve."""
        found = self.machine.handle(IdleSeen({} if cores is None else {("i-0", 1): cores}), now_s)
        self.machine.check(now_s)
        return found

    @property
    def on_record(self) -> bool:
        return self.machine.is_on_record("i-0", 1)


def test_what_lasts_is_put_on_record_once_and_its_end() -> None:
    watched = Watched()
    assert watched.look(0.0) == []
    assert watched.look(1.0, 1.1) == []
    assert watched.look(1.0 + LASTS_S - 0.1, BUSY_CORES) == []
    assert not watched.on_record
    assert watched.look(1.0 + LASTS_S, 1.1) == [TellBusy("i-0", 1, LASTS_S, 1.1)]
    assert watched.on_record
    assert watched.look(8.0, 1.1) == []
    assert watched.look(9.0, 0.01) == [TellBusy("i-0", 1, 8.0, over=True)]
    assert not watched.on_record
    assert watched.look(10.0, 0.01) == []


def test_what_does_not_last_is_not() -> None:
    watched = Watched()
    for now_s in range(20):
        assert watched.look(now_s, 1.1 if now_s % 4 else 0.01) == []


def test_an_instance_that_is_gone() -> None:
    watched = Watched()
    watched.look(0.0, 1.1)
    watched.look(LASTS_S, 1.1)
    watched.machine.handle(InstanceGone("i-0", 1), LASTS_S)
    watched.machine.check(LASTS_S)
    assert not watched.on_record
    assert watched.look(LASTS_S + 1) == []
