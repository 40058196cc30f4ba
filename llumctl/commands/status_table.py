"""The status of a cluster as text. In its tables a dash stands for a value that is not known yet.

This module stands apart from `status.py` because it imports pydantic: the commands' options are
read without it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

from controller.api.settings.settings import ConsoleTable
from controller.api.text import status_words
from controller.api.text.alarms import Alarm, alarms
from controller.api.text.quantities import (
    counted,
    duration,
    latency,
    percent,
    price,
    price_of_million,
    printable,
)
from controller.api.text.status_words import (
    cached_percent,
    free_blocks,
    head_wait_s,
    mirror_words,
    of_model,
    ranked,
    split_words,
    state_word,
)
from controller.api.text.verdict_words import (
    Severity,
    order_command,
    order_words,
    severity,
    verdict_line,
    verdict_word,
)
from controller.api.wire.status import (
    ClusterStatus,
    DrainStatus,
    EndedReplayStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    ModelStatus,
    MoveStatus,
    ReplayStatus,
)
from llumctl import meant, output

MAX_DETAILS = 10
"""How many rows a table of details has. A cluster with a fault may have hundreds of moves; the
dashboard lists all of them."""
MAX_ALARMS = 5
MAX_ADAPTERS = 12
SAVED = "saved from instances that left or died since the controller started"
DEFAULT_LIMITS = ConsoleTable()
_COLOURS = {
    Severity.QUIET: output.GREEN,
    Severity.WARN: output.YELLOW,
    Severity.BAD: output.RED,
}

_Rows = Sequence[tuple[str, ...]]
Column = tuple[str, Callable[[InstanceStatus], str]]


def render(status: ClusterStatus, *, wide: bool, limits: ConsoleTable = DEFAULT_LIMITS) -> str:
    """Lines about the cluster, then the table of its instances.

    There is a line about the cluster itself, one with the verdict on it, one with its output of the
    last minute, and one each about levels, held requests, auto-scaling, refusals, models that
    answer or get copies of another's requests, a rolling restart, notices, LoRA adapters, replays
    and alarms, as far as there are any. The table has a column for drains and one for kept
    instances only while there are any. If `wide`, tables of frontends, levels, drains, held
    requests, queue heads, moves and replays follow.

    If the cluster serves several models, a table of the models stands between the lines and the
    instances. The instances stand in groups, below the name of their model; if `wide`, the name is
    in a column.
    """
    columns = WIDE_COLUMNS if wide else COLUMNS
    if any(item.kept_for for item in status.instances):
        columns = (*columns[:2], ("KEPT-FOR", _kept_for), *columns[2:])
    if any(item.drain for item in status.instances):
        columns = (*columns[:2], ("DRAIN", _drain), *columns[2:])
    if wide and status.models:
        columns = (*columns[:1], ("MODEL", lambda item: item.model or "-"), *columns[1:])
    parts = [
        "\n".join(
            [
                _summary(status),
                *_verdict(status),
                *_output(status, limits.instance_cost_per_hour),
                *_levels(status),
                *_held(status),
                *_autoscale(status),
                *_refused(status),
                *_traffic(status),
                *_rolling(status),
                *_notices(status),
                *_adapters(status),
                *_replays(status),
                *_alarms(alarms(status, limits)),
            ]
        ),
        *_models(status, wide=wide),
        _instances(status, columns, grouped=bool(status.models) and not wide),
    ]
    if wide:
        parts.append(_frontends(status))
        parts += _details(status)
    return "\n\n".join(parts)


def _instances(status: ClusterStatus, columns: Sequence[Column], *, grouped: bool) -> str:
    text = output.table(
        [name for name, _ in columns],
        [[cell(item) for _, cell in columns] for item in status.instances],
        ids=[name for name, _ in columns if name == "KEPT-FOR"],
    )
    if not grouped:
        return text
    head, *lines = text.splitlines()
    by_model: dict[str, list[str]] = {each.name: [] for each in status.models}
    for item, line in zip(status.instances, lines, strict=True):
        by_model.setdefault(item.model, []).append(line)
    groups = (
        [printable(f"{name or '-'}:"), *of_one] for name, of_one in by_model.items() if of_one
    )
    return "\n".join([head, *(line for group in groups for line in group)])


def _models(status: ClusterStatus, *, wide: bool) -> Iterator[str]:
    """The table of the models, if there are several. SERVE: how many instances take requests, of
    how many are planned. WANTS: how many auto-scaling wants."""
    if status.models:
        header = ("MODEL", "SERVE", "RUN", "WAIT", "HELD", "TOK/S", "TTFT99", "AUTO", "WANTS")
        rows = [_model(each, wide=wide) for each in status.models]
        ids = () if wide else ("MODEL",)
        yield output.table((*header, "VERDICT"), rows, ids=ids, ends_in_prose=wide)


def _model(model: ModelStatus, *, wide: bool) -> tuple[str, ...]:
    found, verdict = model.autoscale, model.verdict
    words = "-"
    if verdict is not None:
        words = verdict_line(verdict) if wide else verdict_word(verdict)
    return (
        model.name,
        f"{model.num_serving}/{found.num_instances}",
        str(model.num_running_reqs),
        str(model.num_waiting_reqs),
        str(model.num_held_reqs),
        "-" if model.tokens_per_s is None else counted(model.tokens_per_s),
        latency(model.ttft_p99_s),
        "held" if found.held is not None and found.mode != "off" else found.mode,
        "-" if found.mode == "off" else _number(found.num_wanted),
        words,
    )


def freeness(item: InstanceStatus) -> str:
    """Decode steps that are left. A draining instance counts as full, whatever it reports."""
    if item.state is InstanceState.DRAINING:
        return "-inf"
    return "-" if item.freeness_steps is None else f"{item.freeness_steps:.0f}"


def _summary(status: ClusterStatus) -> str:
    serving = sum(item.state is InstanceState.ACTIVE for item in status.frontends)
    facts = (
        f"cluster {status.cluster}",
        f"{status.state} ({status.detail})" if status.detail else str(status.state),
        f"model{'s' if status.models else ''} {status.model}",
        *(["engine emulated"] if status.engine == "emulated" else []),
        f"policy {status.policy}",
        f"endpoint {status.endpoint_url}",
        f"frontends {serving}/{len(status.frontends)}",
        f"cached {cached_percent(status.instances)}",
        f"held {status.num_held_reqs}",
        f"moving {len(status.moves)}",
        *([f"queued {len(status.queued_moves)}"] if status.queued_moves else []),
        *([f"replaying {status.replays.num_replaying}"] if status.replays.num_replaying else []),
        f"revision {status.revision}",
        f"up {duration(status.cluster_uptime_s)}",
        f"controller up {duration(status.uptime_s)}",
    )
    return meant.aimed("  ".join(printable(fact) for fact in facts))


def _output(status: ClusterStatus, cost_per_hour: float) -> list[str]:
    """`output 1.23k tokens/s  739k per instance-hour  a million costs 3.38`; empty if there was
    none in the last minute."""
    per_s, per_hour = status.tokens_per_s, status.tokens_per_instance_hour
    if not per_s:
        return []
    facts = [f"output {counted(per_s)} tokens/s"]
    if per_hour is not None:
        facts.append(f"{counted(per_hour)} per instance-hour")
    if (cost := price_of_million(per_hour, cost_per_hour)) is not None:
        facts.append(f"a million costs {price(cost)}")
    return ["  ".join(facts)]


def _verdict(status: ClusterStatus) -> list[str]:
    """`OVERLOADED  106 wait on 5 of 6, KV 91%, for 42s`, and a line with the best order and what it
    does, if there is one. Empty for the status of an older controller."""
    verdict = status.verdict
    if verdict is None:
        return []
    lines = [verdict_line(verdict)]
    if severity(verdict) is not Severity.QUIET:
        lines[0] += f", for {duration(max(0.0, status.time_s - verdict.since_s))}"
    order = verdict.order
    if order is not None and (words := order_words(order)):
        command = order_command(order)
        lines.append(meant.aimed(f"try:   {command}   {words}" if command else f"       {words}"))
    if output.use_colours(sys.stdout):
        lines[0] = output.paint(lines[0], _COLOURS[severity(verdict)])
    return lines


def _levels(status: ClusterStatus) -> list[str]:
    """`level high: run 6 wait 2 ttft99 1.9s goodput 98% kept 743` for each level, all on one line;
    empty if there is only one level, and it has no targets."""
    levels = ranked(status.levels)
    if len(levels) < 2 and all(level.goodput is None for level in levels):
        return []
    figures = (
        f"level {level.name}: run {level.num_running_reqs} wait {level.num_waiting_reqs}"
        f" ttft99 {latency(level.ttft_p99_s)}"
        + ("" if level.goodput is None else f" goodput {percent(level.goodput)}")
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
    """A line about auto-scaling, unless it is off; of several models a line for each."""
    of_each = {each.name: each.autoscale for each in status.models} or {"": status.autoscale}
    return [
        meant.aimed(printable(of_model(name, status_words.autoscale_summary(found, status.time_s))))
        for name, found in of_each.items()
        if found.mode != "off"
    ]


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
    """The progress of each rolling restart, or why it failed, until an operator dismisses the
    failure. A restart that is done or was stopped is not shown. A further line has the engine
    arguments that rolling restarts have changed."""
    of_each = {each.name: each.rolling for each in status.models} or {"": status.rolling}
    progress = [
        meant.aimed(of_model(name, status_words.rolling_progress(found)))
        for name, found in of_each.items()
        if found is not None and status_words.is_shown(found)
    ]
    changed = status_words.changed_arguments(status.engine_changes)
    return [*progress, *([changed] if changed else [])]


def _traffic(status: ClusterStatus) -> list[str]:
    """`split large: large 90 (812 requests), next 10 (93)` and `mirror large > next 5%: ...`."""
    of_each: list[tuple[str, ModelStatus | ClusterStatus]] = [(e.name, e) for e in status.models]
    lines = []
    for name, found in of_each or [(status.model, status)]:
        if found.split:
            lines.append(printable(f"split  {name}: {split_words(found.split)}"))
        lines += [
            printable(f"mirror  {name} > {each.model} {each.percent:g}%: {mirror_words(each)}")
            for each in found.mirrors
        ]
    return lines


def _notices(status: ClusterStatus) -> list[str]:
    """`notice  i-1 i-3 leave 198.18.77.2 in 28s: Ray drains its node`."""
    lines = []
    for each in status.notices:
        left_s = each.leaves_at_s - status.time_s
        when = f"in {duration(left_s)}" if left_s > 0 else "now"
        leave = f"leave {each.node}" if each.node else "ends"
        who = f"{' '.join(each.instance_ids)} {leave} {when}"
        if not each.instance_ids:
            who = f"no instance is started on {each.node}"
        also = "; the endpoint and the controller end with it" if each.takes_endpoint else ""
        lines.append(printable(f"notice  {who}: {each.why}{also}"))
    return lines


def _adapters(status: ClusterStatus) -> list[str]:
    """The names of the LoRA adapters, with what is wrong with each."""
    if not status.adapters:
        return []
    words = [
        f"{each.name} (failed on {' '.join(each.failed_on)})" if each.failed_on else each.name
        for each in status.adapters[:MAX_ADAPTERS]
    ]
    more = len(status.adapters) - len(words)
    words += [f"and {more} more"] if more else []
    return [printable(f"LoRA adapters: {', '.join(words)}")]


def _replays(status: ClusterStatus) -> list[str]:
    """The replays of the last minute, and how requests of instances that left or died were saved
    since the controller started. Moves for balance do not count as saved requests."""
    replays = status.replays
    lately = [f"replays: {status_words.replays_lately(replays)}"] if replays.lately else []
    saved = status_words.replays_saved(replays)
    return [*lately, *([f"{SAVED}: {saved}"] if saved else [])]


def _alarms(found: list[Alarm]) -> list[str]:
    """The worst alarms, a line each, and a line that counts and names the others."""
    lines = [f"! {alarm.text}" for alarm in found[:MAX_ALARMS]]
    if more := found[MAX_ALARMS:]:
        lines.append(f"! and {len(more)} more: {', '.join(alarm.subject for alarm in more)}")
    if not output.use_colours(sys.stdout):
        return lines
    return [output.paint(line, output.RED) for line in lines]


def _kept_for(item: InstanceStatus) -> str:
    return item.kept_for.request_id if item.kept_for else "-"


def _drain(item: InstanceStatus) -> str:
    """How many requests are left, or that none is, in one word as in other columns."""
    if item.drain is None:
        return "-"
    return "safe-to-delete" if item.drain.safe_to_delete else f"{item.drain.num_requests_left}-left"


def _virtual(item: InstanceStatus) -> str:
    """Virtual usage as a share of the blocks that requests may use. Above 100% the requests do not
    fit."""
    if item.virtual_usage_blocks is None or not item.num_total_blocks:
        return "-"
    capacity = item.num_total_blocks - (item.watermark_blocks or 0)
    return f"{100 * item.virtual_usage_blocks / capacity:.0f}%" if capacity > 0 else "-"


def _head(item: InstanceStatus) -> str:
    """The first request in the queue: its level, the blocks that it needs, the blocks that it may
    take, how long it has waited, and why."""
    head = item.queue_head
    if head is None:
        return "-"
    evicted = "/evicted" if head.evicted else ""
    why = f"/{head.why}" if head.why else ""
    blocks = f"{head.demand_blocks}of{free_blocks(item)}blk"
    return f"{head.level}/{blocks}/{duration(head_wait_s(head))}{why}{evicted}"


def _blocks(item: InstanceStatus) -> str:
    """Blocks in use, and all blocks."""
    if item.num_total_blocks is None or item.num_free_blocks is None:
        return "-"
    return f"{item.num_total_blocks - item.num_free_blocks}/{item.num_total_blocks}"


def _moves(item: InstanceStatus) -> str:
    """How many moves to the instance and from it are under way."""
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
    ("CACHED", lambda item: cached_percent([item])),
    ("BACKLOG", lambda item: latency(item.backlog_s)),
    ("STEP-LIMIT", lambda item: latency(item.step_limit_s) if item.step_limit_s else "-"),
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


def _frontends(status: ClusterStatus) -> str:
    header = ("FRONTEND", "STATE", "LIVE", "AGE", "INCARNATION", "RESTARTS", "NODE", "PID")
    return output.table((*header, "DETAIL"), [_frontend(item) for item in status.frontends])


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


def _details(status: ClusterStatus) -> Iterator[str]:
    """The tables that `-o wide` shows below the frontends: levels, drains, held requests, kept
    instances, queue heads, moves, replays. Empty tables are left out."""
    for header, rows in (
        (("LEVEL", "RANK", "RUN", "WAIT", "TTFT99", "GOODPUT", "KEPT"), _level_rows(status)),
        (("DRAIN", "LEFT", "MOVED", "DEADLINE", "THEN", "WHY"), _drain_rows(status)),
        (
            ("HELD", "PLACE", "LEVEL", "WAITED", "NEEDS", "KEPT", "LACKS", "OVERTAKEN", "WHY"),
            _held_rows(status),
        ),
        (("KEPT-FOR", "INSTANCE", "LEVEL", "WAITED", "NEEDS", "LACKS"), _kept_rows(status)),
        (("QUEUE-HEAD", "INSTANCE", "LEVEL", "WAITED", "NEEDS", "FREE", "WHY"), _head_rows(status)),
        (("MOVE", "FROM>TO", "STAGE", "BLOCKS", "AGE", "REASON"), _move_rows(status)),
        (("REPLAY", "FROM>TO", "STAGE", "TOKENS", "PAUSE", "AGE", "REASON"), _replay_rows(status)),
    ):
        if rows:
            text = output.table(header, rows[:MAX_DETAILS], ids=header[:1])
            more = len(rows) - MAX_DETAILS
            yield f"{text}\n... and {more} more: llumctl top" if more > 0 else text


def _level_rows(status: ClusterStatus) -> _Rows:
    return [
        (
            level.name,
            str(level.rank),
            str(level.num_running_reqs),
            str(level.num_waiting_reqs),
            latency(level.ttft_p99_s),
            "-" if level.goodput is None else percent(level.goodput),
            str(level.headroom_blocks),
        )
        for level in ranked(status.levels)
    ]


def _drain_rows(status: ClusterStatus) -> _Rows:
    return [
        (
            item.id,
            "nothing" if drain.safe_to_delete else str(drain.num_requests_left),
            str(drain.num_moved),
            "-" if drain.deadline_s is None else _deadline(drain.deadline_s - status.time_s),
            _then(drain),
            printable(drain.why) or "-",
        )
        for item in status.instances
        if (drain := item.drain) is not None
    ]


def _then(drain: DrainStatus) -> str:
    if drain.evacuates:
        return "gone"
    return "removed" if drain.removes else "restarted" if drain.restarts else "-"


def _deadline(left_s: float) -> str:
    return f"in {duration(left_s)}" if left_s > 0 else f"{duration(-left_s)} over"


def _held_rows(status: ClusterStatus) -> _Rows:
    """Two of the requests that the controller holds: the first one, and the one that has waited
    longest."""
    held = status.held
    found = [one for one in (held.head, held.oldest) if one is not None] if held else []
    return [
        (
            one.request_id,
            str(one.place),
            one.level,
            duration(one.waited_s),
            _number(one.demand_blocks),
            one.instance_id or "-",
            _number(one.lacking_blocks),
            str(one.num_overtaken),
            one.why,
        )
        for one in found
    ]


def _kept_rows(status: ClusterStatus) -> _Rows:
    """Instances that are kept for held requests."""
    return [
        (
            kept.request_id,
            item.id,
            kept.level,
            duration(kept.waited_s),
            str(kept.demand_blocks),
            str(kept.lacking_blocks),
        )
        for item in status.instances
        if (kept := item.kept_for) is not None
    ]


def _head_rows(status: ClusterStatus) -> _Rows:
    """The head of each instance's queue; the request that has waited longest comes first."""
    found = [(item, item.queue_head) for item in status.instances if item.queue_head]
    found.sort(key=lambda pair: -(head_wait_s(pair[1]) or 0.0))
    return [
        (
            head.request_id,
            item.id,
            head.level,
            duration(head_wait_s(head)),
            str(head.demand_blocks),
            _number(free_blocks(item)),
            f"{head.why or '-'}{' (evicted)' if head.evicted else ''}",
        )
        for item, head in found
    ]


def _move_rows(status: ClusterStatus) -> _Rows:
    """The moves under way, then moves that an operator ordered and that wait for their turn."""
    return [
        *(_move(move, move.state) for move in status.moves),
        *(_move(move, "queued") for move in status.queued_moves),
    ]


def _move(move: MoveStatus, stage: str) -> tuple[str, ...]:
    return (
        move.request_id,
        f"{move.from_instance_id}>{move.to_instance_id}",
        stage,
        f"{move.num_blocks_copied}/{move.num_blocks}",
        duration(move.age_s),
        move.reason,
    )


def _replay_rows(status: ClusterStatus) -> _Rows:
    """The replays under way, with the longest pause first, then the last ones that ended."""
    return [
        *(_replay(each, each.pause_s, "-") for each in status.replays.under_way),
        *(
            _replay(each, each.pause_s, duration(max(0.0, status.time_s - each.ended_s)))
            for each in status.replays.ended
        ),
    ]


def _replay(
    replay: ReplayStatus | EndedReplayStatus, pause_s: float | None, age: str
) -> tuple[str, ...]:
    return (
        replay.request_id,
        status_words.replay_way(replay),
        status_words.replay_stage(replay),
        str(replay.num_tokens),
        latency(pause_s),
        age,
        status_words.replay_why(replay),
    )
