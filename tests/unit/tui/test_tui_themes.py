"""Themes are readable, and the dashboard works on terminals without colours or without our
glyphs."""

import io

import pytest
from rich.color import ColorTriplet

from llumctl import output
from llumctl.app import run
from tests.unit.tui.tui_support import FakeSource, dashboard
from tui.drawing import Tone
from tui.startup import MONOCHROME, first_frame
from tui.themes import THEMES
from tui.widgets import Lines


def colours(lines: Lines) -> tuple[dict[Tone, ColorTriplet], ColorTriplet]:
    """The colour of each tone, and the background."""
    found = {}
    for tone in Tone:
        style = lines.style_of(tone)
        assert style.color is not None
        found[tone] = style.color.get_truecolor()
    under = lines.rich_style.bgcolor
    assert under is not None
    return found, under.get_truecolor()


def luminance(colour: ColorTriplet) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """The ratio of luminances, as the accessibility guidelines of the web define it."""
    dark, bright = sorted(map(luminance, (one, other)))
    return (bright + 0.05) / (dark + 0.05)


async def test_every_tone_of_every_theme_can_be_read() -> None:
    async with dashboard(FakeSource()) as (app, pilot):
        lines = app.screen.query_one("#header", Lines)
        for theme in THEMES:
            app.theme = theme
            await pilot.pause()
            found, under = colours(lines)
            assert all(contrast(colour, under) >= 4.5 for colour in found.values()), theme
            for name in ("tone--bar", "tone--cursor"):
                style = lines.get_component_rich_style(name, partial=True)
                assert style.color is not None
                assert style.bgcolor is not None
                assert contrast(style.color.get_truecolor(), style.bgcolor.get_truecolor()) >= 4.5
            if theme == MONOCHROME:
                assert all(len(set(colour)) == 1 for colour in (*found.values(), under))
    assert {theme.dark for theme in THEMES.values()} == {True, False}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"LC_ALL": "C"}, False),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, True),
        ({"TERM": "linux"}, False),
    ],
)
def test_glyphs_beyond_ascii_where_the_terminal_has_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    """Python's streams use UTF-8 even with LC_ALL=C, so they do not show the terminal's
    encoding."""
    monkeypatch.delenv("LC_ALL", raising=False)
    for name, value in ({"TERM": "xterm"} | variables).items():
        monkeypatch.setenv(name, value)
    screen = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    assert run(["top", "--replay", "none"]) == 2
    screen.flush()
    assert ("─" in screen.buffer.getvalue().decode()) is expected


# What is on the terminal while the dashboard is imported

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def test_it_names_the_cluster_and_stays_for_the_dashboard_but_not_for_an_error() -> None:
    stream = io.StringIO()
    with first_frame(stream, "prod-a\x1b[2J", rule="-"):
        assert " prod-a[2J" in stream.getvalue()
    assert stream.getvalue().startswith(ENTER)
    assert LEAVE not in stream.getvalue()
    with pytest.raises(KeyboardInterrupt), first_frame(stream, "prod-a", rule="-"):
        raise KeyboardInterrupt
    assert stream.getvalue().endswith(LEAVE)


def test_a_signal_right_behind_the_first_byte_gives_the_screen_back() -> None:
    class Signalled(io.StringIO):
        """Python's handler of a signal runs between any two lines."""

        def flush(self) -> None:
            if LEAVE not in self.getvalue():
                raise SystemExit(143)

    stream = Signalled()
    with pytest.raises(SystemExit), first_frame(stream, "prod-a", rule="-"):
        pass
    assert stream.getvalue().endswith(LEAVE)
