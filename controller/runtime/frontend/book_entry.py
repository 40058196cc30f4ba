"""A request in a frontend's book: what is counted of it, and what happened to it."""

from collections import deque
from dataclasses import dataclass, field

from controller.core.record.event_log import LoggedEvent, Number
from controller.core.record.request_record import RequestRecord, RequestState

MAX_HISTORY = 64
"""Events kept per request: the first ones say where it came from, the last where it is, so events
in the middle are dropped."""


@dataclass(slots=True)
class BookEntry:
    request_id: str
    client_request_id: str
    parent_id: str | None
    level: str
    arrival_time_s: float
    num_prompt_tokens: int
    rank: int = 0
    state: RequestState = RequestState.DISPATCHING
    instance_id: str | None = None
    incarnation: int | None = None
    num_output_tokens: int = 0
    num_evictions: int = 0
    num_moves: int = 0
    num_replays: int = 0
    not_replayable: str = ""
    dispatched: bool = False
    first_token_time_s: float | None = None
    end_time_s: float | None = None
    finish_reason: str | None = None
    beginning: list[LoggedEvent] = field(default_factory=list)
    recent: deque[LoggedEvent] = field(default_factory=lambda: deque(maxlen=MAX_HISTORY // 2))
    num_forgotten: int = 0

    def remember(self, event: LoggedEvent) -> None:
        if len(self.beginning) < MAX_HISTORY // 2:
            self.beginning.append(event)
        else:
            self.num_forgotten += len(self.recent) == self.recent.maxlen
            self.recent.append(event)

    def record(self, frontend_id: str, *, history: bool) -> RequestRecord:
        return RequestRecord(
            request_id=self.request_id,
            client_request_id=self.client_request_id,
            parent_id=self.parent_id,
            frontend_id=frontend_id,
            level=self.level,
            state=self.state,
            instance_id=self.instance_id,
            incarnation=self.incarnation,
            arrival_time_s=self.arrival_time_s,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_evictions=self.num_evictions,
            first_token_time_s=self.first_token_time_s,
            end_time_s=self.end_time_s,
            finish_reason=self.finish_reason,
            num_moves=self.num_moves,
            num_replays=self.num_replays,
            not_replayable=self.not_replayable,
            rank=self.rank,
            history=(*self.beginning, *self.recent) if history else (),
            num_forgotten=self.num_forgotten,
        )

    def outcome(self) -> dict[str, Number]:
        """The figures of a request that has ended."""
        assert self.end_time_s is not None
        first_s = self.first_token_time_s
        return {
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": self.num_output_tokens,
            "num_evictions": self.num_evictions,
            "ttft_s": None if first_s is None else round(first_s - self.arrival_time_s, 4),
            "e2e_latency_s": round(self.end_time_s - self.arrival_time_s, 4),
        }
