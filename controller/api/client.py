"""The typed client of the control API: the command line and the dashboard share it."""

import secrets
from collections.abc import Iterator
from urllib.parse import quote

from pydantic import ValidationError

from controller.api.connection import Answer, ControlConnection
from controller.api.frames import AbsurdFigureError, FrameReader, check_figures
from controller.api.wire.audit import OperationList
from controller.api.wire.explain import Explanation
from controller.api.wire.models import (
    ClusterStatus,
    EventPage,
    MemberLog,
    RequestDetail,
    RequestList,
    RequestName,
    RequestState,
    StopProgress,
    StopRequest,
)
from controller.api.wire.moves import MigrateRequest, MigrationReport
from controller.api.wire.operations import (
    AbortReport,
    AbortRequest,
    DrainList,
    DrainReport,
    DrainRequest,
    EvacuateRequest,
    PriorityReport,
    PriorityRequest,
    RestartRequest,
    ScaleReport,
    ScaleRequest,
    UndrainRequest,
)
from controller.api.wire.rolling import (
    RollingDismissRequest,
    RollingReport,
    RollingRequest,
    RollingStopRequest,
)
from controller.api.wire.settings import SettingChanges, SettingList, SettingsPatch
from controller.api.wire.stream import Frame
from controller.api.wire.traffic import TrafficBatch, TrafficRequest


class ControlClient(ControlConnection):
    """The calls of the control API by name."""

    def status(self) -> ClusterStatus:
        return self._call(ClusterStatus, "GET", "/v1/status")

    def stop(self, request: StopRequest) -> StopProgress:
        return self._call(StopProgress, "POST", "/v1/stop", request)

    def events(self, after: str = "", limit: int = 1000) -> EventPage:
        """The oldest `limit` events after a position; "" begins with the oldest kept."""
        return self._call(EventPage, "GET", "/v1/events", params={"after": after, "limit": limit})

    def requests(
        self,
        instance: str | None = None,
        states: tuple[RequestState, ...] = (),
        limit: int = 1000,
        *,
        movable: bool = False,
    ) -> RequestList:
        """Live requests and those that ended lately, in any state if `states` is empty. `movable`:
        the instances are asked which requests could move now."""
        params: dict[str, str | int | list[str]] = {"limit": limit, "state": list(states)}
        if movable:
            params["movable"] = "true"
        if instance is not None:
            params["instance"] = instance
        return self._call(RequestList, "GET", "/v1/requests", params=params)

    def request(self, reference: str) -> RequestDetail:
        """`reference`: an id, the client's id or a unique beginning. Raises NotFoundError,
        ConflictError."""
        return self._call(RequestDetail, "GET", f"/v1/requests/{quote(reference, safe='')}")

    def whole_id(self, reference: str, *, any_choice: bool = False) -> str:
        """The id by which an order names the request that `request` finds by this reference.
        `any_choice`: of the choices of one client's request any will do. Raises what `request`
        does."""
        path = f"/v1/requests/{quote(reference, safe='')}/id"
        params = {"any_choice": "true"} if any_choice else None
        return self._call(RequestName, "GET", path, params=params).request_id

    def explain(self, reference: str) -> Explanation:
        """Why the request is where it is, step by step. Takes and raises what `request` does."""
        path = f"/v1/requests/{quote(reference, safe='')}/explain"
        return self._call(Explanation, "GET", path)

    def member_log(self, member_id: str, lines: int = 100) -> MemberLog:
        """The last lines of a member's log. Raises NotFoundError where the controller's machine
        has none."""
        path = f"/v1/members/{quote(member_id, safe='')}/log"
        return self._call(MemberLog, "GET", path, params={"lines": lines})

    def answer(self, answer: type[Answer], key: str) -> Answer:
        """What the call with this key was answered; asking changes nothing.

        Raises:
            LlumctlError: whatever that call raised.
            NoSuchCallError: the controller got no such call since it started.
            UnderWayError: the call is not over.
        """
        return self._call(answer, "GET", f"/v1/answers/{quote(key, safe='')}")

    def migrate(self, request_id: str, wanted: MigrateRequest, *, key: str = "") -> MigrationReport:
        """Returns when the move is over, however it ended.

        Raises:
            NotFoundError: there is no such instance, or no request with that whole id.
            RefusedError: the request has ended, or cannot move.
            TimedOutError: the move is not over after `timeout_s`, and goes on.
        """
        path = f"/v1/requests/{quote(request_id, safe='')}/migrate"
        timeout_s = self._timeout_s + wanted.timeout_s
        return self._call(MigrationReport, "POST", path, wanted, timeout_s=timeout_s, key=key)

    def drain(self, instance_id: str, wanted: DrainRequest, *, key: str = "") -> DrainReport:
        """Returns when the drain has begun; it goes on without this client."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/drain"
        return self._once(DrainReport, path, wanted, key)

    def restart(self, instance_id: str, wanted: RestartRequest, *, key: str = "") -> DrainReport:
        """Returns when the instance begins to be emptied, or with `now` when its process is to end.
        It goes on without this client."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/restart"
        return self._once(DrainReport, path, wanted, key)

    def evacuate(self, instance_id: str, wanted: EvacuateRequest, *, key: str = "") -> DrainReport:
        """Returns when it has begun; it goes on without this client."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/evacuate"
        return self._once(DrainReport, path, wanted, key)

    def undrain(self, instance_id: str, wanted: UndrainRequest, *, key: str = "") -> DrainReport:
        """Raises NotDrainingError: the instance is not being drained."""
        path = f"/v1/instances/{quote(instance_id, safe='')}/undrain"
        return self._call(DrainReport, "POST", path, wanted, key=key)

    def rolling(self) -> RollingReport:
        """The last rolling restart; its state is `none` if there was none."""
        return self._call(RollingReport, "GET", "/v1/rolling-restart")

    def begin_rolling(self, wanted: RollingRequest, *, key: str = "") -> RollingReport:
        """Returns when it has begun; it goes on without this client."""
        return self._once(RollingReport, "/v1/rolling-restart", wanted, key)

    def dismiss_rolling(self, wanted: RollingDismissRequest) -> RollingReport:
        """The last rolling restart is not shown any more. Raises RefusedError: it goes on."""
        return self._call(RollingReport, "POST", "/v1/rolling-restart/dismiss", wanted)

    def stop_rolling(self, wanted: RollingStopRequest, *, key: str = "") -> RollingReport:
        """Raises NotRollingError: no rolling restart goes on."""
        return self._call(RollingReport, "POST", "/v1/rolling-restart/stop", wanted, key=key)

    def drains(self) -> DrainList:
        return self._call(DrainList, "GET", "/v1/drains")

    def scale(self, wanted: ScaleRequest, *, key: str = "") -> ScaleReport:
        """Returns when the scaling has begun: instances start and leave in the background."""
        return self._call(ScaleReport, "POST", "/v1/scale", wanted, key=key, repeatable=not key)

    def set_priority(
        self, request_id: str, wanted: PriorityRequest, *, key: str = ""
    ) -> PriorityReport:
        path = f"/v1/requests/{quote(request_id, safe='')}/priority"
        return self._call(PriorityReport, "POST", path, wanted, key=key)

    def abort(self, request_id: str, wanted: AbortRequest, *, key: str = "") -> AbortReport:
        """Returns when the request is over. Raises RefusedError if it was already."""
        path = f"/v1/requests/{quote(request_id, safe='')}/abort"
        return self._once(AbortReport, path, wanted, key)

    def operations(self, limit: int = 20) -> OperationList:
        """What operators did lately, the newest first, and what takes each back."""
        params = {"limit": limit}
        return self._call(OperationList, "GET", "/v1/operations", params=params)

    def settings(self) -> SettingList:
        return self._call(SettingList, "GET", "/v1/settings")

    def change_settings(self, patch: SettingsPatch, *, key: str = "") -> SettingChanges:
        path = "/v1/settings"
        return self._call(SettingChanges, "PATCH", path, patch, key=key, repeatable=not key)

    def watch(
        self, *, after: str = "latest", status_every_s: float | None = 1.0, events: bool = True
    ) -> Iterator[Frame]:
        """Yields frames as they come, for ever: statuses every `status_every_s` (None: none) and
        events after a position ("latest": only new ones, "": from the oldest kept).

        Raises:
            UnreachableError: nothing, not even a ping, came for 5 s, the stream ended, it is no
                stream of llumctl's, or has absurd figures. Of an event that has some, and of one
                that cannot be read, a gap is told instead.
        """
        params: dict[str, str | float] = {"after": after, "events": str(events).lower()}
        if status_every_s is not None:
            params["status_every_s"] = status_every_s
        reader = FrameReader()
        for line in self._lines("GET", "/v1/watch", params=params):
            if (frame := self._frame(reader, line)) is not None:
                yield frame

    def traffic(self, wanted: TrafficRequest) -> Iterator[TrafficBatch]:
        """Records the traffic from now on, for ever: yields what has ended, at least once a second.

        Raises:
            RefusedError: another recording is on.
            UnreachableError: nothing came for 5 s, or the stream ended or is none of llumctl's.
        """
        for line in self._lines("POST", "/v1/traffic", body=wanted):
            try:
                check_figures(line.encode())
                batch = TrafficBatch.model_validate_json(line, strict=True)
            except AbsurdFigureError as error:
                raise self._bad_answer(error) from error
            except ValidationError as error:
                raise self._stranger() from error
            self._check_schema(batch.schema_version)
            yield batch

    def _once(
        self,
        answer: type[Answer],
        path: str,
        wanted: DrainRequest | RestartRequest | EvacuateRequest | AbortRequest | RollingRequest,
        key: str,
    ) -> Answer:
        """Calls what has another effect the second time: with a key of its own, unless the caller
        gave one, and then a lost answer is asked for again."""
        once = key or ("" if wanted.dry_run else secrets.token_hex(8))
        again = bool(once) and not key
        return self._call(answer, "POST", path, wanted, key=once, repeatable=again)

    def _frame(self, reader: FrameReader, line: str) -> Frame | None:
        try:
            return reader.read(line.encode())
        except AbsurdFigureError as error:
            raise self._bad_answer(error) from error
        except ValueError as error:
            raise self._stranger() from error
