"""The typed client of the control API: the command line and the dashboard share it."""

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from pydantic import ValidationError

from controller.api.connection import Answer, ControlConnection
from controller.api.frames import AbsurdFigureError, FrameReader, check_figures
from controller.api.operations.on_cluster import SettingList
from controller.api.operations.on_instances import DrainList
from controller.api.operations.table import OperationList
from controller.api.wire.requests import (
    EventPage,
    Explanation,
    RequestDetail,
    RequestList,
    RequestName,
    RequestState,
)
from controller.api.wire.status import ClusterStatus, RollingReport, StopProgress, StopRequest
from controller.api.wire.stream import Frame, MemberLog, TrafficBatch, TrafficRequest

if TYPE_CHECKING:  # a command that only looks needs no orders
    from controller.api.operations.order import Order, Report, Wanted


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

    def send(self, order: "Order[Wanted, Report]", *, key: str = "") -> "Report":
        """Gives an order, or asks for its dry run. Returns when it is carried out, or has begun if
        it goes on without this client; a move is over then, however it ended.

        One whose answer is lost is sent again where that has no other effect; a caller that gave
        the key asks for the answer instead (`answer`).

        Raises:
            NotFoundError: there is no such instance, or no request with that whole id.
            RefusedError: it cannot be carried out now, or would change nothing.
            ConflictError: the cluster's spec has another revision.
            TimedOutError: a move is not over in its time, and goes on.
        """
        once = key
        if order.keyed and not key and not getattr(order.wanted, "dry_run", False):
            once = secrets.token_hex(8)
        return self._call(
            order.report,
            order.method,
            order.url,
            order.wanted,
            timeout_s=self._timeout_s + order.takes_s,
            key=once,
            repeatable=not key and (order.repeatable or bool(once)),
        )

    def rolling(self) -> RollingReport:
        """The last rolling restart; its state is `none` if there was none."""
        return self._call(RollingReport, "GET", "/v1/rolling-restart")

    def drains(self) -> DrainList:
        return self._call(DrainList, "GET", "/v1/drains")

    def operations(self, limit: int = 20) -> OperationList:
        """What operators did lately, the newest first, and what takes each back."""
        params = {"limit": limit}
        return self._call(OperationList, "GET", "/v1/operations", params=params)

    def settings(self) -> SettingList:
        return self._call(SettingList, "GET", "/v1/settings")

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

    def _frame(self, reader: FrameReader, line: str) -> Frame | None:
        try:
            return reader.read(line.encode())
        except AbsurdFigureError as error:
            raise self._bad_answer(error) from error
        except ValueError as error:
            raise self._stranger() from error
