"""The last owner of a request has its last rank, whatever messages were lost, doubled or late."""

import random

from controller.core.load.snapshot import InstanceRef
from controller.core.migration import rank_changes, routes
from controller.core.migration.ownership import Epoch
from controller.core.migration.rank_changes import RankChanges, TellRank
from controller.core.migration.routes import Routes
from controller.core.replay import replay_machine as replays
from controller.core.scheduler_events import DispatchRequested
from tests.unit.core.core_builders import run_seeds

REFS = [InstanceRef(f"i-{n}", 1, f"mem://{n}") for n in range(3)]


class World:
    """One request that moves. An instance takes only changes of a higher number, and those of a
    move travel with it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.routes = Routes(self)
        self.machine = RankChanges(self.routes)
        self.loss = self.rng.choice([0.0, 0.5])
        self.owner, self.epoch = REFS[0], Epoch()
        self.has: dict[InstanceRef, tuple[int, int]] = dict.fromkeys(REFS, (0, 0))
        """(number, rank) of the last change that an instance knows."""
        self.last = (0, 0)
        self.on_their_way: list[TellRank | rank_changes.Confirmed] = []
        request = DispatchRequested("r", "f-0", 10, 0, 0.0)
        self.routes.handle(replays.Arrived(request, (b"x",)), 0.0)

    def incarnation(self, _instance_id: str) -> int | None:
        return 1

    def take(self, event: rank_changes.Event) -> None:
        self.on_their_way += self.machine.handle(event)
        self.machine.check()

    def change(self) -> None:
        number, _ = self.last
        self.last = number + 1, self.rng.randrange(3)
        self.take(rank_changes.Changed("r", self.last[1]))

    def send_first(self) -> None:
        self.routes.handle(routes.Sent("r", self.owner, 10), 0.0)
        self.take(rank_changes.Sent("r"))

    def move(self) -> None:
        to = self.rng.choice([ref for ref in REFS if ref is not self.owner])
        if self.rng.random() < 0.8:
            self.has[to] = max(self.has[to], self.has[self.owner])
        self.owner, self.epoch = to, Epoch(0, self.epoch.hop + 1)
        self.routes.handle(routes.Moved("r", self.epoch, to, 0), 0.0)

    def deliver(self) -> None:
        message = self.on_their_way.pop(self.rng.randrange(len(self.on_their_way)))
        if self.rng.random() < self.loss:
            return
        if isinstance(message, rank_changes.Confirmed):
            self.take(message)
            return
        owner, _, rank, number = message.owner, message.request_id, message.rank, message.number
        if owner is self.owner:  # another one has no such request any more
            self.has[owner] = max(self.has[owner], (number, rank))
            confirmed = rank_changes.Confirmed("r", self.has[owner][0], owner.key, self.epoch)
            self.on_their_way.append(confirmed)

    def run(self) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            self.change()
        self.send_first()
        for _ in range(60):
            drawn = rng.random()
            if drawn < 0.1:
                self.change()
            elif drawn < 0.25:
                self.move()
            elif drawn < 0.4:
                self.take(rank_changes.Due())
            elif self.on_their_way:
                self.deliver()
        self.loss = 0.0
        for _ in range(3):
            self.take(rank_changes.Due())
            while self.on_their_way:
                self.deliver()
        assert self.has[self.owner] == self.last
        assert self.machine.is_confirmed("r")
        assert self.machine.handle(rank_changes.Due()) == [], "nobody is told again"
        self.take(rank_changes.Ended("r"))
        assert not self.machine.has_changes


def test_the_last_owner_has_the_last_rank() -> None:
    run_seeds(200, lambda seed: World(seed).run())
