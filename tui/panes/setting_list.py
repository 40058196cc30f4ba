"""The settings that may be changed while the cluster runs, as rows, and one of them in full."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from controller.api.operations.on_cluster import Setting
from controller.api.text.quantities import printable, setting_value
from controller.api.wire.base import SettingValue
from tui.actions import Target
from tui.drawing import Column, Line, Span, Tone

FACT_LINES = 4
SORTS = {"table": False, "changed": True}
"""The order of the tables of the configuration file, or what is not the default before it."""
_FROM = {"default": "the default", "start": "as it was started", "set": "set since"}
_ORIGINS = {"default": Tone.DIM, "start": Tone.STRONG, "set": Tone.WARN}


@dataclass(frozen=True, slots=True)
class SettingRow:
    setting: Setting

    @property
    def id(self) -> str:
        return self.setting.key

    @property
    def target(self) -> Target:
        return Target(other=self.setting.key)

    @property
    def text(self) -> str:
        found = self.setting
        return f"{found.key} {setting_value(found.value)} {found.origin or ''} {found.meaning}"


def ordered(settings: Iterable[Setting], sort: str, *, descending: bool) -> list[SettingRow]:
    found = list(settings)
    if sort == "changed":
        found.sort(key=lambda each: (each.value == each.default) is descending)
    elif descending:
        found.reverse()
    return [SettingRow(each) for each in found]


def facts(setting: Setting, width: int) -> list[Line]:
    """Its value, where that is from, which ones are allowed, and what it means."""
    origin = _FROM.get(setting.origin or "", f"default {_value(setting.default)}")
    if setting.origin in ("start", "set"):
        origin += f"; default {_value(setting.default)}"
    head = (
        Span(f" {printable(setting.key)} = {_value(setting.value)}", Tone.STRONG),
        Span(f"  ({origin})"),
    )
    allowed = Span(f" allowed: {printable(setting.allowed) or '-'}", Tone.DIM)
    meaning = textwrap.wrap(
        printable(setting.meaning), max(20, width - 2), max_lines=2, placeholder=" ..."
    )
    return [head, (allowed,), *((Span(f" {line}"),) for line in meaning)]


def _value(value: SettingValue) -> str:
    return printable(setting_value(value))


def _from_span(row: SettingRow, _: int) -> Span:
    origin = row.setting.origin or "-"
    return Span(origin, _ORIGINS.get(origin, Tone.PLAIN))


def _value_span(row: SettingRow, _: int) -> Span:
    changed = row.setting.value != row.setting.default
    return Span(_value(row.setting.value), Tone.STRONG if changed else Tone.PLAIN)


COLUMNS: tuple[Column[SettingRow], ...] = (
    Column("key", "KEY", 34, lambda row, _: Span(printable(row.setting.key))),
    Column("value", "VALUE", 11, _value_span, right=True),
    Column("from", "FROM", 7, _from_span),
    Column("default", "DEFAULT", 11, lambda row, _: Span(_value(row.setting.default)), right=True),
    Column(
        "allowed",
        "ALLOWED",
        18,
        lambda row, _: Span(printable(row.setting.allowed), Tone.DIM),
        drop=2,
    ),
    Column(
        "meaning",
        "MEANING",
        16,
        lambda row, _: Span(printable(row.setting.meaning), Tone.DIM),
        drop=1,
        max_width=400,
    ),
)
