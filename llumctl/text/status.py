"""A cluster's status as columns of text. A dash stands for what is not known yet."""

from collections.abc import Callable

from controller.api.settings.settings import ConsoleTable
from controller.api.text import autoscale_words, rolling_words, status_words
from controller.api.text.alarms import Alarm, alarms
from controller.api.text.quantities import duration, latency, printable
from controller.api.text.status_words import free_blocks, head_wait_s, ranked, state_word
from controller.api.wire.status import ClusterStatus, FrontendStatus, InstanceState, InstanceStatus
from llumctl import meant
from llumctl.text import output, status_details

MAX_ALARMS = 5
SAVED = "saved from instances that left or died since the controller started"
DEFAULT_LIMITS = ConsoleTable()

Column = tuple[str, Callable[[InstanceStatus], str]]


def render(
    status: ClusterStatus, *, wide: bool, colours: bool, limits: ConsoleTable = DEFAULT_LIMITS
) -> str:
    """A line about the cluster, one about its levels, one about what the controller holds, one
    about auto-scaling, one about what it refused lately, one about requests that were lost with an
    instance lately, one about how requests were saved, one for each alarm, and its instances. How
    far drains are, and for whom instances are kept, is shown while there are any. If wide:
    frontends, levels, drains, queue heads, moves and replays too."""
    columns = WIDE_COLUMNS if wide else COLUMNS
    if any(item.kept_for for item in status.instances):
        columns = (*columns[:2], ("KEPT-FOR", _kept_for), *columns[2:])
    if any(item.drain for item in status.instances):
        columns = (*columns[:2], ("DRAIN", _drain), *columns[2:])
    parts = [
        "\n".join(
            [
                _summary(status),
                *_levels(status),
                *_held(status),
                *_autoscale(status),
                *_refused(status),
                *_rolling(status),
                *_replays(status),
                *_alarms(alarms(status, limits), colours=colours),
            ]
        ),
        output.table(
            [name for name, _ in columns],
            [[cell(item) for _, cell in columns] for item in status.instances],
            colours=colours,
            ids=[name for name, _ in columns if name == "KEPT-FOR"],
        ),
    ]
    if wide:
        parts.append(_frontends(status, colours=colours))
        parts += status_details.tables(status, colours=colours)
    return "\n\n".join(parts)


def freeness(item: InstanceStatus) -> str:
    """Decode steps left; a draining instance has none, whatever it reports."""
    if item.state is InstanceState.DRAINING:
        return "-inf"
    return "-" if item.freeness_steps is None else f"{item.freeness_steps:.0f}"


def _summary(status: ClusterStatus) -> str:
    serving = sum(item.state is InstanceState.ACTIVE for item in status.frontends)
    facts = (
        f"cluster {status.cluster}",
        f"{status.state} ({status.detail})" if status.detail else str(status.state),
        f"model {status.model}",
        *(["engine emulated"] if status.engine == "emulated" else []),
        f"policy {status.policy}",
        f"endpoint {status.endpoint_url}",
        f"frontends {serving}/{len(status.frontends)}",
        f"held {status.num_held_reqs}",
        f"moving {len(status.moves)}",
        *([f"queued {len(status.queued_moves)}"] if status.queued_moves else []),
        *([f"replaying {status.replays.num_replaying}"] if status.replays.num_replaying else []),
        f"revision {status.revision}",
        f"up {duration(status.cluster_uptime_s)}",
        f"controller up {duration(status.uptime_s)}",
    )
    return meant.aimed("  ".join(printable(fact) for fact in facts))


def _levels(status: ClusterStatus) -> list[str]:
    """`level high  run 6  wait 2  ttft99 1.9s  kept 743` for each level of several, in a line."""
    levels = ranked(status.levels)
    if len(levels) < 2:
        return []
    figures = (
        f"level {level.name}: run {level.num_running_reqs} wait {level.num_waiting_reqs}"
        f" ttft99 {latency(level.ttft_p99_s)}"
        + (f" kept {level.headroom_blocks}" if level.headroom_blocks else "")
        for level in levels
    )
    return [printable("  ".join(figures))]


def _held(status: ClusterStatus) -> list[str]:
    """`61 held (high 3, normal 58), 4321 blocks, longest 1m02s; head r-1 (rank 1) for 45s needs
    688 blocks: i-3 is kept for it and lacks 198 blocks`."""
    held = status.held
    if held is None:
        return []
    head = held.head
    needs = (
        "" if head.demand_blocks is None else f" needs {status_words.blocks(head.demand_blocks)}"
    )
    first = f"head {head.request_id} ({head.level}, rank {head.rank}) for {duration(head.waited_s)}"
    summary = status_words.held_summary(held, status.num_held_reqs)
    found = f"{summary}; {first}{needs}: {status_words.held_why(head)}"
    return [printable(found)]


def _autoscale(status: ClusterStatus) -> list[str]:
    """Of a cluster that scales itself, or would."""
    found = status.autoscale
    if found.mode == "off":
        return []
    return [meant.aimed(printable(autoscale_words.summary(found, status.time_s)))]


def _refused(status: ClusterStatus) -> list[str]:
    """`refused in the last minute: overloaded 61 (high 3, normal 58), token_limit 4 (normal 4)`"""
    by_reason: dict[str, list[tuple[str, int]]] = {}
    for each in status.refused:
        if each.num_refused_last_minute:
            of_level = (each.level, each.num_refused_last_minute)
            by_reason.setdefault(each.reason, []).append(of_level)
    if not by_reason:
        return []
    parts = (
        f"{reason} {sum(number for _, number in levels)}"
        f" ({', '.join(f'{level} {number}' for level, number in levels)})"
        for reason, levels in by_reason.items()
    )
    return [printable(f"refused in the last minute: {', '.join(parts)}")]


def _rolling(status: ClusterStatus) -> list[str]:
    """How far a rolling restart is, or how it failed, until an operator dismisses that; one that is
    done or was stopped is past. Then the engine arguments that one has changed."""
    found = status.rolling
    shown = found is not None and found.state in ("going", "failed") and not found.dismissed
    changed = rolling_words.changed_arguments(status.engine_changes)
    progress = [rolling_words.progress(found)] if found is not None and shown else []
    return [*progress, *([changed] if changed else [])]


def _replays(status: ClusterStatus) -> list[str]:
    """Those of the last minute, and how requests of instances that left or died were saved
    since the controller started; moves for balance are none of these."""
    replays = status.replays
    lately = [f"replays: {status_words.replays_lately(replays)}"] if replays.lately else []
    saved = status_words.replays_saved(replays)
    return [*lately, *([f"{SAVED}: {saved}"] if saved else [])]


def _alarms(found: list[Alarm], *, colours: bool) -> list[str]:
    """The worst ones, and how many there are beside them."""
    lines = [f"! {alarm.text}" for alarm in found[:MAX_ALARMS]]
    if more := found[MAX_ALARMS:]:
        lines.append(f"! and {len(more)} more: {', '.join(alarm.subject for alarm in more)}")
    return [output.paint(line, output.RED) for line in lines] if colours else lines


def _kept_for(item: InstanceStatus) -> str:
    return item.kept_for.request_id if item.kept_for else "-"


def _drain(item: InstanceStatus) -> str:
    """One word, as in other columns: what is left, or that nothing is."""
    if item.drain is None:
        return "-"
    return "safe-to-delete" if item.drain.safe_to_delete else f"{item.drain.num_requests_left}-left"


def _virtual(item: InstanceStatus) -> str:
    """Virtual usage as a share of what requests may use; above 100% it does not fit."""
    if item.virtual_usage_blocks is None or not item.num_total_blocks:
        return "-"
    capacity = item.num_total_blocks - (item.watermark_blocks or 0)
    return f"{100 * item.virtual_usage_blocks / capacity:.0f}%" if capacity > 0 else "-"


def _head(item: InstanceStatus) -> str:
    """The first in the queue: level, blocks that it needs of those that it may take, how long it
    has waited, and why."""
    head = item.queue_head
    if head is None:
        return "-"
    evicted = "/evicted" if head.evicted else ""
    why = f"/{head.why}" if head.why else ""
    blocks = f"{head.demand_blocks}of{free_blocks(item)}blk"
    return f"{head.level}/{blocks}/{duration(head_wait_s(head))}{why}{evicted}"


def _blocks(item: InstanceStatus) -> str:
    """Blocks in use, of all."""
    if item.num_total_blocks is None or item.num_free_blocks is None:
        return "-"
    return f"{item.num_total_blocks - item.num_free_blocks}/{item.num_total_blocks}"


def _moves(item: InstanceStatus) -> str:
    """Moves under way to the instance, and from it."""
    if item.num_moves_in is None or item.num_moves_out is None:
        return "-"
    return f"{item.num_moves_in}/{item.num_moves_out}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


COLUMNS: tuple[Column, ...] = (
    ("ID", lambda item: item.id),
    ("STATE", state_word),
    ("FREENESS", freeness),
    ("KV-USE", lambda i: "-" if i.kv_cache_usage is None else f"{100 * i.kv_cache_usage:.0f}%"),
    ("VIRTUAL", _virtual),
    ("RUN", lambda item: _number(item.num_running_reqs)),
    ("WAIT", lambda item: _number(item.num_waiting_reqs)),
    ("HEAD", _head),
    ("EVICT", lambda item: _number(item.num_evictions)),
    ("STEP", lambda i: "-" if i.step_time_s is None else f"{1000 * i.step_time_s:.1f}ms"),
    ("AGE", lambda item: duration(item.age_s)),
)
WIDE_COLUMNS: tuple[Column, ...] = (
    *COLUMNS,
    ("MIG-IN/OUT", _moves),
    ("INCARNATION", lambda item: str(item.incarnation)),
    ("RESTARTS", lambda item: str(item.num_restarts)),
    ("NODE", lambda item: item.node),
    ("PID", lambda item: _number(item.pid)),
    ("BLOCKS", _blocks),
    ("HEADROOM", lambda item: _number(item.headroom_blocks)),
    ("CORES", lambda item: "-" if item.cpu_cores is None else f"{item.cpu_cores:.2f}"),
    ("DETAIL", lambda item: item.detail),
)


def _frontends(status: ClusterStatus, *, colours: bool) -> str:
    header = ("FRONTEND", "STATE", "LIVE", "AGE", "INCARNATION", "RESTARTS", "NODE", "PID")
    return output.table(
        (*header, "DETAIL"), [_frontend(item) for item in status.frontends], colours=colours
    )


def _frontend(item: FrontendStatus) -> tuple[str, ...]:
    return (
        item.id,
        item.state,
        str(item.num_live_reqs),
        duration(item.age_s),
        str(item.incarnation),
        str(item.num_restarts),
        item.node,
        _number(item.pid),
        item.detail,
    )
