"""Our themes. Every meaning of a colour is also in a word or a glyph next to it."""

from collections.abc import Mapping

from textual.theme import Theme

from tui.startup import DEFAULT_THEME, DEUTERANOPIA, LIGHT, MONOCHROME

VARIABLES = {
    "block-cursor-text-style": "none",
    "block-cursor-blurred-text-style": "none",
    "block-cursor-blurred-background": "#303030",
    "text-muted": "#8a8a8a",
    "warn-style": "none",
    "bad-style": "bold",
    "curve-1": "#5fafff",
    "curve-2": "#d787ff",
    "curve-3": "#87d7d7",
    "curve-4": "#d7d7af",
}
"""`warn-style` and `bad-style`: how figures that stand out differ where colours do not. The colours
of curves are none of those that mean good or bad."""

THEMES: Mapping[str, Theme] = {
    theme.name: theme
    for theme in (
        Theme(
            name=DEFAULT_THEME,
            primary="#5fafd7",
            success="#5faf5f",
            warning="#d7af5f",
            error="#ff5f5f",
            foreground="#d0d0d0",
            background="#121212",
            surface="#1c1c1c",
            panel="#262626",
            variables=VARIABLES
            | {
                "block-cursor-background": "#5fafd7",
                "block-cursor-foreground": "#121212",
            },
        ),
        Theme(
            name=LIGHT,
            dark=False,
            primary="#005f87",
            success="#005f00",
            warning="#875f00",
            error="#af0000",
            foreground="#262626",
            background="#fafafa",
            surface="#f0f0f0",
            panel="#e4e4e4",
            variables=VARIABLES
            | {
                "block-cursor-blurred-background": "#dadada",
                "block-cursor-background": "#005f87",
                "block-cursor-foreground": "#fafafa",
                "text-muted": "#6c6c6c",
                "text-primary": "#005f87",
                "text-success": "#005f00",
                "text-warning": "#875f00",
                "text-error": "#af0000",
                "curve-1": "#005faf",
                "curve-2": "#8700af",
                "curve-3": "#005f5f",
                "curve-4": "#5f5f00",
            },
        ),
        # Blue and orange differ in every common kind of colour blindness.
        Theme(
            name=DEUTERANOPIA,
            primary="#87afff",
            success="#5fafff",
            warning="#ffd75f",
            error="#ff8700",
            foreground="#d0d0d0",
            background="#121212",
            surface="#1c1c1c",
            panel="#262626",
            variables=VARIABLES
            | {
                "block-cursor-background": "#87afff",
                "block-cursor-foreground": "#121212",
                "curve-2": "#ffffff",
                "curve-3": "#878787",
                "curve-4": "#d7d787",
            },
        ),
        Theme(
            name=MONOCHROME,
            primary="#ffffff",
            secondary="#ffffff",
            accent="#ffffff",
            success="#d0d0d0",
            warning="#ffffff",
            error="#ffffff",
            foreground="#d0d0d0",
            background="#000000",
            surface="#000000",
            panel="#202020",
            variables=VARIABLES
            | {
                "block-cursor-background": "#d0d0d0",
                "block-cursor-foreground": "#000000",
                "text-primary": "#ffffff",
                "text-success": "#d0d0d0",
                "text-warning": "#ffffff",
                "text-error": "#ffffff",
                "warn-style": "underline",
                "bad-style": "bold underline",
                "curve-1": "#ffffff",
                "curve-2": "#c6c6c6",
                "curve-3": "#9e9e9e",
                "curve-4": "#808080",
            },
        ),
    )
}
