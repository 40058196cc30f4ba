"""What clients see while all engines get new arguments, and while one engine is removed.

Three engines run 16 long streams; each client sends its next request when one ends. First the
engines get another argument, one after the other, then one of them is removed. Four ways are
compared: llumctl, which empties an instance by moving its requests; llumctl without moves, which
waits until they end; and vLLM's own servers behind vllm-router, which are ended by SIGTERM as an
init system does, with 120 s for their streams to end (`--shutdown-timeout`) and with vLLM's default
of 0 s.

A stream is cut if its answer ends with an error or too early. The tokens that its client had by
then are lost, as they have to be computed again. A gap is the time between two tokens of one
stream, or from its sending to its first token.
"""

import argparse
import asyncio
import itertools
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop
from pydantic import JsonValue
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import EnginePlan, emulated_plan, make_plan
from benchmarks.servers import (
    LlumctlServer,
    RoutedVllmServers,
    Server,
    ServerError,
    control_of,
    running,
    until,
)
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.interrupts import stops_interrupt
from controller.api.operations.on_cluster import Rolling, RollingRequest, Scale, ScaleRequest
from llumctl.lab.bench_client import Answer, Endpoint, ExchangeError, Pool

PATIENCE_S = 1200.0
POLL_S = 0.05
GRACE_S = 30.0
"""A vLLM server is killed so long after its own time limit: Kubernetes' default."""
NUM_ENGINES = 3
NUM_PROMPT_TOKENS = 128
WAY_WORDS = {
    "moving": "llumctl, by moving",
    "waiting": "llumctl, waiting for the streams",
    "router-120": "vllm-router, --shutdown-timeout 120",
    "router-0": "vllm-router, vLLM's default of 0 s",
}


@dataclass(slots=True)
class Streams:
    """Closed-loop clients, on a thread of their own."""

    base_url: str
    plan: EnginePlan
    num_streams: int
    num_output_tokens: int
    num_whole: int = 0
    num_cut: int = 0
    num_tokens_lost: int = 0
    longest_gap_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    _live: list[Answer] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), daemon=True)
        self._thread.start()

    def wait_until_all_flow(self) -> None:
        """Raises TimeoutError."""
        until(
            lambda: sum(bool(a.token_times_s) for a in list(self._live)) >= self.num_streams,
            "all streams to flow",
            PATIENCE_S,
        )

    def stop(self) -> None:
        """Streams that still run count only for the gaps."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    async def _run(self) -> None:
        pool = Pool(Endpoint(self.base_url))
        clients = [
            asyncio.create_task(self._client(pool, number)) for number in range(self.num_streams)
        ]
        while not self._over.is_set():
            await asyncio.sleep(POLL_S)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        pool.close()

    async def _client(self, pool: Pool, number: int) -> None:
        for turn in itertools.count():
            # The first streams end at different times, as they would at any moment.
            share = (number + 1) / self.num_streams if turn == 0 else 1.0
            await self._stream(pool, number, turn, max(2, round(share * self.num_output_tokens)))

    async def _stream(self, pool: Pool, number: int, turn: int, num_tokens: int) -> None:
        answer, sent_s = Answer(), time.perf_counter()
        self._live.append(answer)
        try:
            await pool.exchange(self._request(number, turn, num_tokens), answer, PATIENCE_S)
            why = _fault(answer, num_tokens)
        except ExchangeError as error:
            why = error.kind
        finally:
            self._live.remove(answer)
            times_s = [sent_s, *answer.token_times_s]
            gaps_s = (later - before for before, later in itertools.pairwise(times_s))
            self.longest_gap_s = max(self.longest_gap_s, *gaps_s, 0.0)
        if not why:
            self.num_whole += 1
            return
        self.num_cut += 1
        self.num_tokens_lost += len(answer.token_times_s)
        self.errors[why] = self.errors.get(why, 0) + 1
        await asyncio.sleep(1.0)  # as a refused client waits

    def _request(self, number: int, turn: int, num_tokens: int) -> bytes:
        body = {
            "model": self.plan.served_model_name,
            "prompt": self.plan.prompt(1_000 * turn + number, NUM_PROMPT_TOKENS),
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return Endpoint(self.base_url).encode("completions", body)


def _fault(answer: Answer, num_tokens: int) -> str:
    """Why the answer is incomplete; empty if it is complete."""
    if answer.status != 200:
        return f"status {answer.status}"
    if answer.errors:
        return f"error {answer.errors[0][0]} in the stream"
    if answer.num_output_tokens != num_tokens:
        return "ended early"
    return ""


@dataclass(slots=True)
class Figures:
    """Times in seconds from the beginning of each change."""

    way: str
    first_free_s: float = 0.0
    """The time until the first engine had no requests and could be replaced."""
    all_upgraded_s: float = 0.0
    scaled_away_s: float = 0.0
    num_whole: int = 0
    num_cut: int = 0
    num_tokens_lost: int = 0
    longest_gap_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)


class Way(ABC):
    """A way in which engines are upgraded and removed."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @abstractmethod
    def upgrade(self) -> float:
        """Gives each engine other arguments; returns when the first one was free."""

    @abstractmethod
    def scale_away(self) -> None:
        """Removes the first engine, which has served the longest since the upgrade."""


class Ours(Way):
    def __init__(self, plan: EnginePlan, moves: bool, engine_args: dict[str, JsonValue]) -> None:
        settings = {} if moves else {"migration.max_moves": 0}
        emulated = "model" not in plan.engine_args
        super().__init__(LlumctlServer(plan, settings=settings, emulated=emulated))
        self._engine_args = engine_args

    def upgrade(self) -> float:
        free_s: list[float] = []
        with self._control() as control:
            control.send(Rolling(RollingRequest(engine_args=self._engine_args)))

            def is_over() -> bool:
                rolling = control.rolling()
                if not free_s and (
                    rolling.done or any(t.num_requests_left == 0 for t in rolling.under_way)
                ):
                    free_s.append(time.perf_counter())
                return rolling.state != "going"

            until(is_over, "the rolling restart to end", PATIENCE_S)
            if (rolling := control.rolling()).state != "done":
                raise TimeoutError(f"the rolling restart is {rolling.state}: {rolling.why}")
        return free_s[0]

    def scale_away(self) -> None:
        with self._control() as control:
            control.send(Scale(ScaleRequest(target=NUM_ENGINES - 1, draining=("i-0",))))
            until(
                lambda: len(control.status().instances) == NUM_ENGINES - 1,
                "an instance to leave",
                PATIENCE_S,
            )

    def _control(self) -> ControlClient:
        return control_of(self.server.plan.cluster, PATIENCE_S)


class Routed(Way):
    def __init__(self, plan: EnginePlan, router: Path, shutdown_timeout_s: int) -> None:
        self._timeout = ("--shutdown-timeout", str(shutdown_timeout_s))
        self._grace_s = shutdown_timeout_s + GRACE_S
        self._servers = RoutedVllmServers(plan, router, "cache_aware", self._timeout)
        super().__init__(self._servers)

    def upgrade(self) -> float:
        free_s = 0.0
        for server in self._servers.servers:
            server.terminate(self._grace_s)
            free_s = free_s or time.perf_counter()
            server.arguments = (*self._timeout, "--max-num-seqs", "200")
            server.start()
            server.wait_ready()
        return free_s

    def scale_away(self) -> None:
        self._servers.servers[0].terminate(self._grace_s)


def measure(name: str, way: Way, options: argparse.Namespace) -> Figures:
    figures = Figures(name)
    with running(way.server):
        server = way.server
        streams = Streams(server.base_url, server.plan, options.streams, options.outputs)
        streams.start()
        try:
            streams.wait_until_all_flow()
            begun_s = time.perf_counter()
            figures.first_free_s = way.upgrade() - begun_s
            figures.all_upgraded_s = time.perf_counter() - begun_s
            streams.wait_until_all_flow()
            begun_s = time.perf_counter()
            way.scale_away()
            figures.scaled_away_s = time.perf_counter() - begun_s
        finally:
            streams.stop()
            figures.num_whole, figures.num_cut = streams.num_whole, streams.num_cut
            figures.num_tokens_lost = streams.num_tokens_lost
            figures.longest_gap_s = streams.longest_gap_s
            figures.errors = streams.errors
    return figures


def _way(name: str, options: argparse.Namespace) -> Way:
    if options.engine == "emulated":
        return Ours(emulated_plan(NUM_ENGINES), name == "moving", {"num_blocks": 900})
    plan = make_plan(NUM_ENGINES)
    if name.startswith("router"):
        return Routed(plan, options.router, int(name.partition("-")[2]))
    return Ours(plan, name == "moving", {"max_num_seqs": 200})


def main() -> int:
    options = _options()
    console = results.make_console()
    names = [name for name in WAY_WORDS if _can_run(name, options)]
    done: list[Figures] = []
    code = 0
    try:
        with stops_interrupt():
            for name in names:
                try:
                    done.append(measure(name, _way(name, options), options))
                except (ServerError, TimeoutError, LlumctlError) as error:
                    console.print(f"[red]{WAY_WORDS[name]}: {error}[/red]")
                    code = 1
                else:
                    console.print(asdict(done[-1]))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    console.print(_table(done, options))
    figures = {"options": {k: str(v) for k, v in vars(options).items()}}
    path = results.write("upgrade", figures | {"ways": [asdict(each) for each in done]})
    console.print(f"written to {path}")
    return code


def _can_run(name: str, options: argparse.Namespace) -> bool:
    if options.ways and name not in options.ways:
        return False
    return not name.startswith("router") or (options.engine == "vllm" and options.router)


def _table(done: list[Figures], options: argparse.Namespace) -> Table:
    title = (
        f"{NUM_ENGINES} {options.engine} engines, {options.streams} streams of"
        f" {options.outputs} tokens"
    )
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("way")
    for column in (
        *("first free, s", "all upgraded, s", "scaled away, s"),
        *("streams cut", "whole", "tokens lost", "longest gap, s"),
    ):
        table.add_column(column, justify="right")
    for each in done:
        table.add_row(
            WAY_WORDS[each.way],
            f"{each.first_free_s:.1f}",
            f"{each.all_upgraded_s:.1f}",
            f"{each.scaled_away_s:.1f}",
            str(each.num_cut),
            str(each.num_whole),
            str(each.num_tokens_lost),
            f"{each.longest_gap_s:.1f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.upgrade",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=("emulated", "vllm"), default="vllm")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--outputs", type=int, default=2000, help="tokens of a stream")
    parser.add_argument("--router", type=Path, help="the command vllm-router, to compare with it")
    parser.add_argument("--ways", nargs="*", choices=WAY_WORDS, help="default: all")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
