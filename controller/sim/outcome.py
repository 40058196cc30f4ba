"""What a run came to: a row per request that ended, and what was sampled over time."""

from array import array
from dataclasses import dataclass, field

from controller.sim.request_run import RequestRun

NAMES = (
    "arrival_s",
    "ttft_s",
    "tpot_s",
    "e2e_latency_s",
    "longest_pause_s",
    "preemption_loss_s",
    "num_evictions",
    "num_moves",
    "num_overtaking",
    "overtaken_s",
    "rank",
    "num_prompt_tokens",
    "num_output_tokens",
)


class Rows:
    """One array of floats per name: 1,000,000 requests take 104 MB."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in NAMES}

    def __len__(self) -> int:
        return len(self.columns["arrival_s"])

    def add(self, run: RequestRun) -> None:
        """A request that has finished."""
        request = run.request
        assert run.first_token_s is not None
        assert run.finished_s is not None
        arrival_s, num_outputs = request.arrival_time_s, request.max_output_tokens
        decode_s = run.finished_s - run.first_token_s
        values = (
            arrival_s,
            run.first_token_s - arrival_s,
            decode_s / (num_outputs - 1) if num_outputs > 1 else 0.0,
            run.finished_s - arrival_s,
            run.longest_pause_s,
            run.loss_s,
            run.num_evictions,
            len(run.moves),
            run.num_overtaking,
            run.overtaken_s,
            run.traced.rank,
            request.num_prompt_tokens,
            num_outputs,
        )
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)


@dataclass(slots=True)
class Sampled:
    """Averages over time; one look each `sample_s`. Shares are of all KV blocks. `num_instances`
    are those that cost: those that start, and those that drain, among them."""

    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    num_waiting: "array[int]" = field(default_factory=lambda: array("q"))
    num_running: "array[int]" = field(default_factory=lambda: array("q"))
    num_instances: "array[int]" = field(default_factory=lambda: array("q"))
    fragmentation: "array[float]" = field(default_factory=lambda: array("d"))
    used_share: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class Outcome:
    rows: Rows = field(default_factory=Rows)
    sampled: Sampled = field(default_factory=Sampled)
    num_failed: int = 0
    num_moved: int = 0
    num_failed_moves: dict[str, int] = field(default_factory=dict)
    downtimes_s: list[float] = field(default_factory=list)
    num_launched: int = 0
    """Instances that auto-scaling launched."""
    num_removed: int = 0
    num_steps: int = 0
    busy_s: float = 0.0
    """What the steps of all instances took together."""
    duration_s: float = 0.0
    """Virtual, until the last request ended."""
