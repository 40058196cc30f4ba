"""The endpoint of several models: each request goes to vLLM's app of the model that it names.

`GET /v1/models` lists the models of all apps. All other requests without a model in their body go
to the first app: they ask about the frontend, and not about a model.

Touch points of vLLM: entrypoints/launchers/api_server/app_state.py `openai_serving_models`;
entrypoints/openai/models/serving.py `show_available_models`, `base_model_paths`, `lora_requests`.
"""

from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from controller.adapters.vllm.endpoint.headers import RefusedError

MODELS_PATH = "/v1/models"
MAX_NAME_CHARS = 100


class _Named(msgspec.Struct):
    """The part of a body that names its model."""

    model: Any = None


_DECODER = msgspec.json.Decoder(_Named)


class ModelSwitch:
    """An ASGI app over the apps of several models. `json_paths`: the paths whose bodies name a
    model; the gate has checked that such a body is a JSON object."""

    def __init__(self, apps: Sequence[FastAPI], json_paths: Collection[str]) -> None:
        self._apps = apps
        self._json_paths = json_paths

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
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(each.get("body", b"") for each in messages)
        app = self._app_of(_DECODER.decode(body).model)
        untaken = iter(messages)

        async def again() -> Message:
            taken = next(untaken, None)
            return await receive() if taken is None else taken

        await app(scope, again, send)

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


def _names(app: FastAPI) -> list[str]:
    models = app.state.openai_serving_models
    return [*(each.name for each in models.base_model_paths), *models.lora_requests]


async def _cards(app: FastAPI) -> list[Any]:
    found = await app.state.openai_serving_models.show_available_models()
    return [each.model_dump() for each in found.data]
