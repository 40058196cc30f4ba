"""No two processes of a member are the same incarnation, in whatever order and by whichever
controller they are heard."""

import random

from controller.core.fleet import incarnations
from tests.unit.core.core_builders import run_seeds


class World:
    """Processes of one member, of which several may be alive, and a controller that may start anew.
    What it stores on disk is stored before anybody is told."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = incarnations.Incarnations()
        self.named = {"n-0": 0}
        """By nonce, the incarnation that a process takes itself for."""
        self.given: dict[int, str] = {}
        """The process that each incarnation was given to; one that lives may be greeted again."""
        self.dead: set[int] = set()
        self.kept = incarnations.LastIncarnation(0, alive=False)

    def take(self, event: incarnations.Event) -> None:
        was_alive, before = self.machine.alive, self.machine.incarnation
        for told in self.machine.handle(event):
            match told:
                case incarnations.Died(incarnation):
                    assert was_alive
                    assert incarnation == before
                    self.dead.add(incarnation)
                case incarnations.Greet(incarnation, drops):
                    assert isinstance(event, incarnations.Hello)
                    self.greet(event, incarnation, drops=drops)
        if isinstance(event, incarnations.Gone | incarnations.TakenForDead) and was_alive:
            self.dead.add(before)
        self.machine.check()
        if self.machine.nonce:
            self.kept = incarnations.LastIncarnation(self.machine.incarnation, self.machine.alive)

    def greet(self, hello: incarnations.Hello, incarnation: int, *, drops: bool) -> None:
        assert incarnation not in self.dead, "a dead incarnation is given again"
        assert self.given.setdefault(incarnation, hello.nonce) == hello.nonce, "given to two"
        assert drops or hello.named in (0, incarnation), "it goes on as another"
        if self.rng.random() < 0.7:  # else the greeting is lost
            self.named[hello.nonce] = incarnation

    def hello(self) -> None:
        nonce = self.rng.choice(sorted(self.named))
        self.take(incarnations.Hello(nonce, self.named[nonce], self.rng.random() < 0.1))

    def run(self) -> None:
        for _ in range(60):
            drawn = self.rng.random()
            if drawn < 0.5:
                self.hello()
            elif drawn < 0.65:
                self.take(incarnations.Gone())
            elif drawn < 0.75:
                self.take(incarnations.TakenForDead())
                assert self.machine.fenced or not self.machine.alive
            elif drawn < 0.85:
                self.take(incarnations.Reported())
                assert not self.machine.fenced
            elif drawn < 0.95:
                self.named[f"n-{len(self.named)}"] = 0
            else:
                self.machine = incarnations.Incarnations(self.kept)


def test_each_incarnation_is_one_process() -> None:
    run_seeds(300, lambda seed: World(seed).run())
