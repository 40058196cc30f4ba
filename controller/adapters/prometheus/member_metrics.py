"""Which fields of the wire status become which metrics of a member.

Names and units are those of docs/metrics.md, section Prometheus.
"""

from typing import NamedTuple


class Figure(NamedTuple):
    name: str
    """The metric's name, without `llumctl_instance_` or `llumctl_frontend_`, and `_total`."""
    field: str
    """A field of InstanceStatus or FrontendStatus."""
    help: str


_MEMBER_GAUGES = (
    Figure("ttft_p99_seconds", "ttft_p99_s", "p99 of the time to first token, last minute"),
    Figure("age_seconds", "age_s", "Since it was last heard of"),
    Figure("uptime_seconds", "up_s", "Since its process began"),
)
_MEMBER_COUNTERS = (
    Figure("restarts", "num_restarts", "Processes after the first that this controller saw"),
)

INSTANCE_GAUGES = (
    Figure("freeness_steps", "freeness_steps", "Decode steps until memory is full"),
    Figure("virtual_usage_blocks", "virtual_usage_blocks", "KV blocks used or spoken for"),
    Figure("headroom_blocks", "headroom_blocks", "KV blocks kept free beside higher levels"),
    Figure("block_size_tokens", "block_size", "Tokens that a KV block holds"),
    Figure("total_blocks", "num_total_blocks", "KV blocks in all"),
    Figure("free_blocks", "num_free_blocks", "KV blocks that no request holds"),
    Figure("watermark_blocks", "watermark_blocks", "KV blocks kept back from new requests"),
    Figure("kv_cache_usage_ratio", "kv_cache_usage", "Share of the KV blocks in use"),
    Figure("max_running_requests", "max_running_reqs", "Places in the engine's batch"),
    Figure("running_requests", "num_running_reqs", "Requests in the engine's batch"),
    Figure("waiting_requests", "num_waiting_reqs", "Requests in the engine's queue"),
    Figure("unreported_requests", "num_unreported_reqs", "Dispatched, but in no status yet"),
    Figure("migrations_in_requests", "num_moves_in", "Requests that are being moved to it"),
    Figure("migrations_out_requests", "num_moves_out", "Requests that are being moved from it"),
    Figure("replays_in_requests", "num_replays_in", "Lost with others, and to go on there"),
    Figure("replays_out_requests", "num_replays_out", "Lost with it, without a token since"),
    Figure("step_seconds", "step_time_s", "Duration of the last engine step"),
    Figure("cpu_cores", "cpu_cores", "Cores that its process kept busy over the last second"),
    *_MEMBER_GAUGES,
)
INSTANCE_LEVEL_GAUGES = (
    Figure("running_requests", "num_running_by_level", "Of a priority level in the engine's batch"),
    Figure("waiting_requests", "num_waiting_by_level", "Of a priority level in its queue"),
    Figure("headroom_blocks", "headroom_by_level_blocks", "KV blocks kept free beside a level"),
    Figure("ttft_p99_seconds", "ttft_p99_by_level_s", "p99 of the time to first token of a level"),
)
"""Each value of the field's dictionary has its level as a label."""
INSTANCE_COUNTERS = (
    Figure("evictions", "num_evictions", "Requests that lost their blocks, in this process"),
    Figure("steps", "num_steps", "Engine steps of this process"),
    Figure("busy_seconds", "busy_s", "What the engine steps of this process took"),
    *_MEMBER_COUNTERS,
)
FRONTEND_GAUGES = (
    Figure("live_requests", "num_live_reqs", "Requests asked for or running"),
    Figure("tpot_p99_seconds", "tpot_p99_s", "p99 of the time per output token, last minute"),
    *_MEMBER_GAUGES,
)
FRONTEND_COUNTERS = _MEMBER_COUNTERS
