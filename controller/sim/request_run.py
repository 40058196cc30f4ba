"""One request in a run: what its client asked for, and what the client has seen so far."""

from controller.model.engine_state import ModelRequest
from controller.sim.workload.request import TraceRequest


class RequestRun:
    """Times are virtual, in seconds, and None before they have come. `decoding_since_s` is None
    unless the request decodes: it then is the time of the token up to which `longest_pause_s` is
    known. `traced` is what the client sent, `request` what engines get of it: a policy may ignore
    its rank."""

    __slots__ = (
        "changed_over",
        "decoding_since_s",
        "downtimes_s",
        "evicted_s",
        "finished_s",
        "first_token_s",
        "hop",
        "instance_id",
        "last_token_s",
        "longest_pause_s",
        "loss_s",
        "moves",
        "num_evictions",
        "num_overtaking",
        "overtaken_s",
        "overtaken_since_s",
        "request",
        "traced",
    )

    def __init__(self, request: ModelRequest, traced: TraceRequest) -> None:
        self.request = request
        self.traced = traced
        self.instance_id = ""
        self.hop = 0
        """In which it runs, by the count of its moves' machines."""
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.finished_s: float | None = None
        self.decoding_since_s: float | None = None
        self.evicted_s: float | None = None
        self.longest_pause_s = 0.0
        self.loss_s = 0.0
        self.num_evictions = 0
        self.num_overtaking = 0
        """How many later ones of at most its rank were dispatched while it was held."""
        self.overtaken_since_s: float | None = None
        self.overtaken_s = 0.0
        """From the first of these until its own dispatch."""
        self.moves: list[tuple[str, float]] = []
        """The instances that the request left, and when."""
        self.changed_over = False
        """It moved while it ran, and has not got a token since."""
        self.downtimes_s: list[float] = []
        """Of each such move, from the last token before to the first one after it."""

    def overtaken(self, time_s: float) -> None:
        self.num_overtaking += 1
        if self.overtaken_since_s is None:
            self.overtaken_since_s = time_s

    def dispatched(self, time_s: float) -> None:
        if self.overtaken_since_s is not None:
            self.overtaken_s = time_s - self.overtaken_since_s

    def token(self, time_s: float) -> None:
        """A token that followed on something else than a plain decode step."""
        if self.first_token_s is None:
            self.first_token_s = time_s
        if self.last_token_s is not None:
            pause_s = time_s - self.last_token_s
            self.longest_pause_s = max(self.longest_pause_s, pause_s)
            if self.changed_over:
                self.downtimes_s.append(pause_s)
        self.changed_over = False
        if self.evicted_s is not None:
            self.loss_s += time_s - self.evicted_s
            self.evicted_s = None
        self.last_token_s = time_s

    def evict(self, time_s: float) -> None:
        self.changed_over = False  # from here on the eviction is what it waits for
        self.num_evictions += 1
        if self.evicted_s is None:
            self.evicted_s = time_s
