"""Made-up lives of requests."""

from typing import Any

from controller.api.wire.requests import (
    Considered,
    DispatchStep,
    Explanation,
    MoveStage,
    MoveStep,
    NotMovedStep,
    OtherStep,
    RequestState,
    RequestStatus,
    Step,
    Waiting,
)
from tools.synthetic_cluster import START_S

REQUEST_ID = "cmpl-8d36e06fa6a667f4-0-7c3a177d4"
SCORES = tuple(
    Considered(instance_id=f"i-{index}", figure=figure)
    for index, figure in ((3, 521.0), (1, 480.2), (2, 96.0), (0, None))
)
FREENESS = (Considered(instance_id="i-1", figure=640.0), Considered(instance_id="i-2", figure=88.0))


def other(at_s: float, what: str, instance_id: str = "i-3", **fields: Any) -> OtherStep:
    return OtherStep(time_s=START_S + at_s, what=what, instance_id=instance_id, **fields)


MOVE: dict[str, Any] = {
    "from_instance_id": "i-3",
    "to_instance_id": "i-1",
    "freeness_steps": -196.0,
    "candidates": FREENESS,
}
EVENTFUL: tuple[Step, ...] = (
    DispatchStep(
        time_s=START_S + 0.002,
        instance_id="i-3",
        by="controller",
        policy="llumnix",
        candidates=SCORES,
        num_considered=16,
    ),
    other(1.2, "admitted", figures={"num_tokens": 512}),
    other(4.0, "evicted", reason="memory"),
    NotMovedStep(time_s=START_S + 4.5, code="waits", why="it waits, and has no blocks", **MOVE),
    other(6.0, "admitted"),
    MoveStep(
        time_s=START_S + 9.0,
        kind="migrated",
        reason="balance",
        stages=(
            MoveStage(num_blocks=64, num_bytes=33_554_432, copy_time_s=0.12),
            MoveStage(num_blocks=2, num_bytes=1_048_576, copy_time_s=0.004),
        ),
        num_bytes=34_603_008,
        downtime_s=0.024,
        **MOVE,
    ),
)


def request(**fields: Any) -> RequestStatus:
    known: dict[str, Any] = {
        "id": REQUEST_ID,
        "client_id": "cmpl-8d36e06fa6a667f4",
        "state": RequestState.RUNNING,
        "level": "high",
        "frontend_id": "f-0",
        "instance_id": "i-1",
        "arrival_time_s": START_S,
        "age_s": 12.0,
        "ttft_s": 1.5,
        "num_prompt_tokens": 512,
        "num_output_tokens": 240,
        "num_evictions": 1,
        "num_moves": 1,
        "movable": True,
    }
    return RequestStatus(**(known | fields))


def eventful() -> Explanation:
    """A request that waited, ran, was evicted, ran again, moved, and still runs."""
    return Explanation(request=request(), steps=EVENTFUL, could_move_to="i-2")


def ended() -> Explanation:
    """The same request, after its end."""
    end = other(11.0, "finished", "i-1", reason="stop")
    over = request(state=RequestState.FINISHED, age_s=11.0, movable=None, finish_reason="stop")
    return Explanation(request=over, steps=(*EVENTFUL, end))


def waiting() -> Explanation:
    waits = request(state=RequestState.WAITING, ttft_s=None, age_s=3.0, movable=False)
    why = Waiting(code="memory", why="its instance lacks blocks", figures={"demand_blocks": 280})
    return Explanation(
        request=waits, steps=EVENTFUL[:1], waiting=why, why_not_movable="it has no blocks yet"
    )
