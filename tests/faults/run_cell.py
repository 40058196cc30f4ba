"""One cell: a move, a fault in it, and what the clients and the survivors must see."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

from tests.faults.breakpoints import HOLD
from tests.faults.cells import Cell
from tests.faults.children import Child, wait_for
from tests.faults.cluster import Client, FaultCluster
from tests.faults.engines import STATES


class Answer(Protocol):
    def __call__(
        self, cluster: FaultCluster, client: Client, begun: Sequence[int] = ..., /
    ) -> list[int]:
        """The right tokens of a request, after those that it has already."""


SOURCE, DESTINATION = "i-0", "i-1"
MEMBERS = {
    "source": SOURCE,
    "destination": DESTINATION,
    "controller": "controller",
    "frontend": "f-0",
}

ORPHAN_OUTPUTS = 1300
"""Almost as many as the engines allow: seconds, in which somebody must have aborted it."""

MAX_MOVES = 5
"""That are begun until one comes to the place of its fault: on a busy machine a timeout may end a
move before, or its request ends."""


class Victim(Protocol):
    def signal(self, name: str) -> None:
        """Returns when it has come to pass."""

    def wait_signalled(self, name: str) -> None: ...


_numbers = itertools.count()


@dataclass(frozen=True)
class Sizes:
    """Of requests, in tokens. `long_outputs` outlast the timeouts of a move."""

    prompt: int
    outputs: int
    long_outputs: int


@dataclass
class CellRun:
    cluster: FaultCluster
    cell: Cell
    sizes: Sizes
    answer: Answer
    others: list[Client] = field(default_factory=list)
    _outcomes_in_doubt: str = ""
    _num_early_failures: int = 0
    """Of the request: moves that failed before they came to the place."""

    def run(self) -> None:
        """Fails if anything is not as it must be."""
        self.cluster.mend()
        self._start_others(next(_numbers))
        moving = self._strike()
        for client in self.others if self._client_is_gone else (moving, *self.others):
            client.wait_over()
        alive = [i for i in (SOURCE, DESTINATION) if not self.cluster.children[i].dead]
        self.cluster.wait_quiet(*alive)
        for other in self.others:
            check_whole(self.cluster, other, self.answer)
        outcome, allowed = self._outcome(moving), self.cell.outcomes + self._outcomes_in_doubt
        assert outcome in allowed, f"{outcome}, not {allowed}"
        self.cluster.wait_quiet(*alive)
        assert not (errors := self.cluster.new_errors(self._may_err)), errors

    # -- the fault -----------------------------------------------------------------------

    def _strike(self) -> Client:
        """Returns the request in whose move the fault was."""
        cell, cluster = self.cell, self.cluster
        moving = self._begin()
        itself = self._is_itself
        if cell.held is not None:
            self._arm(*cell.held, HOLD)
        side = cluster.children[MEMBERS[cell.side]]
        begun = side.num_said
        self._arm(cell.side, cell.state, cell.signal if itself else HOLD)
        moving = self._move_to_place(moving, side, begun)
        victim = self._victim
        if itself:
            victim.wait_signalled(cell.signal)
        else:
            victim.signal(cell.signal)
        for each in (SOURCE, DESTINATION):
            cluster.children[each].tell("go_on")
        if cell.signal == "SIGSTOP":
            self._wait_reaction(moving)
            victim.signal("SIGCONT")
        return moving

    def _move_to_place(self, moving: Client, side: Child, begun: int) -> Client:
        """Returns the request that was moved: that one, or the next where it ended too early."""
        cell = self.cell

        def reached() -> bool:
            return bool(side.heard("reached", begun, side=cell.side, state=cell.state))

        def reached_or_ended(moving: Client) -> bool:
            return reached() or bool(self._failures(moving)) or moving.read().over

        for _ in range(MAX_MOVES):
            self.cluster.move(moving.request_id, SOURCE, DESTINATION)
            wait_for(partial(reached_or_ended, moving), f"a move at {cell.place}")
            if reached():
                return moving
            if moving.read().over:
                moving, self._num_early_failures = self._begin(), 0
            else:
                self._num_early_failures += 1
        raise AssertionError(f"no move came to {cell.place}: {moving.events('migration_failed')}")

    def _failures(self, moving: Client) -> list[str]:
        return moving.events("migration_failed")[self._num_early_failures :]

    def _arm(self, side: str, state: str, action: str) -> None:
        child = self.cluster.children[MEMBERS[side]]
        begun = child.num_said
        child.tell("arm", side=side, state=state, action=action)
        child.wait_heard("armed", begun, side=side, state=state)

    @property
    def _is_itself(self) -> bool:
        """Whether the process that comes to the place is the victim."""
        return self.cell.victim == self.cell.side

    @property
    def _may_err(self) -> str:
        """The member whose log may have errors."""
        return ""

    @property
    def _victim(self) -> Victim:
        return self.cluster.children[MEMBERS[self.cell.victim]]

    def _wait_reaction(self, moving: Client) -> None:
        cluster = self.cluster
        if self.cell.until == "went_on":
            other = next(each for each in self.others if self._runs_on_survivor(each))
            other.wait_tokens(len(other.read().tokens) + 20)
        elif self.cell.until == "freed":
            cluster.wait_report(DESTINATION, "to have freed", moves=0, held=0)
        elif self.cell.until == "settled":
            cluster.wait_report(DESTINATION, "to have committed", moves=0)
        else:
            conditions: dict[str, Callable[[], object]] = {
                "failed": lambda: self._failures(moving),
                "moved": lambda: DESTINATION in moving.read().places,
                "over": self._over_or_in_doubt,
            }
            wait_for(conditions[self.cell.until], f"the move to have {self.cell.until}")

    def _over_or_in_doubt(self) -> bool:
        """Where the destination took longer than a suspended request may wait, the source asks the
        frontend which of them has it. A frontend that is stopped answers when it goes on."""
        found = self.cluster.report(SOURCE)
        if self.cell.victim == "frontend" and found["states"] == ["fencing"]:
            self._outcomes_in_doubt = "MR"
        return found["moves"] == 0 or self._outcomes_in_doubt != ""

    # -- requests ------------------------------------------------------------------------

    @property
    def _num_outputs(self) -> int:
        """The source may keep it for as long as it takes to give a move up."""
        if self._client_is_gone:
            return ORPHAN_OUTPUTS
        long = self.cell.waits_for_a_timeout
        return self.sizes.long_outputs if long else self.sizes.outputs

    def _start_others(self, number: int) -> None:
        """They must not be touched: one beside the request at either side."""
        for place in (SOURCE, DESTINATION):
            name = f"other-{number}-{place}"
            self.others.append(
                self.cluster.submit("f-1", name, place, self.sizes.prompt, self.sizes.outputs)
            )
        for other in self.others:
            other.wait_tokens(1)

    def _begin(self) -> Client:
        """The request that is to move."""
        name = f"moving-{next(_numbers)}"
        moving = self.cluster.submit("f-0", name, SOURCE, self.sizes.prompt, self._num_outputs)
        moving.wait_tokens(3)
        return moving

    def _runs_on_survivor(self, other: Client) -> bool:
        return MEMBERS[self.cell.victim] not in other.read().places

    # -- what came of it -----------------------------------------------------------------

    @property
    def _client_is_gone(self) -> bool:
        return self.cell.victim == "frontend" and self.cell.signal == "SIGKILL"

    def _outcome(self, moving: Client) -> str:
        if self._client_is_gone:
            for each in (SOURCE, DESTINATION):
                child = self.cluster.children[each]
                finished = child.heard("finished", request_id=moving.request_id)
                assert not finished, f"nobody aborted it at {each}"
            begun = moving.read().tokens
            expected = self.answer(self.cluster, replace(moving, max_tokens=len(begun)))
            assert begun == expected, "wrong tokens before its client was gone"
            return "X"
        places = check_whole(self.cluster, moving, self.answer)
        migrated, failed = moving.events("migrated"), self._failures(moving)
        if moving.events("replayed"):
            assert places[-1] != MEMBERS[self.cell.victim]
            return "P"
        if migrated:
            assert (len(migrated), failed) == (1, []), (migrated, failed)
            assert places[-1] == DESTINATION
            return "M"
        assert len(failed) == 1, f"no word of how the move ended, tokens from {set(places)}"
        assert set(places) == {SOURCE}
        closed = self.cluster.children[SOURCE].heard("closed", request_id=moving.request_id)
        return {"kept": "K", "resumed": "R", "ended": "X"}[closed[-1]["outcome"]]


def check_whole(cluster: FaultCluster, client: Client, answer: Answer) -> list[str]:
    """One end, no error, and each token the right one. Returns who sent each token.

    A request whose state was computed again is *continued*: its tokens before that are those of a
    request that stayed, and its tokens after that are those of a new request whose prompt is all
    that came before."""
    read = client.wait_over()
    assert (read.num_ends, read.errors) == (1, []), read
    assert len(read.tokens) == client.max_tokens
    continued_at = client.continued_at()
    is_continued = cluster.engine == STATES and bool(client.events("replayed"))
    assert read.num_continued == len(continued_at) == is_continued
    for begin, end in pairwise((0, *continued_at, client.max_tokens)):
        expected = answer(cluster, client, read.tokens[:begin])[: end - begin]
        assert read.tokens[begin:end] == expected, (
            f"{client.request_id}: wrong tokens of {begin} to {end}"
        )
    return read.places


def _reads_from(moving: Client, instance_id: str) -> bool:
    return moving.read().places[-1] == instance_id


def move_there_and_back(cluster: FaultCluster, sizes: Sizes, answer: Answer) -> None:
    """Without a fault: nobody can tell but by the events."""
    cluster.mend()
    name = f"moving-{next(_numbers)}"
    moving = cluster.submit("f-0", name, SOURCE, sizes.prompt, sizes.long_outputs)
    for here, there in ((SOURCE, DESTINATION), (DESTINATION, SOURCE)):
        moving.wait_tokens(len(moving.read().tokens) + 3)
        cluster.move(name, here, there)
        wait_for(partial(_reads_from, moving, there), f"tokens of {there}")
        cluster.wait_report(here, "its move to be over", moves=0)
    check_whole(cluster, moving, answer)
    assert (len(moving.events("migrated")), moving.events("migration_failed")) == (2, [])
    cluster.wait_quiet(SOURCE, DESTINATION)
