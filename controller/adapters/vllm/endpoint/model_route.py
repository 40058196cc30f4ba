"""`GET /v1/models/ID`, which OpenAI's API has and vLLM's app lacks.

Touch points of vLLM: entrypoints/openai/models/serving.py `show_available_models`;
entrypoints/launchers/api_server/app_state.py `openai_serving_models`, where the app keeps it.
"""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse


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
