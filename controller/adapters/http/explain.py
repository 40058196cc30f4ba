"""`explain` on the control API: what happened to a request, and what it waits for now."""

import time
from collections.abc import Sequence

from controller.adapters.http.request_orders import held_blocks
from controller.adapters.http.requests import find_record, place_of, refusals_of
from controller.adapters.http.views.record_view import event_model, request_model
from controller.api.explain import explain, held_back
from controller.api.wire.explain import Explanation, Waiting
from controller.core.admission.waiting_reasons import QueueReason, queue_reason
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import why
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestRecord, RequestState
from controller.runtime.controller.cluster import ControllerProcess

_WHILE_HELD = frozenset({EventKind.INSTANCE_KEPT, EventKind.OVERTAKEN, EventKind.ROOM_NOT_MADE})
_QUEUE_WORDS = {
    QueueReason.BATCH_FULL: "as many requests run there as the batch has places",
    QueueReason.MEMORY: "it needs more blocks than are free in all instances together",
    QueueReason.FRAGMENTED: "it needs more blocks than are free there; all together have enough",
    QueueReason.NEXT_STEP: "there is room: its turn comes within the next steps",
}


async def explain_request(controller: ControllerProcess, reference: str) -> Explanation:
    """Explains a request that lives or that its frontend still remembers. Raises ApiError."""
    record = await find_record(controller, reference)
    refusal = (await refusals_of(controller, (record,))).get(record.request_id)
    history = [event_model(event) for event in _history(controller, record)]
    held = place_of(controller.scheduler.held_view(controller.now_s()), record)
    return Explanation(
        request=request_model(record, time.time(), refusal, held),
        steps=explain(history, record.num_forgotten),
        waiting=held_back(held) if held is not None else _waiting(controller, record),
        why_not_movable=why(refusal) if refusal else "",
        could_move_to=_could_move_to(controller, record) if refusal == "" else None,
    )


def _history(controller: ControllerProcess, record: RequestRecord) -> Sequence[LoggedEvent]:
    """What the request's frontend knows and, with late binding, what the controller put on record
    while it held the request. A frontend that forgot events in the middle has the whole say."""
    if controller.scheduler.placement is None or record.num_forgotten:
        return record.history
    own = controller.journal.log.about(record.request_id, _WHILE_HELD)
    return sorted((*record.history, *own), key=lambda event: event.time_s)


def _waiting(controller: ControllerProcess, record: RequestRecord) -> Waiting | None:
    if record.state is RequestState.DISPATCHING:
        return Waiting(code="dispatching", why="the controller is being asked for an instance")
    if record.state not in (RequestState.WAITING, RequestState.EVICTED):
        return None
    snapshot = _snapshot(controller, record)
    if snapshot is None or snapshot.queue_head is None:
        return None  # the instance has not reported the request yet
    head = snapshot.queue_head
    if head.request_id != record.request_id:
        return Waiting(
            code="behind",
            why=f"others are before it in the queue of {snapshot.instance_id}",
            figures={"num_waiting_reqs": snapshot.num_queued},
        )
    cluster = controller.scheduler.schedulable_snapshots(controller.now_s())
    reason = queue_reason(snapshot, cluster)
    assert reason is not None
    return Waiting(
        code=str(reason),
        why=_QUEUE_WORDS[reason],
        figures={
            "needed_blocks": head.demand_blocks,
            "free_blocks": max(0, snapshot.admissible_blocks),
            "cluster_free_blocks": sum(max(0, each.admissible_blocks) for each in cluster),
            "num_running_reqs": snapshot.num_running,
        },
    )


def _could_move_to(controller: ControllerProcess, record: RequestRecord) -> str | None:
    snapshot = _snapshot(controller, record)
    if snapshot is None:
        return None
    num_blocks = held_blocks(record, snapshot.block_size)
    return controller.operator_moves.choose(snapshot.instance_id, num_blocks)


def _snapshot(controller: ControllerProcess, record: RequestRecord) -> InstanceSnapshot | None:
    """The last report of the request's instance, if that process still runs."""
    known = controller.scheduler.instances.get(record.instance_id or "")
    return None if known is None or known.incarnation != record.incarnation else known.snapshot
