"""Costly grammars beside one stream: the answer to each, and its cost for other requests.

For each grammar the table has the answer, how long it took, the longest gap between two tokens of a
stream that runs all the time, and the memory of the engine and the frontend a few seconds later. At
the end stands how much the engine computes without a request.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import httpx
import psutil
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import make_plan
from benchmarks.process_groups import CpuMeter
from benchmarks.servers import LlumctlServer, ServerError, running
from benchmarks.token_stream import TokenStream
from controller.api.interrupts import stops_interrupt

# The lengths of a stream that has to outlive an attack, and of what the engine may need after one.
NUM_TOKENS = 3000
SETTLE_S = 3.0
PATIENCE_S = 60.0
IDLE_S = 5.0


class Attack(NamedTuple):
    name: str
    fields: dict[str, Any]
    leaves_after_s: float = PATIENCE_S
    num_clients: int = 1


def schema(**found: Any) -> dict[str, Any]:
    form = {"name": "x", "schema": found}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def patterns(*found: str) -> dict[str, Any]:
    each = {f"p{i}": {"type": "string", "pattern": pattern} for i, pattern in enumerate(found)}
    return schema(type="object", properties=each, required=list(each), additionalProperties=False)


def pattern_properties(count: int) -> dict[str, Any]:
    each = {f"^p{i}[a-z]+$": {"type": "string"} for i in range(count)}
    return schema(type="object", patternProperties=each)


def long_words(count: int, num_chars: int, seed: int = 0) -> dict[str, Any]:
    return schema(enum=[f"{seed}-{i}" + "ab" * (num_chars // 2) for i in range(count)])


def attacks() -> Iterator[Attack]:
    yield Attack("a pattern that counts to 10,000", patterns("[a-z]{1,10000}"))
    yield Attack("two that count to 4,000", patterns("[a-z]{1,4000}", "[a-z]{1,4000}"))
    yield Attack("300 of {1,300}{1,300}", patterns(*["[a-z]{1,300}[0-9]{1,300}"] * 300))
    yield Attack("a count of 450", patterns("[a-z]{1,450}"))
    yield Attack("100 patternProperties", pattern_properties(100))
    yield Attack("500 patternProperties", pattern_properties(500))
    yield Attack("an enum of 40 strings of 50 kB, left", long_words(40, 50_000), 3.0)
    for seed in range(4):
        yield Attack("enums of 40 strings of 50 kB, left", long_words(40, 50_000, seed), 3.0, 2)
    yield Attack("minLength 500", schema(type="string", minLength=500))
    yield Attack("maxLength 100,000", schema(type="string", maxLength=100_000))
    rule = 'root ::= [a-z]{1,10000} "x" [a-z]{1,10000}'
    yield Attack("a rule that counts", {"structured_outputs": {"grammar": rule}})
    nested = "root ::= " + "(" * 6 + "[a-z]" + "{9,10})" * 6
    yield Attack("nested counts in a rule", {"structured_outputs": {"grammar": nested}})
    tag: dict[str, Any] = {"type": "structural_tag", "structures": [], "triggers": []}
    tag["structures"] = [
        {"begin": "<a>", "schema": {"type": "string", "pattern": "[a-z]{1,4000}"}, "end": "</a>"}
    ]
    tag["triggers"] = ["<a>"]
    yield Attack("a pattern in a structural tag", {"response_format": tag})


def main() -> int:
    options = _options()
    console = results.make_console()
    plan = make_plan(1)
    plan = replace(plan, num_engines=1)
    server = LlumctlServer(plan)
    try:
        with stops_interrupt(), running(server):
            rows, idle = asyncio.run(_measure(server, options.only))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    console.print(_table(rows))
    console.print(f"cores while no request runs, after all that: {json.dumps(idle)}")
    console.print(f"written to {results.write('grammars', {'attacks': rows, 'idle': idle})}")
    return 0


async def _measure(
    server: LlumctlServer, only: str
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    rows = []
    parts = server.parts()
    async with httpx.AsyncClient(
        base_url=server.base_url, timeout=PATIENCE_S, trust_env=False
    ) as client:
        for attack in attacks():
            if only in attack.name:
                rows.append(await _attack(client, server, parts, attack))
                print(json.dumps(rows[-1]), flush=True)
    meter = CpuMeter(parts)
    await asyncio.sleep(IDLE_S)
    return rows, {part: round(s / IDLE_S, 3) for part, s in meter.used().parts_s.items()}


async def _attack(
    client: httpx.AsyncClient, server: LlumctlServer, parts: dict[int, str], attack: Attack
) -> dict[str, Any]:
    stream = TokenStream(client, server.plan.served_model_name, [1, 2, 3], NUM_TOKENS)
    await stream.wait_tokens(20)
    from_token, begun_s = len(stream.event_times_s), time.perf_counter()
    answers = await asyncio.gather(
        *(_ask(client, server, attack) for _ in range(attack.num_clients))
    )
    took_s = time.perf_counter() - begun_s
    await asyncio.sleep(0.5)
    times = list(stream.event_times_s[from_token - 1 :])
    gaps = [b - a for a, b in itertools.pairwise(times)]
    if not stream.ended:  # it may still be waiting
        gaps.append(time.perf_counter() - times[-1])
    await stream.stop()
    await asyncio.sleep(SETTLE_S)
    return {
        "name": attack.name,
        "answer": answers[0],
        "took_s": round(took_s, 2),
        "longest_gap_s": round(max(gaps, default=0.0), 3),
        **_memory_mb(parts),
    }


async def _ask(client: httpx.AsyncClient, server: LlumctlServer, attack: Attack) -> str:
    body = {"model": server.plan.served_model_name, "max_tokens": 8}
    body |= {"messages": [{"role": "user", "content": "x"}]} | attack.fields
    try:
        answer = await client.post("/v1/chat/completions", json=body, timeout=attack.leaves_after_s)
    except httpx.TimeoutException:
        return "left"
    if answer.status_code == httpx.codes.OK:
        return "200"
    return f"{answer.status_code} {answer.json()['error']['message'][:60]}"


def _memory_mb(parts: dict[int, str]) -> dict[str, int]:
    return {
        f"{part}_mb": round(psutil.Process(pid).memory_info().rss / 1e6)
        for pid, part in parts.items()
        if part in ("engine", "frontend")
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="costly grammars beside one stream", box=box.SIMPLE)
    for column in ("grammar", "answer", "after", "longest gap", "engine MB", "frontend MB"):
        table.add_column(column, justify="left" if column in ("grammar", "answer") else "right")
    for row in rows:
        table.add_row(
            row["name"],
            row["answer"],
            f"{row['took_s']:.2f} s",
            f"{row['longest_gap_s']:.3f} s",
            str(row.get("engine_mb", "-")),
            str(row.get("frontend_mb", "-")),
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="those whose name contains this")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
