"""An Engine whose requests run on a server that somebody else started. Each request is one HTTP
call with the ids of its tokens, and the ids that are streamed back are its outputs.

If only one stream breaks and the server answers, that request alone is sent again, with its outputs
as a part of its prompt."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from controller.adapters import vllm_wire as wire
from controller.adapters.attached.attached_moves import UNABLE
from controller.adapters.attached.server_engine import (
    BUSY,
    MAX_BROKEN,
    Calls,
    Came,
    ServerEngine,
    ServerGoneError,
    ServerRequest,
)
from controller.adapters.attached.servers import (
    DIALECTS,
    Event,
    Generation,
    ServerError,
    error_in,
    headers,
)
from controller.core.fleet.attached import SERVER_REFUSED, AttachedServer, why_not_carried
from controller.ports.engine import EmittedTokens, Frames


@dataclass(slots=True, kw_only=True)
class AttachedRequest(ServerRequest):
    """`eos_token_id`: None if the answer does not end at the model's end token."""

    params: Mapping[str, Any]
    prompt: Sequence[int]
    eos_token_id: int | None
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    news: list[wire.RequestEvent] = field(default_factory=list)

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def left(self) -> Generation:
        """What is still to be generated. The server gets the outputs so far as prompt."""
        get = self.params.get
        return Generation(
            [*self.prompt, *self.outputs],
            self.max_tokens - len(self.outputs),
            temperature=get("temperature", 1.0),
            top_p=get("top_p", 1.0),
            top_k=get("top_k", 0),
            min_p=get("min_p", 0.0),
            eos_token_id=self.eos_token_id,
            stop_token_ids=tuple(get("stop_token_ids") or ()),
        )


_PARAMS = wire.Request.__struct_fields__.index("sampling_params")


def prepared(frames: Frames, frontend_index: int, max_model_len: int) -> AttachedRequest:
    """Raises ValueError if the request cannot be carried over to a server."""
    request = wire.decode_request(frames)
    params = msgspec.msgpack.decode(frames[0])[_PARAMS]
    prompt = request.prompt_token_ids
    if params is None or request.pooling_params is not None:
        raise ValueError(f"{UNABLE}: it is not a generation")
    if request.mm_features or request.prompt_embeds is not None or not prompt:
        raise ValueError(f"{UNABLE}: its prompt is more than tokens")
    if request.lora_request is not None:
        raise ValueError(f"{UNABLE}: it has a LoRA adapter")
    if request.resumable or request.cache_salt is not None:
        raise ValueError(f"{UNABLE}: it has a cache salt, or its prompt is streamed in")
    if why_not := why_not_carried(params):
        raise ValueError(f"{UNABLE}: {why_not}")
    room = max_model_len - len(prompt)
    if room < 1:
        raise ValueError(f"{UNABLE}: its prompt leaves no room in {max_model_len} tokens")
    limit = params.get("max_tokens", 16)
    return AttachedRequest(
        request_id=request.request_id,
        arrival_time_s=request.arrival_time,
        frontend_index=frontend_index,
        num_prompt_tokens=len(prompt),
        max_tokens=room if limit is None else min(limit, room),
        rank=-request.priority,
        params=params,
        prompt=prompt,
        eos_token_id=params.get("_eos_token_id"),
        trace_headers=request.trace_headers or {},
    )


class IdCalls(Calls):
    async def _stream(self, request: AttachedRequest, wanted: Generation) -> bool:
        dialect = DIALECTS[self._server.kind]
        body = dialect.body(self._server, wanted)
        num_seen = 0
        sent = {**(request.trace_headers), **headers(self._server)}
        async with self._client.stream("POST", dialect.path, json=body, headers=sent) as answer:
            if answer.status_code in BUSY:
                return False
            if answer.status_code != httpx.codes.OK:
                told = _json(await answer.aread())
                what = f"it answers {answer.status_code}: {error_in(told) or 'no reason'}"
                self.inbox.put(Came(request, Event(), what))
                return True
            self._took(request)
            async for line in answer.aiter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                told = json.loads(line[5:])
                if what := error_in(told):
                    raise ServerError(what)
                event = dialect.event(told, num_seen, wanted)
                self._moved()
                num_seen += len(event.token_ids)
                if event.finish_reason == "abort":
                    raise ServerError("it aborted the request")
                if event.token_ids or event.finish_reason:
                    self.inbox.put(Came(request, event))
                if event.finish_reason:
                    return True
        raise httpx.ReadError("the stream ended before the answer did")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


class AttachedEngine(ServerEngine[AttachedRequest, wire.Output]):
    def __init__(self, server: AttachedServer, report: Callable[[str], None]) -> None:
        super().__init__(server, report, IdCalls)

    def encode(self, body: wire.Outputs) -> Frames:
        return wire.encode_outputs(body)

    def encode_one(self, body: wire.Outputs, request_id: str) -> Frames:
        outputs = [output for output in body.outputs if output.request_id == request_id]
        return wire.encode_outputs(
            wire.Outputs(body.engine_index, outputs, timestamp=body.timestamp)
        )

    def encode_rest(self) -> Frames:
        return wire.encode_outputs(wire.Outputs(scheduler_stats=wire.SchedulerStats()))

    def prepare(self, frames: Frames, frontend_index: int) -> AttachedRequest:
        return prepared(frames, frontend_index, self.max_model_len)

    def add(self, prepared: AttachedRequest) -> None:
        prepared.news.append(wire.RequestEvent(wire.QUEUED, time.monotonic()))
        super().add(prepared)

    def reenter(self, prepared: AttachedRequest, output_token_ids: Sequence[int]) -> None:
        prepared.outputs.extend(output_token_ids)
        if len(prepared.outputs) >= prepared.max_tokens:
            raise ValueError(f"{UNABLE}: its answer is as long as it may be")
        self.add(prepared)

    # -- what comes ----------------------------------------------------------------------

    def _output(self, request_id: str) -> wire.Output:
        return wire.Output(request_id, [])

    def _took(self, live: AttachedRequest) -> None:
        live.news.append(wire.RequestEvent(wire.SCHEDULED, time.monotonic()))

    def _broke(self, live: AttachedRequest, why: str) -> str:
        if self._num_broken[live.request_id] > MAX_BROKEN:
            what = f"the stream of {live.request_id} broke {MAX_BROKEN + 1} times in a row: {why}"
            raise ServerGoneError(f"{self.server.url}: {what}")
        return ""

    def _emitted(self, output: wire.Output) -> EmittedTokens:
        reason = output.finish_reason
        word = None if reason is None else wire.FINISH_REASONS[reason]
        return EmittedTokens(output.request_id, len(output.new_token_ids), word)

    def _body(self, outputs: list[wire.Output]) -> wire.Outputs:
        snapshot = self.snapshot("", 0)
        stats = wire.SchedulerStats(
            snapshot.num_running,
            snapshot.num_queued,
            snapshot.num_used_blocks / max(1, snapshot.num_total_blocks),
        )
        return wire.Outputs(outputs=outputs, scheduler_stats=stats, timestamp=time.monotonic())

    def _tell(self, live: AttachedRequest, came: Came, output: wire.Output) -> None:
        event: Event = came.event
        if live.news:
            output.events, live.news = [*(output.events or ()), *live.news], []
        if came.refused:
            self._finish(live, output, "error", f"{SERVER_REFUSED}{came.refused}")
            return
        if event.token_ids:
            self._num_broken.pop(live.request_id, None)
        ids = list(event.token_ids)
        stops = live.params.get("stop_token_ids") or ()
        ends = {live.eos_token_id, *stops}
        last = ids[-1] if ids else None
        if event.finish_reason == "stop" and event.ends_with is not None and last not in ends:
            ids.append(event.ends_with)
        ids = ids[: live.max_tokens - len(live.outputs)]
        at = next((place for place, each in enumerate(ids) if each in ends), None)
        taken = ids if at is None else ids[: at + 1]
        if taken and self._measure(live, len(taken)) and not live.outputs:
            num_prompt = len(live.prompt)
            output.prefill_stats = wire.PrefillStats(num_prompt, num_prompt)
        live.outputs += taken
        output.new_token_ids += taken
        if at is not None:
            ended_by = ids[at]
            is_eos = ended_by == live.eos_token_id
            self._finish(live, output, "stop", None if is_eos else ended_by)
        elif len(live.outputs) >= live.max_tokens:
            self._finish(live, output, "length", None)
        elif event.finish_reason:
            self._finish(live, output, event.finish_reason, None)

    def _finish(
        self, live: AttachedRequest, output: wire.Output, reason: str, stop: int | str | None
    ) -> None:
        known = reason if reason in wire.FINISH_REASONS else "stop"
        output.finish_reason, output.stop_reason = wire.FINISH_REASONS.index(known), stop
        self.abort([live.request_id])  # the server may be about to compute more
