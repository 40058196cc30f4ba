"""How often the age on the screen is drawn, seldom on slow links; a status is drawn when it
comes."""

from tui.feed.replay import ReplaySource
from tui.feed.source import Source

REPLAY_TICK_S = 0.25
MIN_TICK_S, MAX_TICK_S = 0.5, 1.0


def tick_s(source: Source) -> float:
    if isinstance(source, ReplaySource):
        return REPLAY_TICK_S
    return max(MIN_TICK_S, min(MAX_TICK_S, source.status_every_s / 2))
