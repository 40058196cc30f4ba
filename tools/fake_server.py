"""A server that a cluster can be attached to. It speaks the API of vLLM, SGLang or llama.cpp, as
far as the adapter for attached servers uses it and as their documentation says, and answers with
the emulated token sequence. Tests start it as a process: `python -m tools.fake_server vllm PORT`.

`FAKE_STEP_S` is the time between two tokens. `FAKE_KEY` is the key that it wants."""

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from controller.api import token_sequence

NUM_BLOCKS = 513
BLOCK_SIZE = 16
MAX_LEN = 32768
MODEL = "embedded"
END_WITHIN_S = 10.0
PAGES = {
    "vllm": (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{{engine="0",model_name="embedded"}} {running}\n'
        "# TYPE vllm:num_requests_waiting gauge\n"
        'vllm:num_requests_waiting{{engine="0",model_name="embedded"}} {waiting}\n'
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        'vllm:kv_cache_usage_perc{{engine="0",model_name="embedded"}} {usage}\n'
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{{engine="0",model_name="embedded"}} {tokens}\n'
        "# TYPE vllm:cache_config_info gauge\n"
        f'vllm:cache_config_info{{{{block_size="{BLOCK_SIZE}",num_gpu_blocks="{NUM_BLOCKS}"}}}} 1\n'
    ),
    "sglang": (
        "# TYPE sglang:num_running_reqs gauge\n"
        'sglang:num_running_reqs{{model_name="embedded"}} {running}\n'
        "# TYPE sglang:num_queue_reqs gauge\n"
        'sglang:num_queue_reqs{{model_name="embedded"}} {waiting}\n'
        "# TYPE sglang:token_usage gauge\n"
        'sglang:token_usage{{model_name="embedded"}} {usage}\n'
        "# TYPE sglang:generation_tokens_total counter\n"
        'sglang:generation_tokens_total{{model_name="embedded"}} {tokens}\n'
    ),
    "llamacpp": (
        "# TYPE llamacpp:requests_processing gauge\n"
        "llamacpp:requests_processing {running}\n"
        "# TYPE llamacpp:requests_deferred gauge\n"
        "llamacpp:requests_deferred {waiting}\n"
        "# TYPE llamacpp:tokens_predicted_total counter\n"
        "llamacpp:tokens_predicted_total {tokens}\n"
    ),
}
"""Pages of metrics with the names and types that each project documents."""


class FakeServer:
    """`kind`: whose API it speaks. `tokenizer_file`: without one it does not tokenize.
    `num_prompt`: how long all prompts are, so that a prompt with outputs goes on where they ended;
    0: no prompt has outputs. `cumulative`: how SGLang streams ids. Whoever made it may change its
    other public fields: what its metrics show, and how it fails."""

    def __init__(
        self,
        kind: str,
        *,
        step_s: float = 0.0,
        key: str = "",
        tokenizer_file: Path | None = None,
        num_prompt: int = 0,
        cumulative: bool = True,
    ) -> None:
        self.kind, self.step_s, self.key, self.num_prompt = kind, step_s, key, num_prompt
        self.cumulative = cumulative
        self.usage, self.others, self.waiting = 0.0, 0, 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.num_tokens = self.num_running = self.break_after = self.busy = 0
        self.healthy = True
        self._tokenizer = None if tokenizer_file is None else _tokenizer(tokenizer_file)
        routes = {
            "/health": self._health,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/props": self._props,
            "/get_model_info": self._about,
            "/get_server_info": self._about,
        }
        calls = {
            "/v1/completions": self._generate,
            "/generate": self._generate,
            "/completion": self._generate,
            "/tokenize": self._ids,
        }
        self.app = Starlette(
            routes=[
                *(Route(path, self._guarded(each)) for path, each in routes.items()),
                *(
                    Route(path, self._guarded(each), methods=["POST"])
                    for path, each in calls.items()
                ),
            ]
        )

    def _guarded(self, handle: Any) -> Any:
        async def answer(request: Request) -> Response:
            if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": {"message": "no key"}}, 401)
            found: Response = await handle(request)
            return found

        return answer

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def _metrics(self, _: Request) -> Response:
        page = PAGES[self.kind].format(
            running=self.num_running + self.others,
            waiting=self.waiting,
            usage=self.usage,
            tokens=self.num_tokens,
        )
        return PlainTextResponse(page)

    async def _models(self, _: Request) -> Response:
        card: dict[str, Any] = {"id": MODEL, "object": "model", "owned_by": self.kind}
        if self.kind != "llamacpp":
            card |= {"root": f"/models/{MODEL}", "max_model_len": MAX_LEN}
        return JSONResponse({"object": "list", "data": [card]})

    async def _props(self, _: Request) -> Response:
        settings = {"n_ctx": MAX_LEN}
        told = {"default_generation_settings": settings, "total_slots": 4, "model_path": "x.gguf"}
        return JSONResponse(told)

    async def _about(self, _: Request) -> Response:
        sizes = {"max_total_num_tokens": NUM_BLOCKS * BLOCK_SIZE, "max_running_requests": 8}
        return JSONResponse({"model_path": f"/models/{MODEL}", **sizes})

    async def _ids(self, request: Request) -> Response:
        if self._tokenizer is None:
            return Response(status_code=404)
        wanted = await request.json()
        text = wanted["content" if self.kind == "llamacpp" else "prompt"]
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return JSONResponse({"tokens": ids})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.busy:
            self.busy -= 1
            return JSONResponse({"error": {"message": "busy"}}, 503)
        if self.kind == "sglang":
            ids, params = body["input_ids"], body["sampling_params"]
            limit = params["max_new_tokens"]
        else:
            ids, params = body["prompt"], body
            limit = body["n_predict" if self.kind == "llamacpp" else "max_tokens"]
        if limit > MAX_LEN:
            return JSONResponse({"error": {"message": "too long"}}, 400)
        return StreamingResponse(
            self._events(ids, limit, params["ignore_eos"]), media_type="text/event-stream"
        )

    async def _events(self, ids: list[int], limit: int, ignore_eos: bool) -> AsyncIterator[str]:
        num_prompt = self.num_prompt or len(ids)
        prompt, first = ids[:num_prompt], len(ids) - num_prompt
        start, natural = token_sequence.start(prompt), token_sequence.natural_length(prompt)
        answer: list[int] = []
        self.num_running += 1
        try:
            for position in range(first, first + limit):
                if self.break_after and position - first == self.break_after:
                    self.break_after = 0
                    return
                if self.step_s:
                    await asyncio.sleep(self.step_s)
                is_end = not ignore_eos and position == natural - 1
                answer.append(
                    token_sequence.END if is_end else token_sequence.token(start, position)
                )
                self.num_tokens += 1
                is_last = is_end or position == first + limit - 1
                yield f"data: {json.dumps(self._event(answer, is_end, is_last))}\n\n"
                if is_last:
                    break
            if self.kind != "llamacpp":
                yield "data: [DONE]\n\n"
        finally:
            self.num_running -= 1

    def _event(self, answer: list[int], is_end: bool, is_last: bool) -> dict[str, Any]:
        new = answer[-1:]
        reason = ("stop" if is_end else "length") if is_last else None
        if self.kind == "vllm":
            choice = {"index": 0, "text": "x", "token_ids": new, "finish_reason": reason}
            return {"choices": [choice]}
        if self.kind == "sglang":
            finish: dict[str, Any] | None = None
            if reason:
                finish = {"type": reason}
                finish |= {"matched": new[0]} if is_end else {"length": len(answer)}
            ids = list(answer) if self.cumulative else new
            meta = {"completion_tokens": len(answer), "finish_reason": finish}
            return {"text": "x", "output_ids": ids, "meta_info": meta}
        stop = {"stop_type": "eos" if is_end else "limit"} if is_last else {}
        return {"content": "x", "tokens": [] if is_end else new, "stop": is_last, **stop}


class Served:
    """A fake server on a free port of this process, on a thread of its own."""

    def __init__(self, fake: Any) -> None:
        """`fake`: a FakeServer, or another object with an `app`."""
        self.fake = fake
        sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._socket = sock
        self._server = uvicorn.Server(uvicorn.Config(fake.app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, args=([sock],), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends it with its streams, as a kill does."""
        self._server.force_exit = self._server.should_exit = True
        self._thread.join(END_WITHIN_S)
        self._socket.close()


def _tokenizer(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))


def main() -> None:
    kind, port, *more = sys.argv[1:]
    server = FakeServer(
        kind,
        step_s=float(os.environ.get("FAKE_STEP_S", "0")),
        key=os.environ.get("FAKE_KEY", ""),
        num_prompt=int(os.environ.get("FAKE_PROMPT_TOKENS", "0")),
        tokenizer_file=Path(more[0]) if more else None,
    )
    uvicorn.run(server.app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
