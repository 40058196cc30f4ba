"""The control API's description of itself, made of the wire models that its handlers read and
answer with: `GET /openapi.json`.

`CALLS` has a row for each route, those of orders by their table; a test compares both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from controller.adapters.http.idempotency import HEADER, MAX_KEY_CHARS
from controller.adapters.http.member_log import LogQuery
from controller.adapters.http.operations_done import OperationsQuery
from controller.adapters.http.requests import MAX_REFERENCE_CHARS, NameQuery, RequestsQuery
from controller.adapters.http.watch import EventsQuery, WatchQuery
from controller.api.operations.table import ORDERS
from controller.api.version import own_version
from controller.api.wire.explain import Explanation
from controller.api.wire.models import (
    ClusterStatus,
    ErrorBody,
    EventPage,
    MemberLog,
    RequestDetail,
    RequestList,
    RequestName,
    StopProgress,
    StopRequest,
)
from controller.api.wire.operations import DrainList, OperationList
from controller.api.wire.rolling_models import RollingReport
from controller.api.wire.settings import SettingList
from controller.api.wire.stream import Frame
from controller.api.wire.traffic import TrafficBatch, TrafficRequest

PATH = "/openapi.json"
JSON, LINES, TEXT = "application/json", "application/x-ndjson", "text/plain"
Model = type[BaseModel]
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Call:
    """`answer`: the model, or None for an answer of any form. `wants_body`: without one the call is
    refused. `once`: an Idempotency-Key is read."""

    does: str
    answer: Any
    query: Model | None = None
    body: Model | None = None
    wants_body: bool = False
    once: bool = False
    media_type: str = JSON


CALLS: Mapping[tuple[str, str], Call] = {
    ("GET", "/v1/status"): Call("How the cluster is now", ClusterStatus),
    ("GET", "/v1/events"): Call("A page of the event log", EventPage, EventsQuery),
    ("GET", "/v1/watch"): Call(
        "Statuses and events as they come, one in each line", Frame, WatchQuery, media_type=LINES
    ),
    ("GET", "/v1/requests"): Call("Requests that live or ended lately", RequestList, RequestsQuery),
    ("GET", "/v1/requests/{reference}"): Call("A request with its history", RequestDetail),
    ("GET", "/v1/requests/{reference}/id"): Call(
        "The whole id of a request, as orders take it", RequestName, NameQuery
    ),
    ("GET", "/v1/requests/{reference}/explain"): Call("Why a request is where it is", Explanation),
    ("GET", "/v1/members/{member_id}/log"): Call("The last lines of a log", MemberLog, LogQuery),
    ("GET", "/v1/answers/{key}"): Call("What the call with this Idempotency-Key got", None),
    ("GET", "/v1/operations"): Call(
        "What operators did lately, and what undoes it", OperationList, OperationsQuery
    ),
    ("GET", "/v1/settings"): Call("The settings that may change", SettingList),
    ("GET", "/v1/drains"): Call("The drains under way", DrainList),
    ("GET", "/v1/rolling-restart"): Call("The last rolling restart", RollingReport),
    **{
        (row.method, row.path): Call(
            row.does, row.report, body=row.body, wants_body=row.wants_body, once=True
        )
        for row in ORDERS.values()
    },
    ("POST", "/v1/traffic"): Call(
        "Record the traffic while the caller reads",
        TrafficBatch,
        body=TrafficRequest,
        wants_body=True,
        media_type=LINES,
    ),
    ("POST", "/v1/stop"): Call(
        "Stop the cluster, or ask how far it is", StopProgress, None, StopRequest
    ),
    ("GET", "/metrics"): Call("The status for Prometheus", None, media_type=TEXT),
    ("GET", PATH): Call("This description", None),
}


def description() -> dict[str, Any]:
    """OpenAPI 3.1."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    error = {"description": "why not", "content": {JSON: {"schema": schemas.of(ErrorBody)}}}
    for (method, path), call in CALLS.items():
        answer = {"schema": {} if call.answer is None else schemas.of(call.answer)}
        described: dict[str, Any] = {
            "summary": call.does,
            "parameters": [*_in_path(path), *schemas.in_query(call.query), *_keys(call)],
            "responses": {
                "200": {"description": call.does, "content": {call.media_type: answer}},
                "default": error,
            },
        }
        if call.body is not None:
            body = {"schema": schemas.of(call.body, "validation")}
            described["requestBody"] = {"required": call.wants_body, "content": {JSON: body}}
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "llumctl's control API",
            "version": own_version(),
            "description": "Without a bearer token nothing is answered; the view token may look.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.found,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """References to the schemas of models, which are collected in `found`."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def of(self, model: Any, mode: JsonSchemaMode = "serialization") -> dict[str, Any]:
        schema = TypeAdapter(model).json_schema(ref_template=_REF, mode=mode)
        self.found |= schema.pop("$defs", {})
        if not isinstance(model, type):
            return schema
        self.found[model.__name__] = schema
        return {"$ref": _REF.format(model=model.__name__)}

    def in_query(self, model: Model | None) -> list[dict[str, Any]]:
        if model is None:
            return []
        schema = model.model_json_schema(ref_template=_REF)
        self.found |= schema.get("$defs", {})
        fields = schema["properties"].items()
        return [
            {"name": name, "in": "query", "schema": _without_null(each)} for name, each in fields
        ]


def _in_path(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_REFERENCE_CHARS}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


@cache
def encoded() -> bytes:
    return json.dumps(description()).encode()


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that has no value is left out, as a query has no null."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    rest = {key: each for key, each in schema.items() if key not in ("anyOf", "default")}
    return {**rest, **kinds[0]}


def _keys(call: Call) -> list[dict[str, Any]]:
    if not call.once:
        return []
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS}
    return [{"name": HEADER, "in": "header", "schema": schema}]
