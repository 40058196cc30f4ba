"""A request that runs on i-0 of a listener, and a source that says what the test wants."""

import asyncio
from typing import Any

from controller.core.migration.move_records import MovePlan, MoveRecord, StageRecord
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import EventsReported, Message
from controller.runtime.messages.move_messages import (
    MoveAnswered,
    MoveAsked,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)
from tests.unit.control_support import Listener

PLAN = MovePlan(num_tokens=153, num_blocks=10, num_bytes=4096, expected_copy_time_s=0.0125)


def serve_running_request(listener: Listener, *, num_choices: int = 1) -> RequestBook:
    """r-1 (r-2, ...), all of the client's cmpl-1, run on i-0."""
    book = RequestBook("f-0", {0: "normal"}, on_event=lambda event: _log(listener, event))
    parent = "cmpl-1" if num_choices > 1 else None
    for number in range(1, num_choices + 1):
        request_id = f"r-{number}"
        book.arrived(
            DispatchRequested(request_id, "f-0", 120, 0, 1_700_000_000.0), "cmpl-1", parent
        )
        book.dispatched(Dispatch(request_id, "f-0", "i-0", 1, 1, (("i-0", 520.0),)))
        admitted = LoggedEvent(
            EventKind.ADMITTED, 5.0, "step-i-0-1-2", "", "i-0", 1, request_id=request_id
        )
        book.happened(admitted)
        book.emitted(request_id, 33, None)
    listener.cluster.mailbox.engine_state["mem://f-0"] = book
    return book


class Source:
    """i-0: `ends` are (outcome, code) of its next moves, by default it migrates."""

    def __init__(self, listener: Listener, book: RequestBook) -> None:
        self.ends: list[tuple[str, str]] = []
        self.refusal = ""
        """Why nothing can be begun; empty if it can."""
        self.refusals: dict[str, str] = {}
        self.plan = PLAN
        self.silent = False
        self.moved: list[MoveAsked] = []
        self._book = book
        listener.cluster.mailbox.answers["mem://i-0"] = self._answer

    def _answer(self, message: Any) -> Message | None:
        if self.silent:
            return None
        if isinstance(message, MoveRefusalAsked):
            found = tuple((i, self.refusals[i]) for i in message.request_ids if i in self.refusals)
            return MoveRefusalsAnswered(message.query_id, found)
        if not isinstance(message, MoveAsked):
            return None
        if self.refusal:
            return MoveAnswered(message.query_id, self.refusal)
        if message.dry_run:
            return MoveAnswered(message.query_id, "", self.plan)
        self.moved.append(message)
        outcome, code = self.ends.pop(0) if self.ends else ("migrated", "")
        record = record_of(message, outcome, code)
        if outcome == "migrated":
            self._book.moved(message.order.request_id, record.destination_id, 1)
            asyncio.get_running_loop().call_soon(self._book.move_timed, record, 0.02, 0.0244)
        return MoveAnswered(message.query_id, code, record=record)


def record_of(asked: MoveAsked, outcome: str, code: str) -> MoveRecord:
    stages = (StageRecord(9, 3686, 0.01), StageRecord(1, 410, 0.002))
    destination = asked.order.destination.instance_id
    ids = (asked.order.migration_id, asked.order.request_id, "i-0", destination)
    return MoveRecord(*ids, asked.order.reason, outcome, code, 153, 2, 0.05, stages)


def _log(listener: Listener, event: LoggedEvent) -> None:
    listener.cluster.mailbox.say(encode(EventsReported("f-0", 1, 0, (event,))), [])
