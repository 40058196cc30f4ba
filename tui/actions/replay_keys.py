"""The actions that drive a replay."""

from tui.actions.action import Action, Place

REPLAY_KEYS: tuple[Action, ...] = (
    Action(
        "replay_slower", ("[",), "speed(-1)", "half the speed", Place.ROWS, "slower", replay=True
    ),
    Action(
        "replay_faster", ("]",), "speed(1)", "twice the speed", Place.ROWS, "faster", replay=True
    ),
    Action(
        "replay_back", ("left",), "seek(-10)", "10 s back", Place.ROWS, "10 s back", replay=True
    ),
    Action("replay_on", ("right",), "seek(10)", "10 s on", Place.ROWS, "10 s on", replay=True),
    Action(
        "replay_back_far", ("shift+left",), "seek(-60)", "a minute back", Place.ROWS, replay=True
    ),
    Action("replay_on_far", ("shift+right",), "seek(60)", "a minute on", Place.ROWS, replay=True),
    Action(
        "replay_start", ("less_than_sign",), "edge(-1)", "to the start", Place.ROWS, replay=True
    ),
    Action("replay_end", ("greater_than_sign",), "edge(1)", "to the end", Place.ROWS, replay=True),
    Action(
        "replay_step", ("full_stop",), "step(1)", "pause, one frame on", Place.ROWS, replay=True
    ),
    Action(
        "replay_step_back", ("comma",), "step(-1)", "pause, one frame back", Place.ROWS, replay=True
    ),
    Action(
        "replay_trouble",
        ("w",),
        "to_event('trouble', 1)",
        "to the next trouble, and pause",
        Place.ROWS,
        "trouble",
        replay=True,
    ),
    Action(
        "replay_trouble_before",
        ("W",),
        "to_event('trouble', -1)",
        "to the trouble before",
        Place.ROWS,
        replay=True,
    ),
    Action(
        "replay_notable",
        ("v",),
        "to_event('notable', 1)",
        "to the next notable event or trouble",
        Place.ROWS,
        replay=True,
    ),
    Action(
        "replay_notable_before",
        ("V",),
        "to_event('notable', -1)",
        "to the one before",
        Place.ROWS,
        replay=True,
    ),
    Action(
        "seek",
        ("at",),
        "seek_to",
        "to a moment: 2m30s, +30s, 12:04:31",
        Place.ROWS,
        typed="seek TIME",
        replay=True,
    ),
)
