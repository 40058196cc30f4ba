"""An instance's status in words and figures, and its KV blocks as a line."""

from controller.api.text.quantities import duration, latency, printable
from controller.api.text.status_words import free_blocks, head_wait_s
from controller.api.wire.status import InstanceState, InstanceStatus
from tui import drawing
from tui.drawing import Glyphs, Line, Span, Tone, apportion
from tui.panes import instances, requests
from tui.panes.instances import level_names, level_of_instance
from tui.state import DashboardState, History

LABEL_WIDTH = 11
MIN_COLUMN_WIDTH = 38
TREND_WIDTH = 15

Fact = tuple[str, Span]


def facts(
    state: DashboardState, instance_id: str, width: int, glyphs: Glyphs, request_id: str = ""
) -> list[Line]:
    """Pairs of label and figure in as many columns as fit; then the queue head and the request
    whose row was opened, by their whole ids."""
    item = state.instance(instance_id)
    name = Span(f" {instance_id}", Tone.STRONG)
    if item is None:
        return [(name, Span("  is no longer part of the cluster", Tone.BAD))]
    title = [name, Span("  "), instances.state_word(item)]
    if item.detail:
        title.append(Span(f"  {printable(item.detail)}"))
    history = state.histories.get(instance_id, History())
    time_s = state.status.time_s if state.status and state.status.time_s else state.time_s
    curve = drawing.trend(history.samples, time_s, TREND_WIDTH, glyphs)
    steps = drawing.step_trend(history.samples, time_s, TREND_WIDTH, glyphs)
    levels = level_names(state.status) if state.status else ()
    return [
        tuple(title),
        *columns(_facts(item, levels, curve, steps), width, glyphs),
        *block_map(item, width),
        _head(item),
        *_kept_for(item),
        *([labelled("request", Span(printable(request_id)))] if request_id else []),
    ]


def _facts(item: InstanceStatus, levels: tuple[str, ...], curve: str, steps: str) -> list[Fact]:
    figure = drawing.number
    freeness, kv = instances.freeness(item), instances.kv(item)
    return [
        ("freeness", Span(f"{freeness.text:<7} {curve}", freeness.tone)),
        ("kv", Span("".join(span.text for span in kv), kv[0].tone)),
        ("blocks", Span(_blocks(item))),
        ("virtual", Span(_virtual(item))),
        ("headroom", Span(f"{figure(item.headroom_blocks)} of {figure(item.num_total_blocks)}")),
        ("watermark", Span(f"{figure(item.watermark_blocks)} blk")),
        ("running", Span(_running(item))),
        ("waiting", Span(figure(item.num_waiting_reqs))),
        *((printable(name)[:LABEL_WIDTH], Span(level_of_instance(item, name))) for name in levels),
        ("unreported", Span(figure(item.num_unreported_reqs))),
        ("evictions", Span(figure(item.num_evictions))),
        ("moves", Span(f"{figure(item.num_moves_in)} in, {figure(item.num_moves_out)} out")),
        ("step", Span(f"{latency(item.step_time_s):<7} {steps}")),
        ("steps", Span(figure(item.num_steps))),
        ("p99 TTFT", Span(latency(item.ttft_p99_s))),
        ("status", Span(f"{duration(item.age_s)} old")),
        ("up", Span(duration(item.up_s))),
        ("incarnation", Span(f"{item.incarnation} ({item.num_restarts} restarts)")),
        ("process", Span(printable(f"{item.pid or '-'} on {item.node or '-'}"))),
    ]


def _blocks(item: InstanceStatus) -> str:
    if item.num_total_blocks is None or item.num_free_blocks is None:
        return "-"
    used = item.num_total_blocks - item.num_free_blocks
    return f"{used} of {item.num_total_blocks} ({item.block_size or '?'} tokens)"


def _running(item: InstanceStatus) -> str:
    most = f" of {item.max_running_reqs}" if item.max_running_reqs else ""
    return f"{drawing.number(item.num_running_reqs)}{most}"


def _virtual(item: InstanceStatus) -> str:
    if item.state is InstanceState.DRAINING:
        return "inf"
    return f"{drawing.number(item.virtual_usage_blocks)} blk"


def _head(item: InstanceStatus) -> Line:
    head = item.queue_head
    if head is None:
        return labelled("queue head", Span("nobody waits", Tone.DIM))
    free = drawing.number(free_blocks(item))
    words = (
        f"{head.request_id}  {head.level}  waited {duration(head_wait_s(head))}"
        f"  needs {head.demand_blocks} blk of {free}  {requests.why_waiting(head)}"
    )
    return labelled("queue head", Span(printable(words), Tone.WARN))


def _kept_for(item: InstanceStatus) -> list[Line]:
    """The held request that the instance is kept free for."""
    kept = item.kept_for
    if kept is None:
        return []
    lacks = f", {kept.lacking_blocks} lack" if kept.lacking_blocks else ""
    words = (
        f"{kept.request_id}  {kept.level}  waited {duration(kept.waited_s)}"
        f"  needs {kept.demand_blocks} blk{lacks}"
    )
    return [labelled("kept for", Span(printable(words), Tone.WARN))]


def labelled(label: str, *spans: Span) -> Line:
    """A line of its own, below the columns."""
    return (Span(f" {label:<{LABEL_WIDTH}} ", Tone.DIM), *spans)


def columns(found: list[Fact], width: int, glyphs: Glyphs) -> list[Line]:
    """The columns are filled downwards, so that related facts stand below each other."""
    count = max(1, width // MIN_COLUMN_WIDTH)
    room = width // count - LABEL_WIDTH - 3
    height = -(-len(found) // count)
    lines: list[Line] = []
    for y in range(height):
        spans: list[Span] = []
        for label, figure in found[y::height]:
            spans.append(Span(f" {label:<{LABEL_WIDTH}} ", Tone.DIM))
            spans.append(Span(drawing.fitted(figure.text, room, glyphs) + " ", figure.tone))
        lines.append(tuple(spans))
    return lines


# The block map

_Part = tuple[str, int, str, Tone]
"""(glyph, blocks, word, tone)."""


def block_map(item: InstanceStatus, width: int) -> list[Line]:
    """The blocks that are held, wanted by the queue head, reserved and free, as a line in the room
    behind a label, and what its glyphs mean; nothing where nothing is
    known."""
    if not item.num_total_blocks or item.num_free_blocks is None:
        return []
    found = block_parts(item)
    cells = apportion([blocks for _, blocks, _, _ in found], width - LABEL_WIDTH - 3)
    bar = [
        Span(glyph * count, tone)
        for (glyph, _, _, tone), count in zip(found, cells, strict=True)
        if count
    ]
    missing = _num_lacking(item)
    legend = [Span(f"the head lacks {missing}  ", Tone.BAD)] if missing else []
    legend += [Span(f"{g} {blocks} {word}  ", tone) for g, blocks, word, tone in found if blocks]
    return [labelled("block map", *bar), (Span(" " * (LABEL_WIDTH + 2)), *legend)]


def block_parts(item: InstanceStatus) -> list[_Part]:
    """They make up all blocks. What the queue head wants comes out of what is free first, headroom
    out of the rest; the watermark is what an engine never gives."""
    total, free = item.num_total_blocks or 0, item.num_free_blocks or 0
    usable = min(free, free_blocks(item) or 0)
    wanted = min(usable, item.queue_head.demand_blocks if item.queue_head else 0)
    reserved = min(usable - wanted, item.headroom_blocks or 0)
    return [
        ("#", total - free, "held", Tone.PLAIN),
        ("=", wanted, "wanted by the head", Tone.WARN),
        ("+", reserved, "headroom", Tone.STRONG),
        (".", usable - wanted - reserved, "free", Tone.GOOD),
        ("-", free - usable, "watermark", Tone.DIM),
    ]


def _num_lacking(item: InstanceStatus) -> int:
    """How many blocks the queue head wants beyond what is free; headroom beyond it is no need."""
    demand = item.queue_head.demand_blocks if item.queue_head else 0
    return max(0, demand - max(0, free_blocks(item) or 0))
