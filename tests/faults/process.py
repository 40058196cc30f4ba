"""One process of a cluster without Ray: `python -m tests.faults.process`.

Its first command says what it is: a controller, an instance or a frontend, composed of the real
shells and adapters as controller/main/roles.py does it. A launcher that launches nothing stands
in for Ray, the test for vLLM's OpenAI app.
"""

import asyncio
import json
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from controller.adapters.files.adapter_files import AdapterCopies
from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.destination import DestinationMove
from controller.core.migration.move_records import MoveOrder
from controller.core.migration.protocol import MoveTiming
from controller.core.migration.source import SourceMove
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested, Fetch, RejectCode
from controller.core.settings import ReschedulingConfig
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.controller_link import ControllerLink
from controller.runtime.frontend.dispatcher import NotDispatchedError
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.frontend.router import Router, RouterEvents
from controller.runtime.instance import move_ends
from controller.runtime.instance.llumlet import Llumlet
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import InstanceEntry
from controller.runtime.messages.move_messages import MoveAsked
from controller.runtime.messages.requests import OutputsEmitted
from tests.faults import breakpoints, engines
from tests.faults.lines import die_with_the_test, listen, say, take_over_stdout

HOST = "127.0.0.1"
STATUS_INTERVAL_S = 0.02


class NoLauncher:
    def loss(self) -> None:
        return None

    def launch_instance(self, instance_id: str) -> None:
        """The test starts it."""

    def launch_frontend(self, frontend_id: str) -> None:
        """The test starts it."""

    def no_room(self, num_instances: int) -> str:
        raise AssertionError(f"{num_instances} more instances: no test scales")

    def restart(self, member_id: str) -> None:
        raise AssertionError(f"{member_id}: no test restarts")

    def is_misplaced(self, _instance_id: str) -> bool:
        return False

    def terminate(self, member_id: str) -> None:
        """The test ends it."""

    def leaving(self) -> dict[str, float | None]:
        return {}

    def avoid(self, machines: frozenset[str]) -> None:
        raise AssertionError(f"{machines}: no test takes a machine away")


async def controller(
    key: str, port: int, num_instances: int, num_frontends: int, **_others: Any
) -> None:
    mailbox = ZmqMailbox(HOST, port, ClusterKey(key))
    keeper = SpecKeeper(ClusterSpec.first(num_instances))
    config = LiveConfig(rescheduling=ReschedulingConfig(enabled=False))
    service = ControllerProcess(mailbox, NoLauncher(), config, keeper)
    service.start(num_frontends)

    def move(migration_id: str, request_id: str, source_id: str, destination_id: str) -> None:
        members = service.roster.members
        to = members[destination_id]
        ref = InstanceRef(to.member_id, to.incarnation, to.address)
        asked = MoveAsked("q", MoveOrder(migration_id, request_id, ref, "a test"))
        mailbox.send(members[source_id].address, encode(asked))

    def fence_after(seconds: float) -> None:
        scheduler = replace(service.live.scheduler, fence_after_s=seconds)
        service.configure(replace(service.live, scheduler=scheduler))

    listen({"move": move, "fence_after": fence_after})
    say("serving")
    await service.run()


# -- instances ----------------------------------------------------------------------------


async def instance(
    member_id: str,
    key: str,
    controller_address: str,
    engine: str,
    model: str,
    timing: dict[str, float],
    **_others: Any,
) -> None:
    _set_timing(MoveTiming(**timing))
    breakpoints.install()
    mailbox = ZmqMailbox(HOST, key=ClusterKey(key))
    member = ControllerLink(
        "instance", member_id, mailbox, controller_address, HOST, lambda: service.num_live_reqs
    )
    transfer = engines.kv_transfer(
        engine, lambda: InstanceRef(member.member_id, member.incarnation, mailbox.address)
    )
    service = Llumlet(
        member,
        mailbox,
        engines.engine_factory(engine, model),
        STATUS_INTERVAL_S,
        transfer,
        AdapterCopies(Path(tempfile.gettempdir()) / f"adapters-{member_id}"),
    )
    listen(
        {
            "arm": breakpoints.arm,
            "go_on": breakpoints.go_on,
            "hang": lambda: service._thread.command(_hang),
            "wake": _awake.set,
            "limit": lambda bytes_per_s: _limit(service, bytes_per_s),
            "forget": lambda: service._thread.between_steps(
                engines.forget_cached, lambda _: say("forgot")
            ),
            "hold_loads": breakpoints.hold_loads,
            "report": lambda number: service._thread.between_steps(
                _count, partial(_report, service, number)
            ),
        }
    )
    say("serving", address=mailbox.address)
    await service.run()


def _limit(service: Llumlet, bytes_per_s: float | None) -> None:
    assert service.serving is not None
    service.serving.transfer.max_bytes_per_s = bytes_per_s


_awake = threading.Event()


def _hang(_engine: Any) -> None:
    """The engine's thread stands still, as in a kernel that does not return. The event loop of its
    process goes on."""
    _awake.clear()
    say("hangs")
    _awake.wait()


def _set_timing(timing: MoveTiming) -> None:
    vars(move_ends)["SourceMove"] = partial(SourceMove, timing=timing)
    vars(move_ends)["DestinationMove"] = partial(DestinationMove, timing=timing)


def _count(engine: Any) -> dict[str, Any]:
    """On the engine's thread: what it holds."""
    found = engine.snapshot("", 0)
    return {
        "total": found.num_total_blocks,
        "free": found.num_free_blocks,
        "running": found.num_running,
        "queued": found.num_queued,
        "held": engines.num_held(engine),
        "workers": engines.worker_pids(engine),
    }


def _report(service: Llumlet, number: int, counts: dict[str, Any]) -> None:
    serving = service.serving
    assert serving is not None
    instance_moves, fetches = serving.instance_moves, serving.fetches
    say(
        "report",
        number=number,
        welcome=serving.me.incarnation > 0,
        **counts,
        requests=sorted(serving.requests),
        moves=instance_moves.num_moves,
        states=sorted(str(move.machine.state) for move in instance_moves.outgoing.values()),
        fetches=[str(each.machine.state) for each in fetches._fetches.values()],
        copies=not fetches.quiet,
        arrived=breakpoints.num_arrived(serving.transfer),
        remembered=len(instance_moves.outgoing) + len(instance_moves.incoming),
    )


# -- frontends ----------------------------------------------------------------------------


class PlacedRouter(Router):
    """The test says where a request goes, and a replay goes to any instance."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.places: dict[str, str] = {}
        self.fetches: dict[str, dict[str, Any]] = {}
        self.dispatcher.find = self._place  # type: ignore[method-assign]  # of this one object

    async def _place(self, request: DispatchRequested) -> tuple[Dispatch, InstanceEntry]:
        request_id, frontend_id = request.request_id, request.frontend_id
        wanted = (
            e for e in self._known if request.replayed or e.instance_id == self.places[request_id]
        )
        entry = next(wanted, None)
        if entry is None:
            raise NotDispatchedError(RejectCode.UNAVAILABLE)
        asked = None if request.replayed else self.fetches.get(request_id)
        fetch = None if asked is None else self._fetch(**asked)
        to = entry.instance_id, entry.incarnation
        return Dispatch(request_id, frontend_id, *to, 0, fetch=fetch), entry

    def _fetch(self, source: str, num_tokens: int, limit_s: float) -> Fetch:
        incarnation = self._known.incarnation(source)
        assert incarnation is not None
        return Fetch(source, incarnation, num_tokens, limit_s)


class ToldBook(RequestBook):
    def happened(self, event: Any) -> None:
        say(
            "event",
            kind=event.kind,
            request_id=event.request_id,
            reason=event.reason,
            num_tokens=event.numbers.get("num_tokens"),
            exact=event.labels.get("exact"),
            outcome=event.labels.get("outcome"),
        )
        super().happened(event)


async def frontend(member_id: str, key: str, controller_address: str, **_others: Any) -> None:
    mailbox = ZmqMailbox(HOST, key=ClusterKey(key))
    member = ControllerLink(
        "frontend", member_id, mailbox, controller_address, HOST, lambda: router.num_live_reqs
    )

    def on_event(event: Any) -> None:
        say("event", kind=event.kind, request_id=event.request_id, reason=event.reason)
        member.tell(event)

    def on_outputs(emitted: OutputsEmitted, payload: Sequence[memoryview]) -> None:
        for output, num_skip in router.accept(emitted, engines.decode_outputs(payload)):
            record = book.find(output.request_id)
            assert record is not None
            say(
                "tokens",
                request_id=output.request_id,
                tokens=output.new_token_ids[num_skip:],
                finished=output.finish_reason is not None,
                instance_id=emitted.sender.instance_id,
                num_continued=record.num_continued,
            )

    def on_error(request_id: str, why: str) -> None:
        say("error", request_id=request_id, why=why)

    book = ToldBook(member_id, {0: "normal"}, on_event)
    router = PlacedRouter(
        member,
        mailbox,
        book,
        RouterEvents(
            on_failed=on_error,
            on_refused=on_error,
            on_aborted=on_error,
            on_directory=lambda entries: say(
                "directory", addresses=[entry.address for entry in entries]
            ),
            on_drain=lambda drain: None,
            on_limits=lambda limits: None,
            on_adapters=lambda told: None,
        ),
    )

    def submit(
        request_id: str,
        instance_id: str,
        prompt_of: str,
        num_prompt_tokens: int,
        and_tokens: list[int],
        max_tokens: int,
        fetch: dict[str, Any] | None,
    ) -> None:
        if fetch is not None:
            router.fetches[request_id] = fetch
        router.places[request_id] = instance_id
        prompt = engines.prompt_of(prompt_of, num_prompt_tokens) + and_tokens
        frames = engines.request_frames(request_id, prompt, max_tokens)
        request = DispatchRequested(request_id, member_id, len(prompt), 0, 0.0)
        tasks.add(asyncio.create_task(router.submit(request, frames, request_id)))

    def cancel(request_id: str) -> None:
        router.abort([request_id], RequestState.ABORTED, "its client left")

    tasks: set[asyncio.Task[None]] = set()
    router.inbox.with_payload[OutputsEmitted] = on_outputs
    router.start()
    member.report("active")
    listen({"submit": submit, "cancel": cancel})
    say("serving")
    await asyncio.Event().wait()


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "controller": controller,
    "instance": instance,
    "frontend": frontend,
}


def main() -> None:
    die_with_the_test()
    take_over_stdout()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    options = json.loads(sys.stdin.readline())
    uvloop.run(ROLES[options.pop("role")](**options))


if __name__ == "__main__":
    main()
