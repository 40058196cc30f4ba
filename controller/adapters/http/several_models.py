"""The control API of a cluster that serves several models.

Below `/models/NAME` stand the calls about one model. The same calls without that prefix are about
all of them: what is looked at is put together from all models, and an order goes to the model that
has its instance or its request. An order about a whole model must name it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import chain

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.adapters.http.calls import AnswersByKey, ApiError, json_answer, no_such_instance
from controller.adapters.http.merged_status import together
from controller.adapters.http.model_api import LatestStatus, ModelApi, query_of
from controller.adapters.http.observer import HistoryQuery, Observer
from controller.adapters.http.perform import Operated, OperationsQuery
from controller.adapters.http.requests import (
    RequestsQuery,
    find_record,
    list_requests,
    listed_at,
)
from controller.api.operations.on_cluster import SetSettings, SettingsPatch
from controller.api.operations.on_instances import DrainList
from controller.api.operations.table import Undo
from controller.api.settings.setting_values import is_shared
from controller.api.wire.requests import RequestList
from controller.api.wire.status import ClusterStatus
from controller.ports.processes import HistoryStore


def of_models(apps: Mapping[str, ASGIApp]) -> list[BaseRoute]:
    """The routes below `/models/NAME`, for each model."""

    async def unknown(scope: Scope, _receive: Receive, _send: Send) -> None:
        name = scope["path"].removeprefix("/models/").rpartition("/v1/")[0] or "(none)"
        raise ApiError(
            404,
            "no_such_model",
            f"there is no model {name[:60]!r}; the cluster serves {', '.join(apps)}",
            f"the same command with --model {next(iter(apps))}",
        )

    return [
        *(Mount(f"/models/{name}", app=each) for name, each in apps.items()),
        Mount("/models", app=unknown),
    ]


class SeveralModels:
    """The calls about all models together. `apis`: the calls about each one, by its name. The
    history of all together is kept in `history`."""

    def __init__(
        self,
        apis: Mapping[str, ModelApi],
        answers: AnswersByKey,
        changing: asyncio.Lock,
        history: HistoryStore | None = None,
    ) -> None:
        self._apis = apis
        self._first = first = next(iter(apis.values()))
        of_each = {name: each.routes(answers, changing) for name, each in apis.items()}
        self._routers = {name: Router(routes) for name, routes in of_each.items()}
        path = SetSettings.path
        self._changed = next(r.endpoint for r in next(iter(of_each.values())) if r.path == path)
        self.statuses = LatestStatus(self._new_status)
        controllers = [each.controller for each in apis.values()]
        self.observer = Observer(controllers, self.statuses.now, first.limits, history)

    def routes(self) -> list[BaseRoute]:
        return [
            *of_models(self._routers),
            Route("/v1/status", self._status, methods=["GET"]),
            Route("/v1/watch", self._watch, methods=["GET"]),
            Route("/v1/history", self._history, methods=["GET"]),
            Route("/v1/requests", self._requests, methods=["GET"]),
            Route("/v1/operations", self._operations, methods=["GET"]),
            Route("/v1/drains", self._drains, methods=["GET"]),
            Route(SetSettings.path, self._set, methods=[SetSettings.method]),
            Mount("/v1", app=self._hand_on),
        ]

    # -- looking -------------------------------------------------------------------------

    def _new_status(self) -> ClusterStatus:
        of_each = {name: each.statuses.now() for name, each in self._apis.items()}
        return self.observer.with_output(together(of_each))

    async def _status(self, _request: Request) -> Response:
        return json_answer(self.statuses.now())

    async def _watch(self, request: Request) -> Response:
        return self._first.watched(request, self.statuses)

    async def _history(self, request: Request) -> Response:
        body = await self.observer.report(query_of(request, HistoryQuery))
        return Response(body, media_type="application/json")

    async def _requests(self, request: Request) -> Response:
        query = query_of(request, RequestsQuery, repeatable=("state",))
        apis = list(self._apis.values())
        if query.instance is not None:
            apis = [self._apis[self._name_of_instance(query.instance)]]
        lists = await asyncio.gather(*(list_requests(each.controller, query) for each in apis))
        return json_answer(requests_together(lists, query.limit))

    async def _operations(self, request: Request) -> Response:
        query = query_of(request, OperationsQuery)
        return json_answer(await self._first.operations(query, self._operated_of))

    async def _drains(self, _request: Request) -> Response:
        lists = await asyncio.gather(*(each.drains() for each in self._apis.values()))
        return json_answer(DrainList(drains=tuple(chain(*(each.drains for each in lists)))))

    async def _set(self, request: Request) -> Response:
        """Changes settings that all models share. Others are of one model, which has to be named
        then."""
        wanted = SettingsPatch.model_validate_json(await request.body())
        if not wanted.changes or not all(map(is_shared, wanted.changes)):
            raise self._which_model(request.scope)
        answer: Response = await self._changed(request)
        return answer

    # -- which model a call is about -----------------------------------------------------

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands a call on to its model. Raises ApiError if it does not say which one that is."""
        name = await self._model_of(scope)
        # A mount has moved the beginning of the path into the root path.
        inner = {**scope, "path_params": {}, "root_path": scope["app_root_path"]}
        await self._routers[name](inner, receive, send)

    async def _model_of(self, scope: Scope) -> str:
        _, _, kind, *rest = scope["path"].split("/")
        target = rest[0] if rest else ""
        match kind:
            case "instances":
                return self._name_of_instance(target)
            case "requests":
                return await self._name_of_request(target)
            case "members":
                return self._name_of_member(target)
            case "events" | "answers":  # all models share them
                return next(iter(self._apis))
        raise self._which_model(scope)

    def _which_model(self, scope: Scope) -> ApiError:
        names = ", ".join(self._apis)
        return ApiError(
            400,
            "which_model",
            f"{scope['method']} {scope['path']} is about one model, and the cluster serves {names}",
            f"the same command with --model {next(iter(self._apis))}",
        )

    def _name_of_instance(self, instance_id: str) -> str:
        for name, each in self._apis.items():
            controller = each.controller
            if instance_id in {*controller.roster.members, *controller.keeper.spec.instance_ids}:
                return name
        raise no_such_instance(instance_id)

    def _name_of_member(self, member_id: str) -> str:
        for name, each in self._apis.items():
            if member_id in each.controller.roster.members:
                return name
        return next(iter(self._apis))

    async def _name_of_request(self, reference: str) -> str:
        """The first model that knows the request; the first of all if none does."""

        async def is_known(api: ModelApi) -> bool:
            try:
                await find_record(api.controller, reference)
            except ApiError as error:
                return error.status != HTTPStatus.NOT_FOUND
            return True

        known = await asyncio.gather(*map(is_known, self._apis.values()))
        names = [name for name, is_its in zip(self._apis, known, strict=True) if is_its]
        return names[0] if names else next(iter(self._apis))

    def _operated_of(self, undo: Undo | None) -> Operated:
        """The model on which an operation was made."""
        known = None if undo is None else self._apis.get(undo.model)
        return (known or self._first).operated


def requests_together(lists: Sequence[RequestList], limit: int) -> RequestList:
    found = [each for one in lists for each in one.requests]
    found.sort(key=listed_at)
    return RequestList(
        requests=tuple(found[:limit]),
        num_matching=sum(each.num_matching for each in lists),
        silent_frontends=tuple(dict.fromkeys(chain(*(each.silent_frontends for each in lists)))),
    )
