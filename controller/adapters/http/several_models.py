"""The control API of a cluster that serves several models.

Below `/models/NAME` stand the calls about one model. The same calls without that prefix are about
all of them: what is looked at is put together from all models, and an order goes to the model that
has its instance or its request. An order about a whole model must name it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.adapters.http.calls import AnswersByKey, ApiError, json_answer, no_such_instance
from controller.adapters.http.model_api import LatestStatus, ModelApi, query_of
from controller.adapters.http.observer import HistoryQuery, Observer
from controller.adapters.http.perform import Operated, OperationsQuery
from controller.adapters.http.requests import (
    RequestsQuery,
    find_record,
    list_requests,
    listed_at,
)
from controller.api.figures import takes_requests
from controller.api.operations.on_cluster import SetSettings, SettingsPatch
from controller.api.operations.on_instances import DrainList
from controller.api.operations.table import Undo
from controller.api.settings.setting_values import is_shared
from controller.api.wire import WireModel
from controller.api.wire.requests import RequestList
from controller.api.wire.status import (
    AlarmStatus,
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    HeldStatus,
    InstanceState,
    KeyStatus,
    LevelStatus,
    ModelStatus,
    RefusedStatus,
    ReplaysStatus,
    RollingReport,
    SavedStatus,
    VerdictStatus,
)
from controller.ports.processes import HistoryStore

SEVERITIES = ("quiet", "warn", "bad")
SERVING_STATES = (InstanceState.ACTIVE, InstanceState.DRAINING)


def of_models(apps: Mapping[str, ASGIApp]) -> list[BaseRoute]:
    """The routes below `/models/NAME`, for each model."""

    async def unknown(scope: Scope, _receive: Receive, _send: Send) -> None:
        name = scope["path"].removeprefix("/models/").rpartition("/v1/")[0] or "(none)"
        raise ApiError(
            404,
            "no_such_model",
            f"there is no model {name[:60]!r}; the cluster serves {', '.join(apps)}",
            "llumctl status",
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


# -- several statuses as one -----------------------------------------------------------------------


def together(of_each: Mapping[str, ClusterStatus]) -> ClusterStatus:
    """The status of a cluster, from the statuses of its models by name."""
    found = list(of_each.values())
    first = found[0]
    stopping = [each for each in found if each.state is ClusterState.STOPPING]
    worst = stopping[0] if stopping else max(found, key=lambda each: _STATES.index(each.state))
    details = (f"{name}: {each.detail}" for name, each in of_each.items() if each.detail)
    helds = [each.held for each in found if each.held is not None]
    return first.model_copy(
        update={
            "state": worst.state,
            "detail": "; ".join(details),
            "model": ", ".join(of_each),
            "models": tuple(model_status(name, each) for name, each in of_each.items()),
            "policy": ", ".join(dict.fromkeys(each.policy for each in found)),
            "verdict": _verdict(of_each),
            "alarms": tuple(
                alarm for name, each in of_each.items() for alarm in _alarms(name, each)
            ),
            "num_held_reqs": sum(each.num_held_reqs for each in found),
            "held": _held(helds),
            "autoscale": _autoscale([each.autoscale for each in found]),
            "refused": _refused(chain(*(each.refused for each in found))),
            "keys": _keys(chain(*(each.keys for each in found))),
            "levels": tuple(map(_level, zip(*(each.levels for each in found), strict=True))),
            "split": (),
            "mirrors": (),
            "notices": tuple(chain(*(each.notices for each in found))),
            "moves": tuple(chain(*(each.moves for each in found))),
            "queued_moves": tuple(chain(*(each.queued_moves for each in found))),
            "ended_moves": tuple(
                sorted(chain(*(each.ended_moves for each in found)), key=lambda each: -each.ended_s)
            ),
            "replays": _replays([each.replays for each in found]),
            "engine_changes": tuple(chain(*(each.engine_changes for each in found))),
            "rolling": _rolling(found),
            "adapters": tuple(chain(*(each.adapters for each in found))),
            "num_migrated_last_minute": sum(each.num_migrated_last_minute for each in found),
            "num_failed_moves_last_minute": sum(
                each.num_failed_moves_last_minute for each in found
            ),
            "instances": tuple(chain(*(each.instances for each in found))),
            "frontends": tuple(
                map(_frontend, zip(*(each.frontends for each in found), strict=True))
            ),
        }
    )


_STATES = (
    ClusterState.READY,
    ClusterState.DEGRADED,
    ClusterState.STARTING,
    ClusterState.STOPPING,
    ClusterState.FAILED,
)
"""The states of models, the best first: a cluster is in the worst of them."""


def model_status(name: str, status: ClusterStatus) -> ModelStatus:
    instances = status.instances
    return ModelStatus(
        name=name,
        num_serving=sum(takes_requests(each) for each in instances),
        num_running_reqs=sum(each.num_running_reqs or 0 for each in instances),
        num_waiting_reqs=sum(each.num_waiting_reqs or 0 for each in instances),
        num_held_reqs=status.num_held_reqs,
        tokens_per_s=status.tokens_per_s,
        ttft_p99_s=_most(each.ttft_p99_s for each in status.frontends),
        autoscale=status.autoscale,
        rolling=status.rolling,
        split=status.split,
        mirrors=status.mirrors,
        verdict=status.verdict,
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((each for each in values if each is not None), default=None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _verdict(of_each: Mapping[str, ClusterStatus]) -> VerdictStatus | None:
    """The worst verdict, with the name of its model and with what makes others the same."""
    found = [
        verdict_of(name, each.verdict) for name, each in of_each.items() if each.verdict is not None
    ]
    if not found:
        return None
    worst = max(found, key=lambda each: SEVERITIES.index(each.severity))
    others = (each for each in found if each.word == worst.word and each is not worst)
    whys = filter(None, (each.why for each in (worst, *others)))
    return worst.model_copy(update={"why": "; ".join(whys)})


def verdict_of(name: str, verdict: VerdictStatus) -> VerdictStatus:
    """The verdict on a model, which names it."""
    order = verdict.order and verdict.order.model_copy(update={"model": name})
    why = f"{name}: {verdict.why}" if verdict.why else ""
    return verdict.model_copy(update={"why": why, "order": order})


def _alarms(name: str, status: ClusterStatus) -> Iterable[AlarmStatus]:
    ids = {each.id for each in (*status.instances, *status.frontends)}
    for each in status.alarms:
        about = {} if each.subject in ids else {"text": f"{name}: {each.text}"}
        yield each.model_copy(update=about)


def _held(found: Sequence[HeldStatus]) -> HeldStatus | None:
    if not found:
        return None
    numbers = Counter[str]()
    for each in found:
        numbers.update(each.num_by_level)
    oldest = max(found, key=lambda each: each.oldest_wait_s)
    return oldest.model_copy(
        update={
            "num_by_level": dict(numbers),
            "demand_blocks": _sum(each.demand_blocks for each in found),
        }
    )


def _autoscale(found: Sequence[AutoscaleStatus]) -> AutoscaleStatus:
    """What auto-scaling does together. The checks are in the statuses of the models."""
    modes = {each.mode for each in found}
    checks = Counter[str]()
    for each in found:
        checks.update(each.num_checks_by_reason)
    return AutoscaleStatus(
        mode=next(mode for mode in ("on", "dry-run", "off") if mode in modes),
        held=next((each.held for each in found if each.held is not None), None),
        min_instances=sum(each.min_instances for each in found),
        max_instances=sum(each.max_instances for each in found),
        num_instances=sum(each.num_instances for each in found),
        num_wanted=_sum(each.num_wanted for each in found),
        cold_start_s=_most(each.cold_start_s for each in found),
        num_checks_by_reason=dict(checks),
    )


def _refused(found: Iterable[RefusedStatus]) -> tuple[RefusedStatus, ...]:
    sums: dict[tuple[str, str], RefusedStatus] = {}
    for each in found:
        key = each.reason, each.level
        before = sums.get(key)
        sums[key] = each if before is None else _added(before, each)
    return tuple(sums.values())


def _keys(found: Iterable[KeyStatus]) -> tuple[KeyStatus, ...]:
    sums: dict[str, KeyStatus] = {}
    for each in found:
        before = sums.get(each.key)
        sums[each.key] = each if before is None else _added(before, each)
    return tuple(sums.values())


Summed = TypeVar("Summed", bound=WireModel)


def _added(one: Summed, other: Summed) -> Summed:
    """The first one with the sums of all numbers."""
    sums = {
        name: value + getattr(other, name)
        for name, value in one
        if name.startswith("num_") and isinstance(value, int)
    }
    return one.model_copy(update=sums)


def _level(found: tuple[LevelStatus, ...]) -> LevelStatus:
    return found[0].model_copy(
        update={
            "num_running_reqs": sum(each.num_running_reqs for each in found),
            "num_waiting_reqs": sum(each.num_waiting_reqs for each in found),
            "headroom_blocks": sum(each.headroom_blocks for each in found),
            "ttft_p99_s": _most(each.ttft_p99_s for each in found),
            "goodput": min(
                (each.goodput for each in found if each.goodput is not None), default=None
            ),
        }
    )


def _replays(found: Sequence[ReplaysStatus]) -> ReplaysStatus:
    sums: dict[tuple[str, str], SavedStatus] = {}
    for each in chain(*(replays.saved for replays in found)):
        key = each.way, each.reason
        before = sums.get(key)
        sums[key] = each if before is None else _added(before, each)
    together = found[0]
    for replays in found[1:]:
        together = _added(together, replays)
    ended = sorted(chain(*(each.ended for each in found)), key=lambda each: -each.ended_s)
    return together.model_copy(
        update={
            "under_way": tuple(chain(*(each.under_way for each in found))),
            "ended": tuple(ended),
            "saved": tuple(sums.values()),
        }
    )


def _rolling(found: Iterable[ClusterStatus]) -> RollingReport | None:
    """The rolling restart that goes on, or else the one that began last."""
    known = [each.rolling for each in found if each.rolling is not None]
    return max(known, key=lambda each: (each.state == "going", each.began_s or 0.0), default=None)


def _frontend(found: tuple[FrontendStatus, ...]) -> FrontendStatus:
    """A frontend's process serves all models, and each of its parts says what it knows."""
    worst = max(found, key=lambda each: each.state not in SERVING_STATES)
    levels: dict[str, float] = {}
    for each in found:
        for name, ttft_s in each.ttft_p99_by_level_s.items():
            levels[name] = max(ttft_s, levels.get(name, 0.0))
    return worst.model_copy(
        update={
            "num_live_reqs": sum(each.num_live_reqs for each in found),
            "ttft_p99_s": _most(each.ttft_p99_s for each in found),
            "ttft_p99_by_level_s": levels,
            "tpot_p99_s": _most(each.tpot_p99_s for each in found),
        }
    )


def requests_together(lists: Sequence[RequestList], limit: int) -> RequestList:
    found = [each for one in lists for each in one.requests]
    found.sort(key=listed_at)
    return RequestList(
        requests=tuple(found[:limit]),
        num_matching=sum(each.num_matching for each in lists),
        silent_frontends=tuple(dict.fromkeys(chain(*(each.silent_frontends for each in lists)))),
    )
