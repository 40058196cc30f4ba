"""One cell: a move, a fault in it, and what the clients and the survivors must see."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.faults.breakpoints import HOLD
from tests.faults.cells import Cell
from tests.faults.children import Child, wait_for
from tests.faults.cluster import Client, FaultCluster

Answer = Callable[[FaultCluster, Client], list[int]]
"""The right tokens of a request."""

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

_numbers = itertools.count()


@dataclass(frozen=True)
class Sizes:
    """Of requests, in tokens. `long_outputs` outlast the timeouts of a move. Beside a `prompt` and
    a `blocker` there is no room for one that is `queued`."""

    prompt: int
    queued: int
    blocker: int
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

    def run(self) -> str:
        """The outcome, one of the cell's; fails if anything is not as it must be."""
        self.cluster.mend()
        self._start_others(next(_numbers))
        moving = self._strike()
        self._settle(moving)
        self._check_survivors()
        self._check_others()
        assert not (errors := self.cluster.new_errors()), errors
        outcome, allowed = self._outcome(moving), self.cell.outcomes + self._outcomes_in_doubt
        assert outcome in allowed, f"{outcome}, not {allowed}"
        return outcome

    # -- the fault -----------------------------------------------------------------------

    def _strike(self) -> Client:
        """Returns the request in whose move the fault was."""
        cell, place, cluster = self.cell, self.cell.place, self.cluster
        moving = self._begin()
        itself = cell.victim == place.side
        if place.held is not None:
            self._arm(*place.held, HOLD)
        side = cluster.children[MEMBERS[place.side]]
        begun = side.num_said
        self._arm(place.side, place.state, cell.signal if itself else HOLD)
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
        place = self.cell.place

        def reached() -> bool:
            return bool(side.heard("reached", begun, side=place.side, state=place.state))

        def reached_or_ended(moving: Client) -> bool:
            return reached() or bool(self._failures(moving)) or moving.read().over

        for _ in range(MAX_MOVES):
            self.cluster.move(moving.request_id, SOURCE, DESTINATION)
            wait_for(partial(reached_or_ended, moving), f"a move at {place.name}")
            if reached():
                return moving
            if moving.read().over and not self.cell.queued:
                moving, self._num_early_failures = self._begin(), 0
            else:
                self._num_early_failures += 1
        raise AssertionError(f"no move came to {place.name}: {moving.events('migration_failed')}")

    def _failures(self, moving: Client) -> list[str]:
        return moving.events("migration_failed")[self._num_early_failures :]

    def _arm(self, side: str, state: str, action: str) -> None:
        child = self.cluster.children[MEMBERS[side]]
        begun = child.num_said
        child.tell("arm", side=side, state=state, action=action)
        child.wait_heard("armed", begun, side=side, state=state)

    @property
    def _victim(self) -> Child:
        return self.cluster.children[MEMBERS[self.cell.victim]]

    def _wait_reaction(self, moving: Client) -> None:
        cluster, until = self.cluster, self.cell.until
        if until == "went_on":
            other = next(each for each in self.others if self._runs_on_survivor(each))
            other.wait_tokens(len(other.read().tokens) + 20)
        elif until == "freed":
            cluster.wait_report(DESTINATION, "to have freed", moves=0, held=0)
        elif until == "failed":
            wait_for(lambda: self._failures(moving), "the move to fail")
        elif until == "moved":
            wait_for(lambda: DESTINATION in moving.read().places, "tokens of the destination")
        elif until == "over":
            wait_for(self._over_or_in_doubt, f"{SOURCE}: its move to be over")
        elif until == "settled":
            cluster.wait_report(DESTINATION, "to have committed", moves=0)
        else:
            raise AssertionError(f"no such reaction: {until}")

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
        decodes_for_long = self.cell.waits_for_a_timeout and not self.cell.queued
        return self.sizes.long_outputs if decodes_for_long else self.sizes.outputs

    def _start_others(self, number: int) -> None:
        """They must not be touched: one beside the request at either side. Where that one waits
        in the queue they outlast its stay there."""
        cluster, sizes = self.cluster, self.sizes
        num_outputs = sizes.long_outputs if self.cell.queued else sizes.outputs
        wanted = [(f"other-{number}-{each}", each, sizes.prompt) for each in (SOURCE, DESTINATION)]
        if self.cell.queued:
            wanted.append((f"blocker-{number}", SOURCE, sizes.blocker))
        for request_id, place, num_prompt in wanted:
            other = cluster.submit("f-1", request_id, place, num_prompt, num_outputs)
            self.others.append(other)
        for other in self.others:
            other.wait_tokens(1)

    def _begin(self) -> Client:
        """The request that is to move."""
        queued, sizes = self.cell.queued, self.sizes
        num_prompt = sizes.queued if queued else sizes.prompt
        name = f"moving-{next(_numbers)}"
        moving = self.cluster.submit("f-0", name, SOURCE, num_prompt, self._num_outputs)
        if queued:
            self.cluster.wait_in_queue(SOURCE, name)
        else:
            moving.wait_tokens(3)
        return moving

    def _runs_on_survivor(self, other: Client) -> bool:
        return MEMBERS[self.cell.victim] not in other.read().places

    # -- what came of it -----------------------------------------------------------------

    @property
    def _client_is_gone(self) -> bool:
        return self.cell.victim == "frontend" and self.cell.signal == "SIGKILL"

    def _settle(self, moving: Client) -> None:
        if self.cell.queued and self.cell.outcomes in ("K", "R"):
            wait_for(lambda: self._failures(moving), "the move to fail")
            self.cluster.wait_in_queue(SOURCE, moving.request_id)
        for client in self.others if self._client_is_gone else (moving, *self.others):
            client.wait_over()

    def _outcome(self, moving: Client) -> str:
        if self._client_is_gone:
            for each in (SOURCE, DESTINATION):
                finished = self.cluster.children[each].heard(
                    "finished", request_id=moving.request_id
                )
                assert not finished, f"nobody aborted it at {each}"
            return "X"
        read = moving.read()
        right = self.answer(self.cluster, moving)
        assert read.tokens == right[: len(read.tokens)], "wrong tokens"
        assert read.num_ends + len(read.errors) == 1, read
        migrated, failed = moving.events("migrated"), self._failures(moving)
        assert not read.errors, read.errors
        assert len(read.tokens) == len(right), "too few tokens"
        if moving.events("replayed"):
            assert read.places[-1] != MEMBERS[self.cell.victim]
            return "P"
        if migrated:
            assert (len(migrated), failed) == (1, []), (migrated, failed)
            assert read.places[-1] == DESTINATION
            return "M"
        assert len(failed) == 1, f"no word of how the move ended, tokens from {set(read.places)}"
        assert set(read.places) == {SOURCE}
        closed = self.cluster.children[SOURCE].heard("closed", request_id=moving.request_id)
        return {"kept": "K", "resumed": "R", "ended": "X"}[closed[-1]["outcome"]]

    def _check_others(self) -> None:
        for other in self.others:
            read = other.read()
            right = self.answer(self.cluster, other)
            assert (read.num_ends, read.errors) == (1, []), read
            assert read.tokens == right, f"{other.request_id}: wrong tokens"

    def _check_survivors(self) -> None:
        alive = [i for i in (SOURCE, DESTINATION) if not self.cluster.children[i].dead]
        self.cluster.wait_quiet(*alive)


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
    read = moving.wait_over()
    assert read.tokens == answer(cluster, moving)
    assert (read.num_ends, read.errors) == (1, [])
    assert (len(moving.events("migrated")), moving.events("migration_failed")) == (2, [])
    cluster.wait_quiet(SOURCE, DESTINATION)


def move_with_a_corrupted_block(
    cluster: FaultCluster, sizes: Sizes, answer: Answer, *, verify_kv: bool
) -> None:
    """A bit of the KV cache flips on the way. The digests differ, and the request stays where it
    was; without them its answer goes wrong, which the comparison of tokens sees."""
    cluster.mend()
    name = f"moving-{next(_numbers)}"
    moving = cluster.submit("f-0", name, SOURCE, sizes.prompt, sizes.long_outputs)
    moving.wait_tokens(3)
    cluster.children[DESTINATION].tell("corrupt")
    cluster.move(name, SOURCE, DESTINATION, verify_kv=verify_kv)
    ended = "migration_failed" if verify_kv else "migrated"
    wait_for(lambda: moving.events(ended), f"the move to be {ended}")
    read = moving.wait_over()
    cluster.new_errors()  # the destination says that the blocks differ
    assert (read.num_ends, read.errors) == (1, [])
    assert (read.tokens == answer(cluster, moving)) is verify_kv
    assert (set(read.places) == {SOURCE}) is verify_kv
    cluster.wait_quiet(SOURCE, DESTINATION)
