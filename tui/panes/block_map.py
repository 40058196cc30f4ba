"""The KV blocks of an instance as a line: held, wanted by the queue head, reserved, free."""

from controller.api.text.status_words import free_blocks
from controller.api.wire.status import InstanceStatus
from tui.drawing import Line, Span, Tone, apportion

Part = tuple[str, int, str, Tone]
"""(glyph, blocks, word, tone)."""


def parts(item: InstanceStatus) -> list[Part]:
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


def short_of(item: InstanceStatus) -> int:
    """How many blocks the queue head wants beyond what is free; headroom beyond it is no need."""
    demand = item.queue_head.demand_blocks if item.queue_head else 0
    return max(0, demand - max(0, free_blocks(item) or 0))


def lines(item: InstanceStatus, label_width: int, width: int) -> list[Line]:
    """The map in the room behind a label, and what its glyphs mean; nothing where nothing is
    known."""
    if not item.num_total_blocks or item.num_free_blocks is None:
        return []
    found = parts(item)
    cells = apportion([blocks for _, blocks, _, _ in found], width - label_width - 3)
    bar = [
        Span(glyph * count, tone)
        for (glyph, _, _, tone), count in zip(found, cells, strict=True)
        if count
    ]
    missing = short_of(item)
    legend = [Span(f"the head lacks {missing}  ", Tone.BAD)] if missing else []
    legend += [Span(f"{g} {blocks} {word}  ", tone) for g, blocks, word, tone in found if blocks]
    return [
        (Span(f" {'block map':<{label_width}} ", Tone.DIM), *bar),
        (Span(" " * (label_width + 2)), *legend),
    ]
