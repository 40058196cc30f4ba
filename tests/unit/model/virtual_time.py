"""Requests run by one engine model in virtual time, and what each of them sees."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.model.engine_model import EngineModel
from controller.model.engine_state import ModelRequest


@dataclass(slots=True)
class RequestTimes:
    """When the tokens of one request came, in seconds of virtual time."""

    arrival_time_s: float
    token_times_s: list[float] = field(default_factory=list)
    finish_time_s: float | None = None
    num_evictions: int = 0

    @property
    def ttft_s(self) -> float:
        """Raises IndexError before the first token."""
        return self.token_times_s[0] - self.arrival_time_s


def run(model: EngineModel, requests: Iterable[ModelRequest]) -> dict[str, RequestTimes]:
    """Runs `model` until everything is done, from time 0.

    A request is added between two steps, as soon as its arrival time has come; those that
    arrive at once are added in the given order. Tokens come at the end of their step.

    Raises:
        ValueError: a request can never run; the model has run up to its arrival.
    """
    coming = sorted(requests, key=lambda r: r.arrival_time_s)
    times = {r.request_id: RequestTimes(r.arrival_time_s) for r in coming}
    now_s = 0.0
    num_added = 0
    while num_added < len(coming) or model.has_work():
        if not model.has_work():
            now_s = max(now_s, coming[num_added].arrival_time_s)
        while num_added < len(coming) and coming[num_added].arrival_time_s <= now_s:
            model.add(coming[num_added])
            num_added += 1
        step = model.step()
        now_s += step.duration_s
        for request_id in step.evicted:
            times[request_id].num_evictions += 1
        for request_id in step.emitted:
            times[request_id].token_times_s.append(now_s)
        for request_id in step.finished:
            times[request_id].finish_time_s = now_s
    return times
