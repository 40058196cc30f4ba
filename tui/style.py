"""Where Textual places the widgets, and how it draws them beside the tones of the text."""

from tui import widgets

CSS = (
    widgets.CSS
    + """
Screen { background: $background; color: $foreground; }
Screen { overflow: hidden; }
Lines, TableView { width: 1fr; }
#requests { height: 2fr; }
#history, #timeline, #log { height: 1fr; }
#bottom { height: 1; dock: bottom; }
#prompt, #hints { width: 1fr; } #prompt { background: $background; }
Dialog { align: center middle; background: transparent; }
#dialog { height: auto; padding: 0 1; background: $background; border: round $warning; }
.-ascii #dialog { border: ascii $warning; }
ChooseScreen #words { height: 2; }
SortScreen #words { height: 1; }
#buttons { height: 1; align: right middle; }
#buttons Button { margin: 0 0 0 2; }
#name, #value { background: $background; margin: 0 0 1 0; }
.-stale TableView, .-stale #facts { text-opacity: 60%; }
"""
)
