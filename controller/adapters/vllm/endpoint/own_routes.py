"""The routes that vLLM's app lacks: `GET /v1/models/ID`, which OpenAI's API has, and `GET /ready`.

`/health` is vLLM's own and says that this process serves: it stays 200 while live requests end.
`/ready` is for load balancers and says whether a new request would be taken.

A small module, as it is tried without vLLM, which the module of the app imports.

Touch points of vLLM: entrypoints/openai/models/serving.py `show_available_models`;
entrypoints/launchers/api_server/app_state.py `openai_serving_models`, where the app keeps it.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from controller.adapters.vllm.endpoint.error_bodies import error_body

READY_PATH = "/ready"
# Load balancers look again by their own clock; this is for whoever reads the header.
LOOK_AGAIN_S = 1


def add_model_route(app: FastAPI) -> None:
    app.add_api_route("/v1/models/{model_id:path}", show_model, methods=["GET"])


async def show_model(model_id: str, request: Request) -> Any:
    cards = await request.app.state.openai_serving_models.show_available_models()
    for card in cards.data:
        if card.id == model_id:
            return JSONResponse(card.model_dump())
    message = f"The model `{model_id}` does not exist."
    error = {"message": message, "param": "model", "code": HTTPStatus.NOT_FOUND}
    return JSONResponse({"error": error}, HTTPStatus.NOT_FOUND)


def add_ready_route(app: FastAPI, why_not_ready: Callable[[], str]) -> None:
    """`why_not_ready`: empty while new requests are taken."""

    async def ready() -> Response:
        if why := why_not_ready():
            status = HTTPStatus.SERVICE_UNAVAILABLE
            again = {"Retry-After": str(LOOK_AGAIN_S)}
            return Response(error_body(status, why), status, again, "application/json")
        return JSONResponse({"ready": True})

    app.add_api_route(READY_PATH, ready, methods=["GET", "HEAD"], include_in_schema=False)
