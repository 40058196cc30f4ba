"""One stream beside long prompts: how long it waits for its tokens, and how long the prompts take.

A prompt of 7,000 tokens comes every two seconds, and no two begin alike. Each server has one
engine. llumctl runs without a limit of its steps, with the default one, and with one of 20 ms;
vLLM's own server runs with several budgets of tokens for a step, of which 2,048 is its own choice.
The servers take turns, several rounds.
"""

import argparse
import asyncio
import itertools
import time
from dataclasses import asdict, dataclass, replace
from statistics import mean, median, quantiles
from typing import Any

import httpx
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import EnginePlan, free_port, make_plan
from benchmarks.servers import LlumctlServer, Server, ServerError, VllmServer, running
from benchmarks.token_stream import TokenStream
from controller.api.interrupts import stops_interrupt

PROMPT_TOKENS = 7000
EVERY_S = 2.0
STREAM_TOKENS = 8000
STEP_TIMES_S = {"no limit": 1000.0, "default": 0.0, "20 ms": 0.02}
STEP_TOKENS = (128, 256, 512, 2048)
WARM_UP_PROMPTS = 2
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one server in one round: the gaps between the stream's tokens, the mean time between two
    of them, and the times to the first tokens of the prompts."""

    longest_gap_ms: float
    p99_gap_ms: float
    mean_gap_ms: float
    ttft_ms: float


def main() -> int:
    options = _options()
    console = results.make_console()
    plan = make_plan(1)
    found: dict[str, list[Seen]] = {}
    try:
        with stops_interrupt():
            for index in range(options.rounds):
                for name, server in _servers(plan):
                    with running(server):
                        seen = asyncio.run(_measure(server, options.prompts, index))
                    found.setdefault(name, []).append(seen)
                    console.print(f"round {index + 1}, {name}: {seen}")
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    console.print(_table(found))
    rows = {name: [asdict(each) for each in seen] for name, seen in found.items()}
    console.print(f"written to {results.write('long-prompts', {'servers': rows})}")
    return 0


def _servers(plan: EnginePlan) -> list[tuple[str, Server]]:
    """New ones, on ports of their own."""
    ours: list[tuple[str, Server]] = []
    for number, (name, step_time_s) in enumerate(STEP_TIMES_S.items()):
        own = replace(
            plan,
            cluster=f"{plan.cluster}-{number}",
            port=free_port(),
            control_port=free_port(),
        )
        settings = {"scheduler.step_time_s": step_time_s}
        ours.append((f"llumctl, {name}", LlumctlServer(own, settings=settings)))
    return ours + [
        (
            f"vLLM, {number} tokens a step",
            VllmServer(plan, "vllm", ("--max-num-batched-tokens", str(number))),
        )
        for number in STEP_TOKENS
    ]


async def _measure(server: Server, num_prompts: int, index: int) -> Seen:
    model = server.plan.served_model_name
    async with httpx.AsyncClient(
        base_url=server.base_url, timeout=PATIENCE_S, trust_env=False
    ) as client:

        async def asked(number: int) -> float:
            body = {
                "model": model,
                "prompt": server.plan.prompt(1000 * index + number, PROMPT_TOKENS),
                "max_tokens": 1,
            }
            begun_s = time.perf_counter()
            (await client.post("/v1/completions", json=body)).raise_for_status()
            return 1000 * (time.perf_counter() - begun_s)

        stream = TokenStream(client, model, [1, 2, 3], STREAM_TOKENS)
        await stream.wait_tokens(20)
        for number in range(WARM_UP_PROMPTS):
            await asked(number)
        from_token = len(stream.event_times_s)
        asking = []
        for number in range(num_prompts):
            asking.append(asyncio.create_task(asked(WARM_UP_PROMPTS + number)))
            await asyncio.sleep(EVERY_S)
        ttfts_ms = await asyncio.gather(*asking)
        times_s = list(stream.event_times_s[from_token - 1 :])
        if stream.ended:
            raise ServerError(f"{server.name}: the stream ended too early")
        await stream.stop()
    gaps_ms = [1000 * (after - before) for before, after in itertools.pairwise(times_s)]
    return Seen(max(gaps_ms), quantiles(gaps_ms, n=100)[-1], mean(gaps_ms), mean(ttfts_ms))


def _table(found: dict[str, list[Seen]]) -> Table:
    table = Table(title="one stream beside long prompts, medians of the rounds", box=box.SIMPLE)
    for column in ("server", "longest gap", "P99 gap", "mean gap", "prompts' TTFT"):
        table.add_column(column, justify="left" if column == "server" else "right")
    for name, seen in found.items():
        values: list[dict[str, Any]] = [asdict(each) for each in seen]
        table.add_row(name, *(f"{median(v[key] for v in values):.1f} ms" for key in values[0]))
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=10, help="in each round, one every 2 s")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
