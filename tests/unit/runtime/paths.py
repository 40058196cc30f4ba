"""Counts our own functions on three paths through a cluster, and the files that hold them.

`make paths` runs a controller, a frontend and two llumlets with emulated engines in this process,
on the network of the unit tests. It traces all threads until a request has its first token, while a
request is moved by hand, and while an instance with a request is drained. Work that repeats by the
clock (greetings, rounds, statuses) is silent during the first two; a drain needs that work, so it
counts there. vLLM's app is left out: a path begins and ends where its engine client would be.
`ARGS=--list` names the functions.
"""

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from controller.adapters.emulated.emulated_engine import EmulatedEngine
from controller.adapters.emulated.emulated_kv import EmulatedKvTransfer
from controller.adapters.http.live_settings import LiveSettings
from controller.adapters.http.perform import Operated, Operation
from controller.adapters.http.request_orders import MigrateHandler
from controller.adapters.vllm_wire import Outputs
from controller.api.operations.on_requests import Migrate, MigrateRequest
from controller.api.settings.settings import Settings
from controller.core.emptying.claims import Drain
from controller.core.emptying.drains import DrainState
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.migration import rank_changes, routes
from controller.core.scheduler_events import DispatchRequested
from controller.core.settings import ReschedulingConfig
from controller.model.profile import ModelConfig
from controller.runtime import controller_link
from controller.runtime.controller import cluster as process
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.instance import engine_thread
from controller.runtime.instance.llumlet import Llumlet
from controller.runtime.messages.requests import OutputsEmitted
from tests.unit.emulated.emulated_builders import PROFILE, frames
from tests.unit.runtime.fake_engine import FakeAdapterFiles
from tests.unit.runtime.fakes import FakeLauncher, FakeNetwork, until
from tests.unit.runtime.members import CONTROLLER, Frontend

OURS = str(Path(__file__).parents[3] / "controller") + "/"
OFTEN_S, NEVER_S = 0.02, 3600.0
# By then, work that was due once more when the clock was silenced is over.
SILENT_AFTER_S = 0.3
INSTANCES = ["i-0", "i-1"]


class Trace:
    """The functions of ours that any thread enters while it is `on`, each with its file."""

    def __init__(self) -> None:
        self.on = False
        self.entered: set[tuple[str, str]] = set()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not self.on or event != "call" or not code.co_filename.startswith(OURS):
            return
        if code.co_name == "<lambda>" or not code.co_name.startswith("<"):
            self.entered.add((code.co_filename.removeprefix(OURS), code.co_qualname))

    def __enter__(self) -> None:
        self.entered.clear()
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


class TokenFrontend(Frontend):
    """Its requests and outputs have vLLM's wire format."""

    def on_outputs(self, emitted: OutputsEmitted, payload: Sequence[memoryview]) -> None:
        outputs = msgspec.msgpack.decode(payload[0], type=Outputs).outputs
        for output, num_skip in self.router.accept(emitted, outputs):
            self.tokens[output.request_id] += output.new_token_ids[num_skip:]

    async def first_token(self, request_id: str) -> None:
        self.tokens[request_id] = []
        prompt = list(range(300, 364))
        payload = frames(request_id, prompt, max_tokens=900)
        request = DispatchRequested(request_id, "f-0", len(prompt), 0, time.time())
        await self.router.submit(request, payload, request_id)
        await until(lambda: self.tokens[request_id])


class Cluster:
    def __init__(self) -> None:
        _set_clock(OFTEN_S)
        network = FakeNetwork()
        self.controller = process.ControllerProcess(
            network.mailbox(CONTROLLER),
            FakeLauncher(),
            LiveConfig(rescheduling=ReschedulingConfig(interval_s=OFTEN_S)),
            SpecKeeper(ClusterSpec.first(len(INSTANCES))),
        )
        self.controller.start(num_frontends=1)
        self.frontend = TokenFrontend(network)
        self._tasks = [asyncio.create_task(self.controller.run())]
        for instance_id in INSTANCES:
            mailbox = network.mailbox(f"mem://{instance_id}")
            joins = controller_link.ControllerLink(
                "instance", instance_id, mailbox, CONTROLLER, "n", num_live_reqs=lambda: 0
            )
            build = partial(EmulatedEngine, PROFILE, ModelConfig.of(PROFILE), 1.0)
            llumlet = Llumlet(
                joins, mailbox, build, OFTEN_S, EmulatedKvTransfer(PROFILE, 1.0), FakeAdapterFiles()
            )
            self._tasks.append(asyncio.create_task(llumlet.run()))

    async def serve(self) -> None:
        await until(lambda: self.frontend.known == INSTANCES)

    async def fall_silent(self) -> None:
        _set_clock(NEVER_S)
        rounds = ReschedulingConfig(enabled=False, interval_s=NEVER_S)
        live = self.controller.live
        scheduler = replace(live.scheduler, status_interval_s=NEVER_S)
        silent = replace(live, rescheduling=rounds, scheduler=scheduler)
        self.controller.configure(silent)
        await asyncio.sleep(SILENT_AFTER_S)

    async def move(self, request_id: str) -> None:
        operated = Operated(self.controller, LiveSettings(self.controller, Settings()))
        move = MigrateHandler(operated, Migrate(request_id, MigrateRequest()))
        await move.look()
        await move.carry_out(Operation("op-1", "somebody"))
        report = await move.report()
        assert report.outcome == "migrated", report

    async def drain(self, request_id: str) -> None:
        route = self.frontend.router.routes.machine.live.get(request_id)
        assert route is not None
        instance_id = route.ownership.owner.instance_id
        self.controller.drains.begin({instance_id: Drain("d-1", time.time())})
        progress = self.controller.drains.progress
        await until(lambda: progress(instance_id).state is DrainState.DRAINED)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.frontend.router.close()


async def _repeat_until_silent(
    every_s: float,
    _name: str,
    turn: Callable[[], Awaitable[None] | None],
    _needed: asyncio.Event | None = None,
) -> None:
    """As `runtime.repeating.repeat`, which waits for as long as it was told first."""
    while controller_link.HELLO_INTERVAL_S != NEVER_S:
        await asyncio.sleep(every_s)
        if (pending := turn()) is not None:
            await pending
    await asyncio.sleep(NEVER_S)


def _set_clock(interval_s: float) -> None:
    vars(controller_link)["repeat"] = _repeat_until_silent
    controller_link.HELLO_INTERVAL_S = engine_thread.HEARTBEAT_S = process.TICK_S = interval_s
    rank_changes.TELL_EVERY_S = routes.MISSING_S = interval_s


async def trace_paths(trace: Trace) -> dict[str, set[tuple[str, str]]]:
    paths = {}
    cluster = Cluster()
    await cluster.serve()
    await cluster.fall_silent()
    with trace:
        await cluster.frontend.first_token("r-1")
    paths["a request to its first token"] = set(trace.entered)
    with trace:
        await cluster.move("r-1")
    paths["a move"] = set(trace.entered)
    await cluster.end()
    cluster = Cluster()
    await cluster.serve()
    await cluster.frontend.first_token("r-2")
    with trace:
        await cluster.drain("r-2")
    paths["a drain"] = set(trace.entered)
    await cluster.end()
    return paths


def _counted(entered: set[tuple[str, str]]) -> str:
    return f"{len(entered)} functions in {len({file for file, _ in entered})} files"


def main() -> None:
    parser = argparse.ArgumentParser(description="Functions and files on the paths of a cluster.")
    parser.add_argument("--list", action="store_true", help="name the functions")
    listed = parser.parse_args().list
    for name, entered in asyncio.run(trace_paths(Trace())).items():
        of_runtime = {each for each in entered if each[0].startswith("runtime/")}
        lines = [f"{name}: {_counted(entered)}, of them {_counted(of_runtime)} of the runtime"]
        if listed:
            lines += [f"  {file}: {function}" for file, function in sorted(entered)]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
