"""The bar of a replay: where it is, at which pace, and where there was trouble."""

from controller.api.text.quantities import duration
from tui.drawing import ASCII, Glyphs, Line, Span, Tone
from tui.panes.header import Fact, Liveness, between, clock_of, name_of, width_of_facts
from tui.replay import Progress

MIN_TRACK = 12


def line(progress: Progress, live: Liveness, width: int, glyphs: Glyphs) -> Line:
    """` REPLAY  prod-a  1m05s of 5m00s  x1  [====!=O-----!---]  12:04:31`."""
    where = f"{duration(progress.position_s)} of {duration(progress.length_s)}"
    facts = [
        Fact((Span(" REPLAY"),)),
        Fact(name_of(live).spans, drop=3),
        Fact((Span(where),), drop=1),
        Fact((Span(progress.state),)),
    ]
    age_s = live.state.age_s(live.now_s)
    if live.is_stale:
        since = "no data" if age_s is None else duration(age_s)
        facts.append(Fact((Span(f"! STALE {since}", Tone.BAD),)))
    if progress.hint:
        facts.append(Fact((Span(progress.hint),), drop=2))
    clock = clock_of(live)
    room = width - width_of_facts(facts) - width_of_facts([clock]) - 4
    if room >= MIN_TRACK:
        facts.append(Fact((Span(_track(progress, room, glyphs)),)))
    return between(tuple(facts), clock, width)


def _track(progress: Progress, width: int, glyphs: Glyphs) -> str:
    """`=` is behind, `O` is now, `!` is trouble."""
    inner = width - 2
    now = _place(progress.position_s, progress, inner)
    past, present = ("=", "O") if glyphs is ASCII else ("━", glyphs.bullet)
    cells = [past] * now + [glyphs.rule] * (inner - now)
    for trouble_s in progress.troubles_s:
        cells[_place(trouble_s, progress, inner)] = "!"
    cells[now] = present
    return f"[{''.join(cells)}]"


def _place(position_s: float, progress: Progress, width: int) -> int:
    share = position_s / progress.length_s if progress.length_s else 0.0
    return max(0, min(width - 1, int(share * width)))
