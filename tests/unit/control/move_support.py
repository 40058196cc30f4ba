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
from tests.unit.control.control_support import Listener

ARRIVAL_S = 1_700_000_000.0
PLAN = MovePlan(num_tokens=153, num_blocks=10, num_bytes=4096, expected_copy_time_s=0.0125)


def new_book(listener: Listener) -> RequestBook:
    """The requests of f-0, about which it answers from now on."""

    def log(event: LoggedEvent) -> None:
        listener.cluster.mailbox.say(encode(EventsReported("f-0", 1, 0, (event,))), [])

    book = RequestBook("f-0", {0: "normal", 1: "high"}, on_event=log)
    listener.cluster.mailbox.engine_state["mem://f-0"] = book
    return book


def arrive(
    book: RequestBook,
    request_id: str,
    client_id: str = "cmpl-2",
    parent_id: str | None = None,
    after_s: float = 0.0,
) -> None:
    request = DispatchRequested(request_id, "f-0", 120, 0, ARRIVAL_S + after_s)
    book.arrived(request, client_id, parent_id)


def serve_running_request(listener: Listener, *, num_choices: int = 1) -> RequestBook:
    """r-1 (r-2, ...), all of the client's cmpl-1, run on i-0."""
    book = new_book(listener)
    for number in range(1, num_choices + 1):
        request_id = f"r-{number}"
        arrive(book, request_id, "cmpl-1", "cmpl-1" if num_choices > 1 else None)
        book.dispatched(Dispatch(request_id, "f-0", "i-0", 1, 1, (("i-0", 520.0),)))
        admitted = LoggedEvent(
            EventKind.ADMITTED, 5.0, "step-i-0-1-2", "", "i-0", 1, request_id=request_id
        )
        book.happened(admitted)
        book.emitted(request_id, 33, None)
    return book


class Source:
    """All instances: `ends` are (outcome, code) of their next moves; by default they migrate."""

    def __init__(self, listener: Listener, book: RequestBook) -> None:
        self.ends: list[tuple[str, str]] = []
        self.refusal = ""
        """Why nothing can be begun; empty if it can."""
        self.refusals: dict[str, str] = {}
        self.plan = PLAN
        self.silent = False
        self.moved: list[MoveAsked] = []
        self._book = book
        for member in listener.cluster.controller.roster.instances():
            listener.cluster.mailbox.answers[member.address] = self._answer

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
        request = self._book.find(message.order.request_id)
        assert request is not None
        record = record_of(message, str(request.instance_id), outcome, code)
        if outcome == "migrated":
            self._book.moved(message.order.request_id, record.destination_id, 1)
            asyncio.get_running_loop().call_soon(self._book.move_timed, record, 0.02, 0.0244)
        return MoveAnswered(message.query_id, code, record=record)


def record_of(asked: MoveAsked, source_id: str, outcome: str, code: str) -> MoveRecord:
    stages = (StageRecord(9, 3686, 0.01), StageRecord(1, 410, 0.002))
    destination = asked.order.destination.instance_id
    ids = (asked.order.migration_id, asked.order.request_id, source_id, destination)
    return MoveRecord(*ids, asked.order.reason, outcome, code, 153, 2, 0.05, stages)
