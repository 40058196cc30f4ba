"""Llumlets, a frontend and a controller that only does what the test says: for moves in memory.

Engine threads and the event loop are real; the clock of the moves is the test's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.destination import DestinationState
from controller.core.migration.move_records import MoveOrder, MoveRecord
from controller.core.migration.protocol import Verb
from controller.core.migration.source import SourceState
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested, Fetch
from controller.ports.engine import Engine
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import (
    EventsReported,
    Hello,
    InstanceLost,
    Message,
    StatusPushed,
    Welcome,
)
from controller.runtime.messages.move_messages import (
    HandoverEnded,
    MoveAnswered,
    MoveAsked,
    MoveEnvelope,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
    ReliefFruitless,
)
from controller.runtime.messages.requests import DispatchAsked, Dispatched, RequestsAsked
from tests.unit.runtime.fake_engine import FakeEngine, assert_empty, tokens_of
from tests.unit.runtime.fakes import PATIENCE_S, FakeNetwork, directory, idle_snapshot, until
from tests.unit.runtime.members import CONTROLLER, Frontend, Instance

T = TypeVar("T")


def says(verb: Verb) -> Callable[[Message], bool]:
    """Whether a message of a move's protocol is of that kind."""
    return lambda envelope: isinstance(envelope, MoveEnvelope) and envelope.message.verb is verb


@dataclass
class Clock:
    """Of the moves: their retries, patience and memory."""

    now_s: float = 1000.0


class ScriptedController:
    """Welcomes everybody, dispatches where it is told to, and keeps what it hears."""

    def __init__(self, network: FakeNetwork) -> None:
        self.mailbox = network.mailbox(CONTROLLER)
        self.mailbox.start(self._on_message, lambda address: None)
        self.places: dict[str, str] = {}
        """Request id to instance id."""
        self.fetches: dict[str, Fetch] = {}
        """By request id, what its instance is to fetch."""
        self.members: dict[str, Hello] = {}
        self.statuses: dict[str, StatusPushed] = {}
        self.events: list[LoggedEvent] = []
        self.answers: dict[str, Any] = {}
        self.records: list[MoveRecord] = []
        """Of moves that nobody asked for by a question."""
        self.fruitless: list[ReliefFruitless] = []
        self.handovers: list[HandoverEnded] = []

    def send(self, member_id: str, message: Message) -> None:
        self.mailbox.send(self.members[member_id].address, encode(message))

    def ref(self, instance_id: str) -> InstanceRef:
        member = self.members[instance_id]
        return InstanceRef(instance_id, member.incarnation, member.address)

    def _on_message(self, head: Any, _payload: Any) -> None:
        match decode(head):
            case Hello() as hello:
                self._hello(hello)
            case StatusPushed(snapshot=snapshot) as status:
                self.statuses[snapshot.instance_id] = status
            case EventsReported(events=events):
                self.events.extend(events)
            case DispatchAsked(asked=DispatchRequested(request_id, frontend_id)):
                instance_id = self.places.get(request_id, "i-0")
                ref = self.ref(instance_id)
                answer = Dispatch(
                    request_id,
                    frontend_id,
                    ref.instance_id,
                    ref.incarnation,
                    1,
                    fetch=self.fetches.get(request_id),
                )
                self.send(frontend_id, Dispatched(answer))
            case MoveAnswered(query_id="", record=record) if record is not None:
                self.records.append(record)
            case ReliefFruitless() as told:
                self.fruitless.append(told)
            case HandoverEnded() as ended:
                self.handovers.append(ended)
            case other if hasattr(other, "query_id"):
                self.answers[other.query_id] = other

    def _hello(self, hello: Hello) -> None:
        self.members[hello.member_id] = hello
        if hello.incarnation == 0:
            self.send(hello.member_id, Welcome(hello.nonce, 1))
        active = [m for m in self.members.values() if m.phase == "active" and m.incarnation]
        snapshots = [idle_snapshot(m.member_id, m.incarnation) for m in active if m.info]
        told = directory(*snapshots)
        for member in self.members.values():
            if member.kind == "frontend":
                self.send(member.member_id, told)


class MovingCluster:
    def __init__(self, network: FakeNetwork, clock: Clock, num_gpu_blocks: int = 65) -> None:
        self.network = network
        self.clock = clock
        self.controller = ScriptedController(network)
        self.frontend = Frontend(network, max_replays=0)
        self.instances = {
            i: Instance(network, i, engine=FakeEngine(num_gpu_blocks))
            for i in ("i-0", "i-1", "i-2")
        }
        self._num_asked = 0

    @property
    def a(self) -> Instance:
        return self.instances["i-0"]

    @property
    def b(self) -> Instance:
        return self.instances["i-1"]

    def keep_states(self, num_states: int) -> None:
        """So many blocks of each request, besides the growing ones, are written anew by each step.
        Called before the first request."""
        for instance in self.instances.values():
            instance.engine.num_states = num_states

    async def start(self) -> None:
        await self.until(lambda: len(self.frontend.known) == len(self.instances))

    async def end(self) -> None:
        self.network.release()
        for instance in self.instances.values():
            await instance.end()
        await self.frontend.router.close()

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)

    # -- requests ------------------------------------------------------------------------

    async def stream(
        self, request_id: str = "r", *, prompt: int = 100, max_tokens: int = 60, first: int = 5
    ) -> None:
        """Begin a request on i-0, which stops after the first tokens; no instance takes a step
        until it is told to."""
        self.hold()
        await self.frontend.submit(request_id, prompt, max_tokens)
        await self.more(request_id, first, self.a)

    async def crowd(self, lengths: dict[str, int], max_tokens: int = 20) -> None:
        """On i-0, with so many prompt tokens each. Those that fit have one token, which may be on
        its way. Nothing steps by itself."""
        self.hold()
        for request_id, num_prompt_tokens in lengths.items():
            await self.frontend.submit(request_id, num_prompt_tokens, max_tokens)
        await self.until(lambda: len(self.a.engine.waiting) == len(lengths))
        self.a.engine.allow(1)
        # A step's tokens come in one message. Before it nothing runs, and all that runs has some.
        await self.until(lambda: any(self.frontend.tokens.values()))

    async def waits(self, request_id: str = "r", *, max_tokens: int = 20) -> None:
        """Begin a request on i-0, which does not admit it."""
        self.a.engine.admits = False
        await self.frontend.submit(request_id, 40, max_tokens)
        await self.until(lambda: request_id in self.a.engine.waiting)

    def hold(self) -> None:
        for instance in self.instances.values():
            instance.engine.hold(blocks_thread=False)

    def go_on(self) -> None:
        for instance in self.instances.values():
            instance.engine.go_on()

    async def evict(self, request_id: str, instance: Instance) -> None:
        await self.at_boundary(instance, lambda _: instance.engine.evict(request_id))
        await self.until(lambda: self.record(request_id).state is RequestState.EVICTED)

    async def more(self, request_id: str, num_tokens: int, instance: Instance) -> None:
        """Takes exactly so many steps; to be used only while no other request runs."""
        goal = len(self.frontend.tokens[request_id]) + num_tokens
        instance.engine.allow(num_tokens)
        await self.until(lambda: len(self.frontend.tokens[request_id]) >= goal)

    async def ends(self, request_id: str = "r") -> str:
        self.go_on()
        return await asyncio.wait_for(self.frontend.ended[request_id], PATIENCE_S)

    async def finishes(self, request_id: str = "r") -> None:
        assert await self.ends(request_id) == "finished"
        max_tokens = self.frontend.max_tokens[request_id]
        assert self.frontend.tokens[request_id] == tokens_of(request_id, max_tokens)

    async def comes_to_rest(self) -> None:
        """Nothing holds anything any more: what still runs finishes, and nothing is left."""
        self.network.drops = self.network.doubles = lambda message: False
        self.network.release()
        for instance in self.instances.values():
            instance.transfer.let_go()
            instance.engine.admits = True
        await self.all_finish()
        await self.nothing_is_left()

    async def all_finish(self) -> None:
        for request_id in self.frontend.router.live_request_ids:
            await self.finishes(request_id)

    def record(self, request_id: str = "r") -> RequestRecord:
        asked = RequestsAsked("q", None, (), request_id, True, 9)
        records, _ = self.frontend.book.answer(asked)
        return next(record for record in records if record.request_id == request_id)

    def events(self, kind: EventKind, request_id: str = "r") -> list[LoggedEvent]:
        return [e for e in self.record(request_id).history if e.kind is kind]

    # -- moves ---------------------------------------------------------------------------

    def order(
        self,
        source_id: str = "i-0",
        destination_id: str = "i-1",
        request_id: str = "r",
        *,
        dry_run: bool = False,
        verify_kv: bool = False,
    ) -> str:
        """The id of the move and of the question."""
        self._num_asked += 1
        move_id = f"m-{self._num_asked}"
        destination = self.controller.ref(destination_id)
        asked = MoveAsked(
            move_id, MoveOrder(move_id, request_id, destination, "test", verify_kv), dry_run
        )
        self.controller.send(source_id, asked)
        return move_id

    async def answer(self, move_id: str) -> MoveAnswered:
        await self.until(lambda: move_id in self.controller.answers)
        answered: MoveAnswered = self.controller.answers[move_id]
        return answered

    async def move(self, *args: Any, **options: Any) -> MoveAnswered:
        return await self.answer(self.order(*args, **options))

    async def tried(self, *args: Any, **options: Any) -> tuple[str, str]:
        return await self.outcome(self.order(*args, **options))

    async def outcome(self, move_id: str) -> tuple[str, str]:
        """What became of a move that had begun, and the code of its answer."""
        answered = await self.answer(move_id)
        assert answered.record is not None, answered
        return answered.record.outcome, answered.code

    def source_state(self, move_id: str, instance_id: str = "i-0") -> SourceState | None:
        move = self.instances[instance_id].serving.instance_moves.outgoing.get(move_id)
        return move.machine.state if move else None

    def destination_state(self, move_id: str, instance_id: str = "i-1") -> DestinationState | None:
        move = self.instances[instance_id].serving.instance_moves.incoming.get(move_id)
        return move.machine.state if move else None

    @asynccontextmanager
    async def filled(self, num_blocks: int) -> AsyncIterator[None]:
        """So many blocks of i-1 are in use."""
        blocks = self.b.engine.blocks
        taken = await self.at_boundary(self.b, lambda _: blocks.take(num_blocks))
        assert taken is not None
        yield
        await self.at_boundary(self.b, lambda _: blocks.drop(taken))

    async def refusals(self, instance_id: str, *request_ids: str) -> tuple[tuple[str, str], ...]:
        """What the instance says of whether they can move."""
        self.controller.answers.pop("q", None)
        self.controller.send(instance_id, MoveRefusalAsked("q", request_ids))
        await self.until(lambda: "q" in self.controller.answers)
        answered: MoveRefusalsAnswered = self.controller.answers["q"]
        return answered.refusals

    # -- ends ----------------------------------------------------------------------------

    async def at_boundary(self, instance: Instance, look: Callable[[Engine], T]) -> T:
        found: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        instance.serving.between_steps(look, found.set_result)
        return await asyncio.wait_for(found, PATIENCE_S)

    async def kill(self, instance_id: str, let_go: Callable[[], None] = lambda: None) -> None:
        """Sockets close, and the controller says so to everybody. `let_go` ends what its engine's
        thread waits for."""
        dead = self.instances.pop(instance_id)
        self.network.lose(dead.address)
        self.controller.members.pop(instance_id)
        self.tell_lost(instance_id)
        let_go()
        await dead.end()

    async def fence(self, instance_id: str) -> None:
        """The cluster takes it for dead; it comes back as another incarnation without requests."""
        nonce, instance = self.controller.members[instance_id].nonce, self.instances[instance_id]
        self.controller.send(instance_id, Welcome(nonce, 2, fenced=True))
        self.tell_lost(instance_id)
        await self.until(lambda: instance.member.incarnation == 2)

    def abort(self) -> None:
        """The client of `r` leaves."""
        self.frontend.router.abort(["r"], RequestState.ABORTED, "the client left")

    def tell_lost(self, instance_id: str) -> None:
        for member_id in self.controller.members:
            self.controller.send(member_id, InstanceLost(instance_id, 1))

    async def nothing_is_left(self) -> None:
        """Of requests and of moves, once what is remembered of them may be forgotten. Engines that
        are held stay so: what nobody ends there does not come to its end by itself."""

        def quiet() -> bool:
            self.clock.now_s += 5.0
            return all(
                not instance.serving.requests
                and instance.serving.fetches.quiet
                and instance.serving.instance_moves.quiet
                for instance in self.instances.values()
            )

        await self.until(quiet)
        for instance in self.instances.values():
            assert instance.transfer.num_under_way == 0
            await self.at_boundary(instance, assert_empty)
        assert self.frontend.router.num_live_reqs == 0
