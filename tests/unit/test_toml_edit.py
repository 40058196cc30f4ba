"""Values set in a TOML text: the new value is read from it, and every other byte stays."""

import difflib
import tomllib
from pathlib import Path

import pytest

from controller.api.settings.setting_values import live_settings
from controller.api.settings.settings import Settings
from llumctl.config import toml_text
from llumctl.config.toml_text import CannotEditError, Value, set_value

EXAMPLE = Path(__file__).parents[2] / "examples" / "llumctl.toml"

TEXT = """\
# Ours.
[cluster]   # what runs
name = "a"

[migration]
  max_moves = 2   # fewer
  victim = 'LCR'

# Of the end.
"""


def changed_lines(before: str, after: str) -> list[str]:
    found = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in found if line.startswith(("-", "+"))]


FEWER = "  max_moves = 2   # fewer"


def test_one_value() -> None:
    for key, value, lines in (
        ("migration.max_moves", 12, [f"- {FEWER}", "+   max_moves = 12   # fewer"]),
        ("migration.victim", 'a"b', ["-   victim = 'LCR'", '+   victim = "a\\"b"']),
        ("migration.max_moves", None, [f"- {FEWER}", "+   # max_moves = 2   # fewer"]),
        ("migration.max_bytes_per_s", None, []),
        ("cluster.instances", 3, ["+ instances = 3"]),
        ("scheduler.grace_s", 2.5, ["+ ", "+ [scheduler]", "+ grace_s = 2.5"]),
    ):
        table, name = key.split(".")
        after = set_value(TEXT, (table,), name, value)
        assert changed_lines(TEXT, after) == lines
        assert tomllib.loads(after).get(table, {}).get(name) == value


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", "[migration]\nmax_moves = 1\n"),
        ("# only words", "# only words\n\n[migration]\nmax_moves = 1\n"),
        ("[migration]\n[engine]\na = 1", "[migration]\nmax_moves = 1\n[engine]\na = 1"),
        ("migration.max_moves = 9", "migration.max_moves = 1"),
        (
            "migration.guard = true\n[keys]",
            "migration.guard = true\nmigration.max_moves = 1\n[keys]",
        ),
        ("migration = { max_moves = 9, a = true }", "migration = { max_moves = 1, a = true }"),
        ("[migration]\r\nguard = true\r\n", "[migration]\r\nguard = true\r\nmax_moves = 1\r\n"),
        (
            "[migration]\nvictim = '''\nmax_moves = 9'''\n",
            "[migration]\nvictim = '''\nmax_moves = 9'''\nmax_moves = 1\n",
        ),
    ],
)
def test_where_it_stands(text: str, after: str) -> None:
    assert set_value(text, ("migration",), "max_moves", 1) == after


def test_what_is_left_to_hands() -> None:
    for text, value, line in (
        ("\nmigration = { guard = true }", 1, 2),
        ("migration = { max_moves = 9 }", None, 1),
        ("\n[migration]\nmax_moves = '''\n9'''", None, 3),
    ):
        with pytest.raises(CannotEditError) as caught:
            set_value(text, ("migration",), "max_moves", value)
        assert caught.value.line == line


def test_a_level_of_several() -> None:
    text = toml_text.with_tables(
        "a = 1\n", "priority", [[("name", "low"), ("rank", -1)], [("name", "high"), ("t", None)]]
    )
    after = set_value(text, ("priority", 1), "t", 800)
    after = set_value(after, ("priority", 0), "t", 5)
    assert tomllib.loads(after) == {
        "a": 1,
        "priority": [{"name": "low", "rank": -1, "t": 5}, {"name": "high", "t": 800}],
    }


def test_every_setting_in_the_example() -> None:
    """One line of it changes, or comes where there was only a comment."""
    text = EXAMPLE.read_text()
    settings = live_settings(Settings())
    for key in [key for key in settings if key.count(".") == 1]:
        table, name = key.split(".")
        old = settings[key].value
        new: Value = not old if isinstance(old, bool) else "x" if isinstance(old, str) else 7
        after = set_value(text, (table,), name, new)
        assert tomllib.loads(after)[table][name] == new
        assert len(changed_lines(text, after)) == (1 if old is None else 2), key
        assert set_value(after, (table,), name, new) == after
