"""Wire models of the history of a cluster.

The compatibility rules are those of `controller.api.wire`; docs/metrics.md says what the figures
mean. A column has a value for each point; null: not known.
"""

from pydantic import Field

from controller.api.wire import AnswerModel, WireModel

Column = tuple[float | None, ...]


class LevelHistory(WireModel):
    """The requests of a level. The percentiles are those of the last minute before each point, or
    of the point's own time if that is longer."""

    num_running_reqs: Column = ()
    num_waiting_reqs: Column = ()
    ttft_p50_s: Column = ()
    ttft_p99_s: Column = ()
    tpot_p99_s: Column = ()


class HistoryReport(AnswerModel):
    """The history as columns. `time_s`: when each point ends, in seconds since the epoch, and
    `span_s` for how long its time is. `cluster`: the gauges and counts of the cluster by name:
    gauges are means over the point's time, counts are sums; `tokens_per_s` and
    `tokens_per_instance_hour` are made of them. `instances`: the figures of each
    instance, if they were asked for."""

    time_s: Column = ()
    span_s: Column = ()
    cluster: dict[str, Column] = Field(default_factory=dict)
    levels: dict[str, LevelHistory] = Field(default_factory=dict)
    instances: dict[str, dict[str, Column]] = Field(default_factory=dict)
