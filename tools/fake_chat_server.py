"""A server with OpenAI's API to which requests can be forwarded. It counts words: each token of an
answer is the server's name and a number. Tests start it as a process: `python -m
tools.fake_chat_server NAME PORT`.

`FAKE_STEP_S` is the time between two tokens, and `FAKE_FIRST_S` the time before the first one."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MAX_LEN = 4096
OWNER = "somebody"


class FakeChatServer:
    """`models`: the names that it lists. Whoever made it may change its other public fields."""

    def __init__(
        self, name: str, models: Sequence[str] = (), *, first_s: float = 0.0, step_s: float = 0.0
    ) -> None:
        self.name, self.models = name, models or (f"model-of-{name}",)
        self.first_s, self.step_s = first_s, step_s
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_running = self.busy = self.break_after = self.fails_first = 0
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/embeddings", self._embed, methods=["POST"]),
            ]
        )

    async def _models(self, _: Request) -> Response:
        card = {"object": "model", "owned_by": OWNER, "max_model_len": MAX_LEN}
        return JSONResponse({"data": [{"id": each, **card} for each in self.models]})

    async def _embed(self, request: Request) -> Response:
        body = await self._read(request)
        if "input" not in body:
            return JSONResponse({"error": {"message": "there is no input"}}, 422)
        usage = {"prompt_tokens": len(str(body["input"]).split())}
        return JSONResponse({"data": [{"embedding": [0.5]}], "usage": usage})

    async def _chat(self, request: Request) -> Response:
        body = await self._read(request)
        if self.busy:
            self.busy -= 1
            return JSONResponse({"error": {"message": "busy"}}, 503)
        num_words = sum(len(each["content"].split()) for each in body["messages"])
        limit = body.get("max_tokens", 8)
        usage = {"prompt_tokens": num_words, "completion_tokens": limit}
        if body.get("stream"):
            return StreamingResponse(self._events(limit, usage), media_type="text/event-stream")
        words = [word async for word in self._words(limit)]
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return JSONResponse({"model": body["model"], "choices": [choice], "usage": usage})

    async def _read(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        return body

    async def _words(self, limit: int) -> AsyncIterator[str]:
        self.num_running += 1
        try:
            await asyncio.sleep(self.first_s)
            for number in range(limit):
                yield f"{self.name}-{number} "
                await asyncio.sleep(self.step_s)
        finally:
            self.num_running -= 1

    async def _events(self, limit: int, usage: dict[str, int]) -> AsyncIterator[str]:
        num_sent = 0
        if self.fails_first:
            self.fails_first -= 1
            raise ConnectionError("as if the stream broke")
        async for word in self._words(limit):
            if self.break_after and num_sent == self.break_after:
                raise ConnectionError("as if the stream broke")
            num_sent += 1
            yield f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n"
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"


def main() -> None:
    name, port = sys.argv[1:]
    first_s, step_s = (float(os.environ.get(f"FAKE_{each}_S", "0")) for each in ("FIRST", "STEP"))
    server = FakeChatServer(name, first_s=first_s, step_s=step_s)
    uvicorn.run(server.app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
