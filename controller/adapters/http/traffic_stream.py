"""The stream of a recording of the traffic, as lines of JSON."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from controller.adapters.http.errors import ApiError
from controller.adapters.http.operator_log import OperatorLog
from controller.api.wire import traffic as wire
from controller.api.wire.models import RequestState
from controller.runtime.controller.traffic import Batch, Traffic, TrafficRecording
from controller.runtime.messages.requests import TrafficAsked

LINE_EVERY_S = 1.0
# Requests that end close together are sent together.
GATHER_S = 0.05


def wanted_traffic(body: bytes) -> TrafficAsked:
    """Raises ValidationError."""
    wanted = wire.TrafficRequest.model_validate_json(body)
    return TrafficAsked(bytes.fromhex(wanted.key), wanted.prefix_hash_tokens)


def refuse_a_second(traffic: Traffic, asked: TrafficAsked) -> None:
    """Raises ApiError if another recording is on."""
    if not traffic.takes(asked):
        raise ApiError(
            409,
            "recorded_already",
            "the traffic of this cluster is being recorded already, and there is one recording at"
            " a time",
            "llumctl events --kind operator",
        )


class TrafficStream(StreamingResponse):
    """Begins the recording, and ends it whether or not its first line was ever asked for; the
    operators' log has both. Raises ApiError if another recording is on."""

    def __init__(self, traffic: Traffic, asked: TrafficAsked, log: OperatorLog) -> None:
        refuse_a_second(traffic, asked)
        self._traffic = traffic
        self._log = log
        self._recording = traffic.begin(asked)
        super().__init__(_lines(self._recording), media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            deed = ("record the traffic", "the cluster")
            async with self._log.operation(scope, deed, lasts=True):
                await super().__call__(scope, receive, send)
        finally:
            self._traffic.end(self._recording)


async def _lines(recording: TrafficRecording) -> AsyncIterator[bytes]:
    while not recording.replaced:
        yield _line(recording.take())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(recording.news.wait(), LINE_EVERY_S)
        await asyncio.sleep(GATHER_S)


def _line(batch: Batch) -> bytes:
    line = wire.TrafficBatch(
        time_s=time.time(),
        requests=tuple(
            wire.RequestTraffic(
                arrival_time_s=each.arrival_time_s,
                num_prompt_tokens=each.num_prompt_tokens,
                num_output_tokens=each.num_output_tokens,
                rank=each.rank,
                outcome=RequestState(each.outcome),
                session=each.session,
                prefix_hashes=each.prefix_hashes.hex(),
            )
            for each in batch.requests
        ),
        num_lost=batch.num_lost,
        num_live=batch.num_live,
    )
    return line.model_dump_json().encode() + b"\n"
