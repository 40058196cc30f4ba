"""The endpoint of several models: each request goes to vLLM's app of the model that it names.

`GET /v1/models` lists the models of all apps. All other requests without a model in their body go
to the first app: they ask about the frontend, and not about a model.

The rules of the named model (`traffic.split`, `traffic.mirror`) may send a request to another model
instead, or a copy of it besides. The body names that model then.

Touch points of vLLM: entrypoints/launchers/api_server/app_state.py `openai_serving_models`;
entrypoints/openai/models/serving.py `show_available_models`, `base_model_paths`, `lora_requests`.
"""

from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from random import random
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from controller.adapters.vllm.endpoint.copies import Copies, Copy
from controller.adapters.vllm.endpoint.exchange import PLACING
from controller.adapters.vllm.endpoint.gate import COPY, TOKEN_PATHS
from controller.adapters.vllm.endpoint.headers import ASKED_SESSION, RefusedError
from controller.core.admission.traffic import WHOLE, TrafficBook, chosen, served

MODELS_PATH = "/v1/models"
MAX_NAME_CHARS = 100
ASKING_PATHS = TOKEN_PATHS | {"/v1/messages/count_tokens"}
"""The paths that ask about a model's tokenizer. The rules do not apply to them."""
SESSION_HASHES = 2**64


class _Named(msgspec.Struct):
    """The part of a body that names its model."""

    model: Any = None


_DECODER = msgspec.json.Decoder(_Named)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ModelSwitch:
    """An ASGI app over the apps of several models. `json_paths`: the paths whose bodies name a
    model; the gate has checked that such a body is a JSON object. `books`: the rules of each
    model, by the name of the model."""

    def __init__(
        self,
        apps: Sequence[FastAPI],
        json_paths: Collection[str],
        books: Mapping[str, TrafficBook],
        copies: Copies,
    ) -> None:
        self._apps = apps
        self._json_paths = json_paths
        self._books = books
        self._copies = copies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._apps[0](scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in self._json_paths:
            await self._to_model(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"] == MODELS_PATH:
            cards = [card for app in self._apps for card in await _cards(app)]
            await JSONResponse({"object": "list", "data": cards})(scope, receive, send)
        elif scope["path"].startswith(f"{MODELS_PATH}/"):
            app = self._app_of(scope["path"].removeprefix(f"{MODELS_PATH}/"))
            await app(scope, receive, send)
        else:
            await self._apps[0](scope, receive, send)

    async def _to_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        model = _DECODER.decode(body).model
        app = self._app_of(model)
        copies: list[Copy] = []
        book = self._books.get(model) if isinstance(model, str) else None
        if book is not None and scope["path"] not in ASKING_PATHS and not _is_copy(scope):
            if book.rules.split:
                model = chosen(book.rules.split, _draw())
                book.answers(model)
                app, book = self._app_of(model), self._books[model]
                body = _naming(body, model)
            copies = self._begin_copies(scope, body, book)
        first: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def again() -> Message:
            nonlocal first
            taken, first = first, None
            return await receive() if taken is None else taken

        try:
            await app(scope, again, send)
        finally:
            placing = PLACING.get()
            if copies and placing is not None:
                original = served([record() for record in placing.records])
                for each in copies:
                    each.original_is_over(original)

    def _begin_copies(self, scope: Scope, body: bytes, book: TrafficBook) -> list[Copy]:
        wanted = [name for name, share in book.rules.mirror if random() * WHOLE < share]
        begun = [
            self._copies.begin(scope, _naming(body, name, keeps_priority=False), name, book)
            for name in wanted
        ]
        return [each for each in begun if each is not None]

    def _app_of(self, model: object) -> FastAPI:
        """The app that serves a model, or a LoRA adapter, of this name. Raises RefusedError."""
        names: list[str] = []
        for app in self._apps:
            of_app = _names(app)
            if model in of_app:
                return app
            names += of_app
        listed = ", ".join(names)
        if model is None or model == "":
            why = f"the request names no model; this endpoint serves {listed}"
        else:
            why = (
                f"there is no model {str(model)[:MAX_NAME_CHARS]!r}; this endpoint serves {listed}"
            )
        raise RefusedError(HTTPStatus.NOT_FOUND, why, "model")


async def _read(receive: Receive) -> bytes:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return b"".join(each.get("body", b"") for each in messages)


def _is_copy(scope: Scope) -> bool:
    return COPY in scope.get("extensions", {})


def _draw() -> float:
    """At least 0 and at most 1; the same for all requests of a session."""
    session = ASKED_SESSION.get()
    return int(session, 16) / SESSION_HASHES if session else random()


def _naming(body: bytes, model: str, *, keeps_priority: bool = True) -> bytes:
    """The body with another model. Its other values are not decoded, so they stay as they are."""
    found = _FIELDS.decode(body)
    found["model"] = msgspec.Raw(msgspec.json.encode(model))
    if not keeps_priority:
        found.pop("priority", None)
    return msgspec.json.encode(found)


def _names(app: FastAPI) -> list[str]:
    models = app.state.openai_serving_models
    return [*(each.name for each in models.base_model_paths), *models.lora_requests]


async def _cards(app: FastAPI) -> list[Any]:
    found = await app.state.openai_serving_models.show_available_models()
    return [each.model_dump() for each in found.data]
