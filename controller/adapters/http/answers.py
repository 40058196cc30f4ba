"""What the control API answers when it did what was asked."""

from starlette.responses import Response

from controller.api.wire.base import WireModel


def json_answer(model: WireModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")
