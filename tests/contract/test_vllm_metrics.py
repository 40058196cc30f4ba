"""vLLM's own `/metrics` route shows what a frontend measures, in both of its modes. The tests run
in separate processes: prometheus_client has one registry and one mode per process.
"""

import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

FRONTEND = """
import asyncio, sys
from pathlib import Path
from controller.adapters.vllm.process_setup import share_metrics

if sys.argv[1:]:
    share_metrics(Path(sys.argv[1]))

import httpx
from fastapi import FastAPI
from prometheus_client import Counter
from vllm.entrypoints.serve.instrumentator.metrics import attach_router
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from controller.adapters.prometheus import RequestMetrics

metrics = RequestMetrics(("normal", "high"))
unregister_vllm_metrics()  # as vLLM's logger does before it registers its own
Counter("vllm:prompt_tokens", "As vLLM counts them.").inc(40)
app = FastAPI()
attach_router(app)
metrics.first_token("high", 0.5)


async def page():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://frontend") as client:
        await client.get("/nothing")
        answer = await client.get("/metrics")
        assert answer.status_code == 200, answer
        return answer.text


print(asyncio.run(page()))
"""


def values(*arguments: str) -> dict[str, float]:
    """Sums over labels, by sample name, of a frontend's page. Each family is there once."""
    done = subprocess.run(
        [sys.executable, "-c", FRONTEND, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = {}
    families: list[str] = []
    for family in text_string_to_metric_families(done.stdout):
        families.append(family.name)
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    assert len(families) == len(set(families))
    return found


TTFT = "llumctl_request_ttft_seconds"


def test_one_frontend() -> None:
    alone = values()
    assert alone[f"{TTFT}_count"] == 1
    assert alone[f"{TTFT}_sum"] == 0.5
    assert alone["http_requests_total"] > 0
    assert alone["vllm:prompt_tokens_total"] == 40


def test_frontends_on_one_port_answer_for_all(tmp_path: Path) -> None:
    first, second = (values(str(tmp_path / "metrics")) for _ in range(2))
    assert (first[f"{TTFT}_count"], second[f"{TTFT}_count"]) == (1, 2)
    assert second["vllm:prompt_tokens_total"] == 80
    assert (tmp_path / "metrics").stat().st_mode & 0o077 == 0
