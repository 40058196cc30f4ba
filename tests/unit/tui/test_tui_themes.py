"""Themes are readable, also for people who cannot tell red from green; and the dashboard works on
terminals without colours or without our glyphs."""

from itertools import combinations

import pytest
from rich.color import ColorTriplet

from llumctl.commands import top
from tests.unit.tui.tui_support import FakeSource, dashboard
from tui.drawing import Tone
from tui.startup import DEUTERANOPIA, MONOCHROME
from tui.themes import THEMES
from tui.widgets import Lines

Rgb = tuple[float, float, float]
TEXT = tuple(Tone)


async def colours(theme: str) -> tuple[dict[str, ColorTriplet], ColorTriplet]:
    """The colour of each tone, and the background."""
    async with dashboard(FakeSource(), theme=theme) as (app, _):
        lines = app.screen.query_one("#header", Lines)
        found = {}
        for tone in TEXT:
            style = lines.style_of(tone)
            assert style.color is not None
            found[str(tone)] = style.color.get_truecolor()
        for name in ("tone--bar", "tone--cursor"):
            style = lines.get_component_rich_style(name, partial=True)
            assert style.color is not None
            assert style.bgcolor is not None
            shown, under = style.color.get_truecolor(), style.bgcolor.get_truecolor()
            assert contrast(shown, under) >= 4.5, name
        under = lines.rich_style.bgcolor
        assert under is not None
        return found, under.get_truecolor()


def linear(colour: ColorTriplet) -> Rgb:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    )
    return red, green, blue


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """The ratio of luminances, as the accessibility guidelines of the web define it."""
    weights = (0.2126, 0.7152, 0.0722)
    dark, bright = sorted(
        sum(weight * part for weight, part in zip(weights, linear(colour), strict=True))
        for colour in (one, other)
    )
    return (bright + 0.05) / (dark + 0.05)


def without_green(colour: ColorTriplet) -> Rgb:
    """Linear light as an eye without green cones sees it (Machado, Oliveira and Fernandes 2009)."""
    red, green, blue = linear(colour)
    return (
        0.367322 * red + 0.860646 * green - 0.227968 * blue,
        0.280085 * red + 0.672501 * green + 0.047413 * blue,
        -0.011820 * red + 0.042940 * green + 0.968881 * blue,
    )


@pytest.mark.parametrize("theme", THEMES)
async def test_every_tone_can_be_read(theme: str) -> None:
    found, under = await colours(theme)
    assert {
        tone: contrast(colour, under) >= 4.5 for tone, colour in found.items()
    } == dict.fromkeys(found, True)


def test_there_is_a_light_theme_and_a_dark_one() -> None:
    assert {theme.dark for theme in THEMES.values()} == {True, False}


async def test_deuteranopes_tell_good_from_bad() -> None:
    found, _ = await colours(DEUTERANOPIA)
    seen = {tone: without_green(found[tone]) for tone in ("good", "warn", "bad")}
    for one, other in combinations(seen.values(), 2):
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.4


async def test_monochrome_is_grey() -> None:
    found, under = await colours(MONOCHROME)
    assert all(len(set(colour)) == 1 for colour in (*found.values(), under))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"LC_ALL": "C"}, False),
        ({"LC_ALL": "POSIX"}, False),
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
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    class Stream:
        encoding = "utf-8"

    monkeypatch.setattr(top.sys, "stderr", Stream())
    assert top._has_glyphs() is expected
