"""What a client sees when an instance dies under its stream, with replays and without.

An instance of a cluster under load is killed again and again. With replays the cluster goes on with
the lost requests. Without (`replay.max_replays=0`) each client gets an error at once and sends its
request again, from the beginning or with the tokens that it has at the end of the prompt. A pause
is the longest time between two tokens of a lost stream that the client did not have before.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count

import httpx
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import EnginePlan, emulated_plan, make_plan
from benchmarks.process_groups import signals_interrupt
from benchmarks.recovery_client import Client, Strategy
from benchmarks.servers import LlumctlServer, ServerError, control_of, running, until
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SetSettings, SettingsPatch
from controller.api.wire import SettingValue
from controller.api.wire.requests import RequestState
from controller.api.wire.status import ClusterState

PATIENCE_S = 120.0
ON_THEIR_WAY = 20
"""Tokens that an instance had sent when it died, at most. A client that has more has gone on."""
LIVE = (RequestState.WAITING, RequestState.RUNNING, RequestState.EVICTED)
WORDS = {
    Strategy.REPLAY: "replayed by the cluster",
    Strategy.AGAIN: "sent again",
    Strategy.APPENDED: "sent again with what came",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One lost stream. `num_had`: tokens that its client had during the pause."""

    strategy: Strategy
    kill: int
    num_prompt: int
    num_had: int
    pause_s: float
    error: str = ""
    """Why the stream ended, if it did not go on."""

    @property
    def num_again(self) -> int:
        """Tokens that were computed a second time."""
        return self.num_prompt + self.num_had

    @property
    def num_one_by_one(self) -> int:
        """Of these, those that were decoded, and not computed at once."""
        return self.num_had if self.strategy is Strategy.AGAIN else 0


class Kills:
    def __init__(
        self,
        plan: EnginePlan,
        control: ControlClient,
        http: httpx.AsyncClient,
        options: argparse.Namespace,
    ) -> None:
        self._plan, self._control, self._http = plan, control, http
        self._options = options
        self._numbers = count()

    async def measure(self, strategy: Strategy) -> list[Sample]:
        changes: dict[str, SettingValue] = {
            "replay.max_replays": 3 if strategy is Strategy.REPLAY else 0
        }
        patch = SettingsPatch(changes=changes, reason="bench-recovery")
        await asyncio.to_thread(self._control.send, SetSettings(patch))
        dice = random.Random(self._options.seed)  # the same moments for each strategy
        samples: list[Sample] = []
        for kill in range(self._options.kills):
            samples += await self._kill(strategy, kill, dice)
            print(f"  {strategy}: {kill + 1} of {self._options.kills} kills", flush=True)
        return samples

    async def _kill(self, strategy: Strategy, kill: int, dice: random.Random) -> list[Sample]:
        options = self._options
        await _until(self._is_ready, "all instances to serve")
        clients = [self._client(strategy) for _ in range(options.streams)]
        tasks = [asyncio.create_task(each.run(self._http)) for each in clients]
        try:
            after = dice.randrange(options.outputs // 8, options.outputs // 2)
            await _until(lambda: all(len(c.tokens) >= after for c in clients), "all to run")
            lost = await asyncio.to_thread(self._strike, kill, clients)
            killed_s = time.perf_counter()
            enough = {each.name: len(each.tokens) + ON_THEIR_WAY for each in lost}
            await _until(
                lambda: all(len(c.tokens) >= enough[c.name] or _has_failed(c) for c in lost),
                "the lost streams to go on",
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [_sample(strategy, kill, each, killed_s) for each in lost]

    def _strike(self, kill: int, clients: Sequence[Client]) -> list[Client]:
        """Kills an instance, each in its turn; returns those whose requests it had."""
        instances = self._control.status().instances
        victim = instances[kill % len(instances)]
        there = [each.client_id for each in self._control.requests(victim.id, LIVE).requests]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        return [each for each in clients if any(each.name in name for name in there)]

    def _client(self, strategy: Strategy) -> Client:
        number = next(self._numbers)
        prompt = self._plan.prompt(number, self._options.prompt)
        name, model = f"recovery-{number}-", self._plan.served_model_name
        return Client(name, model, prompt, self._options.outputs, strategy)

    def _is_ready(self) -> bool:
        return self._control.status().state is ClusterState.READY


def _has_failed(client: Client) -> bool:
    return client.strategy is Strategy.REPLAY and bool(client.error)


def _sample(strategy: Strategy, kill: int, client: Client, killed_s: float) -> Sample:
    if _has_failed(client):
        had = len(client.tokens)
        return Sample(strategy, kill, len(client.prompt), had, float("inf"), client.error)
    pause_s, num_had = client.longest_pause(killed_s)
    return Sample(strategy, kill, len(client.prompt), num_had, pause_s)


async def _until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(until, condition, what, PATIENCE_S)


async def measure(
    plan: EnginePlan,
    control: ControlClient,
    options: argparse.Namespace,
    samples: list[Sample],
) -> None:
    """Adds to `samples`, strategy by strategy."""
    url = f"http://127.0.0.1:{plan.port}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=PATIENCE_S, limits=limits, trust_env=False
    ) as http:
        kills = Kills(plan, control, http, options)
        for strategy in Strategy:
            samples += await kills.measure(strategy)


def main() -> int:
    options = _options()
    console = results.make_console()
    emulated = options.engine == "emulated"
    num_instances = options.instances or (4 if emulated else 2)
    plan = emulated_plan(num_instances) if emulated else make_plan(num_instances)
    # No request leaves its instance but by the instance's death.
    cluster = LlumctlServer(plan, settings={"migration.enabled": False}, emulated=emulated)
    samples: list[Sample] = []
    code = 0
    try:
        with (
            signals_interrupt(),
            running(cluster),
            control_of(plan.cluster, PATIENCE_S) as control,
        ):
            asyncio.run(measure(plan, control, options, samples))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    except (TimeoutError, LlumctlError, httpx.HTTPError) as error:
        console.print(f"[red]cut short: {error}[/red]")
        code = 1
    console.print(_table(samples))
    figures = {"options": vars(options), "samples": [asdict(each) for each in samples]}
    console.print(f"written to {results.write('recovery', figures)}")
    return code or int(any(each.error for each in samples))


def _table(samples: Sequence[Sample]) -> Table:
    title = "streams that were lost with their instance: medians"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("strategy")
    for column in (
        *("kills", "streams", "ended", "pause, s", "max"),
        *("tokens again", "max", "one by one"),
    ):
        table.add_column(column, justify="right")
    for strategy in Strategy:
        found = [each for each in samples if each.strategy is strategy]
        if not found:
            continue
        pauses_s = [each.pause_s for each in found]
        again = [each.num_again for each in found]
        table.add_row(
            WORDS[strategy],
            str(len({each.kill for each in found})),
            str(len(found)),
            str(sum(bool(each.error) for each in found)),
            f"{statistics.median(pauses_s):.2f}",
            f"{max(pauses_s):.2f}",
            f"{statistics.median(again):.0f}",
            str(max(again)),
            f"{statistics.median(each.num_one_by_one for each in found):.0f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=("emulated", "vllm"), default="emulated")
    parser.add_argument("--instances", type=int, default=0, help="4 emulated, 2 vllm")
    parser.add_argument("--kills", type=int, default=10, help="for each strategy")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--outputs", type=int, default=400, help="tokens")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
